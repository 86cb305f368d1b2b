"""The hook protocol between the runtime proxy and its plugins: messages, hook points, and the nouns they are about.

It is koord-runtime-proxy's protocol and must stay compatible with it on the wire. No I/O.
"""
