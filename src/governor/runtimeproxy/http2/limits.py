"""How much one relayed connection may ask of us."""

from typing import Final

import msgspec

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB


class Limits(msgspec.Struct, frozen=True):
    """Bytes and counts; beyond them a stream is refused or the connection of who went beyond them ends."""

    stream_window: int = 256 * _KIB
    """What a peer may send on a stream before its bytes were passed on."""
    connection_window: int = _MIB
    streams: int = 1000
    """Streams that a client may have open at once."""
    header_list: int = 256 * _KIB
    """The size of a header list, encoded or decoded."""
    held_body: int = 16 * _MIB + 64 * _KIB
    """A held request or response: the 16 MiB that kubelet and containerd allow, and a margin for its frames."""
    held_bodies: int = 128 * _MIB
    """All of them together, on all connections."""
    backlog: int = 4 * _MIB
    """What waits to be written besides DATA, which windows limit, to a peer that does not read."""
    resets: int = 10_000
    """Streams that a client cancels without as many others coming to their end."""
    interim_responses: int = 16
    """Responses 1xx before the one that counts."""
