"""Charts: fetched from a directory, a web server or a registry, verified by digest, and cached by it.

What a chart contains is Helm's business; here it is a set of files.
"""
