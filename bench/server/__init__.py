"""The server's benchmark: thousands of agents in one client process, beside the polling of the proof of concept.

``swarm`` is that process, ``agents`` its connections, ``subject`` the server and its documents, ``rounds`` what is
measured, ``report`` and ``chart`` what is shown.
"""
