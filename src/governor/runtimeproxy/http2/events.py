"""Events of a connection, and events that a relay emits to its caller."""

from typing import TypeAlias

import msgspec

from governor.runtimeproxy.http2.frames import Payload
from governor.runtimeproxy.http2.header_blocks import Fields
from governor.runtimeproxy.http2.streams import Outcome, Peer, Stream


class HeadersReceived(msgspec.Struct, gc=False):
    """A complete header block; ``stream`` is None if it opens a new stream."""

    stream_id: int
    stream: Stream | None
    fields: Fields
    end_stream: bool


class DataReceived(msgspec.Struct, gc=False):
    """DATA of an open stream without padding, not yet credited to the sender."""

    stream: Stream
    payload: Payload
    end_stream: bool


class StreamReset(msgspec.Struct, gc=False):
    """The peer reset an open stream."""

    stream: Stream
    code: int


class WindowUpdated(msgspec.Struct, gc=False):
    """A send window grew: of one stream, or possibly of all if ``stream`` is None."""

    stream: Stream | None


class GoawayReceived(msgspec.Struct, gc=False):
    """The peer does not process streams after ``last_stream_id``."""

    last_stream_id: int
    code: int


ConnectionEvent: TypeAlias = HeadersReceived | DataReceived | StreamReset | WindowUpdated | GoawayReceived


class UpstreamNeeded(msgspec.Struct, frozen=True):
    """The first stream for an upstream was opened: attach the upstream, or report its connection lost."""

    peer: Peer


class StreamOpened(msgspec.Struct, frozen=True):
    """The client opened a stream; emitted by a tapped relay only."""

    stream_id: int
    path: bytes
    fields: Fields


class RequestData(msgspec.Struct, frozen=True):
    """DATA of a request that is not held; emitted by a tapped relay only."""

    stream_id: int
    data: bytes


class RequestHeld(msgspec.Struct, frozen=True):
    """A held request is complete: release or refuse it."""

    stream_id: int
    path: bytes
    fields: Fields
    body: bytes


class RequestTooLarge(msgspec.Struct, frozen=True):
    """A request is too large to be held: pass it on, or refuse it."""

    stream_id: int
    path: bytes
    fields: Fields


class ResponseHeld(msgspec.Struct, frozen=True):
    """A held response is complete: release or refuse it. In a Trailers-Only response ``trailers`` is empty."""

    stream_id: int
    path: bytes
    fields: Fields
    body: bytes
    trailers: Fields


class StreamClosed(msgspec.Struct, frozen=True):
    """A stream is closed at both peers: its last event. Work on it can be cancelled."""

    stream_id: int
    path: bytes
    hooked: bool
    """Whether its request was held, or would have been once complete."""
    outcome: Outcome
    grpc_status: bytes
    """The gRPC status sent to the client; empty if none."""


RelayEvent: TypeAlias = (
    UpstreamNeeded | StreamOpened | RequestData | RequestHeld | RequestTooLarge | ResponseHeld | StreamClosed
)
