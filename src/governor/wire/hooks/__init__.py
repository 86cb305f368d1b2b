"""The hook protocol between the runtime proxy and its plugins: messages (``hooks_pb2``) and hook points (``points``).

It is koord-runtime-proxy's protocol and must stay compatible with it on the wire. No I/O.
"""
