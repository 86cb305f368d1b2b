"""Operation of the proxy: control socket, ``explain``, ``lint``, ``tap``, audit log and watchdog.

The proxy imports neither ``*_view`` nor ``lint`` nor ``control_client``, which only the commands need.
"""
