"""HTTP/2 (RFC 9113) between a client and its container runtime without I/O: bytes in, bytes and events out.

Frames, header blocks, flow control, and the two engines that serve a connection: a byte copy, and a relay that can
hold messages. Excluded are sockets, timers, the meaning of calls, and plugins.
"""
