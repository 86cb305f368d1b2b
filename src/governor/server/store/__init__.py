"""What the server remembers, in an embedded SQLite database: tables, their migrations, and the statements on them.

Statements are plain functions of a connection, so that one transaction can hold several. What is decided from the rows
lives outside. SQL stays portable; only ``sqlite`` knows the engine.
"""
