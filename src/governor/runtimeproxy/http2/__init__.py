"""HTTP/2 between a client and its runtime without any I/O: bytes in, bytes and events out.

Frames, header blocks, flow-control accounts, and the two ways in which a connection is served: copied byte by byte, or
relayed with streams that can be held. What a call means (methods, messages, hooks), sockets, time and calls to plugins
are not here.
"""
