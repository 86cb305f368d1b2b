"""The ``governor`` command: loads the programs' commands when they are called, and brings those that people use daily.

What a command shows is decided by pure functions (``differences``, ``tables``, ``waiting``); files, terminals and the
server are at the edges. What a change means is decided by the server alone.
"""
