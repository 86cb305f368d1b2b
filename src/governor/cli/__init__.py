"""The ``governor`` command: the commands of everyday use, and those of the programs, imported when they are called.

Pure functions in ``output`` render what a command prints; files, terminals and the server stay at the edges. Deciding
what a change means is excluded: only the server does that.
"""
