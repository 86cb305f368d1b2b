"""The server's store, an embedded SQLite database: tables, their migrations and the statements on them.

Statements are plain functions of a connection, so that several fit into one transaction. Decisions about the rows are
made elsewhere. SQL stays portable; only ``sqlite`` and ``backup`` depend on the engine.
"""
