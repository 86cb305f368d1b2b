"""What a relay tells its caller."""

from typing import TypeAlias

import msgspec

from governor.runtimeproxy.http2.frames import Payload
from governor.runtimeproxy.http2.header_blocks import Fields
from governor.runtimeproxy.http2.streams import Outcome, Peer, Stream


class HeadersReceived(msgspec.Struct, gc=False):
    """A header block; ``lane`` is None for a new stream."""

    stream: int
    lane: Stream | None
    fields: Fields
    ended: bool


class DataReceived(msgspec.Struct, gc=False):
    """DATA of an open stream, without its padding, and not yet credited."""

    lane: Stream
    payload: Payload
    ended: bool


class StreamReset(msgspec.Struct, gc=False):
    """The peer ended an open stream."""

    lane: Stream
    code: int


class WindowUpdated(msgspec.Struct, gc=False):
    """More may be written: to one stream, or to all that wait if ``lane`` is None."""

    lane: Stream | None


class GoawayReceived(msgspec.Struct, gc=False):
    """The peer takes no streams after ``last``."""

    last: int
    code: int


ConnectionEvent: TypeAlias = HeadersReceived | DataReceived | StreamReset | WindowUpdated | GoawayReceived


class UpstreamNeeded(msgspec.Struct, frozen=True):
    """The first stream for an upstream came: attach it, or say that it is lost."""

    side: Peer


class StreamOpened(msgspec.Struct, frozen=True):
    """The client opened a stream; told by a relay that is watched."""

    stream: int
    path: bytes
    fields: Fields


class RequestData(msgspec.Struct, frozen=True):
    """A part of a request that is not held; told by a relay that is watched."""

    stream: int
    data: bytes


class RequestHeld(msgspec.Struct, frozen=True):
    """A held request is complete: release or refuse it."""

    stream: int
    path: bytes
    fields: Fields
    body: bytes


class ResponseHeld(msgspec.Struct, frozen=True):
    """A held response is complete: release or refuse it. Without a body ``trailers`` are often the only fields."""

    stream: int
    path: bytes
    fields: Fields
    body: bytes
    trailers: Fields


class StreamClosed(msgspec.Struct, frozen=True):
    """A stream is over, at both ends; every stream's last event. A hook that still works for it works in vain."""

    stream: int
    path: bytes
    hooked: bool
    """Whether its request was held, or was to be."""
    outcome: Outcome
    status: bytes
    """The gRPC status that the client was told; empty if none."""


RelayEvent: TypeAlias = UpstreamNeeded | StreamOpened | RequestData | RequestHeld | ResponseHeld | StreamClosed
