"""Charts: fetched from a directory, an archive or a web server, verified by digest, and cached by it.

What a chart contains is Helm's business; here it is a set of files.
"""
