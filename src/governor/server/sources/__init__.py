"""Sources of documents: files that the server reads and submits as changes.

A source uses the change pipeline like any client, with its own name as the author.
"""
