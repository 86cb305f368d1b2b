"""What a connection read on its streams."""

from typing import TypeAlias

import msgspec

from governor.runtimeproxy.http2.blocks import Fields
from governor.runtimeproxy.http2.frames import Payload
from governor.runtimeproxy.http2.streams import Lane


class HeadersRead(msgspec.Struct, gc=False):
    """A header block; ``lane`` is None for a new stream."""

    stream: int
    lane: Lane | None
    fields: Fields
    ended: bool


class DataRead(msgspec.Struct, gc=False):
    """DATA of an open stream, without its padding, and not yet credited."""

    lane: Lane
    payload: Payload
    ended: bool


class ResetRead(msgspec.Struct, gc=False):
    """The peer ended an open stream."""

    lane: Lane
    code: int


class WindowRead(msgspec.Struct, gc=False):
    """More may be written: to one stream, or to all that wait if ``lane`` is None."""

    lane: Lane | None


class GoawayRead(msgspec.Struct, gc=False):
    """The peer takes no streams after ``last``."""

    last: int
    code: int


Read: TypeAlias = HeadersRead | DataRead | ResetRead | WindowRead | GoawayRead
