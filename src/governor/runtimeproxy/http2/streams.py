"""State of one HTTP/2 stream, and of a relayed exchange, which pairs a client stream with an upstream stream.

What is received on one stream of an exchange is enqueued on the other; a held stream keeps it. Frames and decisions
are elsewhere.
"""

import enum
from collections import deque
from typing import Final

from governor.runtimeproxy.http2.flow_control import StreamWindows
from governor.runtimeproxy.http2.frames import Payload
from governor.runtimeproxy.http2.header_blocks import Fields

_MERGED_CHUNK_BYTES: Final = 4096


class Peer(enum.IntEnum):
    """The peers of a relay: the client, the runtime, and the image service if it has its own socket."""

    CLIENT = 0
    RUNTIME = 1
    IMAGES = 2


class Stream:
    """One stream of one connection: its send queue, and how far each direction is closed."""

    __slots__ = (
        "buffered_bytes",
        "closed",
        "content_remaining",
        "credited_bytes",
        "end_on_headers",
        "end_queued",
        "end_received",
        "end_sent",
        "exchange",
        "headers_received",
        "headers_sent",
        "held",
        "held_bytes",
        "id",
        "is_waiting",
        "queued_data",
        "queued_headers",
        "queued_trailers",
        "reserved_bytes",
        "windows",
    )

    def __init__(self, exchange: "Exchange") -> None:
        self.exchange = exchange
        self.id = 0
        self.windows: StreamWindows | None = None
        self.held = False
        self.queued_headers: list[Fields] = []
        """Interim responses, if any, and the header section."""
        self.queued_data: deque[Payload] = deque()
        self.queued_trailers: Fields | None = None
        self.end_on_headers = False
        """END_STREAM was received on HEADERS and is sent so: peers distinguish it from an empty DATA frame."""
        self.end_queued = False
        """END_STREAM follows what is queued."""
        self.buffered_bytes = 0
        """Size of the queued DATA."""
        self.credited_bytes = 0
        """How much of the queued DATA, from its start, its sender already got credit for: what is or was held."""
        self.held_bytes = 0
        """How much of the queued DATA, from its start, counts as held."""
        self.reserved_bytes = 0
        """Size for which memory is reserved."""
        self.is_waiting = False
        """Memory for the message is not reserved yet, or it is too large: its sender gets no credit."""
        self.content_remaining: int | None = None
        """Bytes of DATA still to be received according to content-length, if the peer sent one."""
        self.headers_received = False
        self.end_received = False
        self.headers_sent = False
        self.end_sent = False
        self.closed = False

    def enqueue(self, payload: Payload) -> None:
        """Queue DATA. Flush it, or call ``own_last_chunk``, before the buffer that it is a view of is released."""
        if payload:
            self.queued_data.append(payload)
            self.buffered_bytes += len(payload)

    def own_last_chunk(self) -> None:
        """Copy the last chunk, as a view keeps the whole read buffer alive, and merge small chunks."""
        if not self.queued_data:
            return
        last = bytes(self.queued_data.pop())
        if self.queued_data and len(self.queued_data[-1]) + len(last) <= _MERGED_CHUNK_BYTES:
            last = b"".join((self.queued_data.pop(), last))
        self.queued_data.append(last)

    def first_bytes(self, size: int) -> bytes:
        """Return the first bytes of the queued DATA."""
        first = bytes(self.queued_data[0][:size]) if self.queued_data else b""
        if len(first) < size and self.buffered_bytes > len(first):
            first = b"".join(self.queued_data)[:size]
        return first

    def queued_body(self) -> bytes:
        """Return all queued DATA, which stays queued."""
        body = b"".join(self.queued_data)
        self.replace_body(body)
        return body

    def replace_body(self, body: bytes) -> None:
        """Queue ``body`` in place of the queued DATA."""
        self.queued_data.clear()
        self.buffered_bytes = 0
        self.enqueue(body)

    def clear(self) -> None:
        """Drop everything queued."""
        self.queued_headers.clear()
        self.end_on_headers = False
        self.queued_data.clear()
        self.buffered_bytes = 0
        self.queued_trailers = None
        self.end_queued = False
        self.held = False


class Outcome(enum.Enum):
    """How an exchange ended."""

    COMPLETED = "completed"
    """The client received the upstream's whole response, whatever its status."""
    CANCELLED = "cancelled"
    """The client reset the stream or disconnected."""
    RESET = "reset"
    """The upstream reset or refused the stream."""
    REFUSED = "refused"
    """The proxy responded in place of the upstream."""


class Exchange:
    """A request and its response; identified by the client's stream id."""

    __slots__ = (
        "client",
        "grpc_status",
        "hooked",
        "id",
        "interim_responses",
        "outcome",
        "path",
        "upstream",
        "upstream_peer",
    )

    def __init__(self, stream_id: int, path: bytes, upstream_peer: Peer, *, hooked: bool) -> None:
        self.id = stream_id
        self.path = path
        self.upstream_peer = upstream_peer
        self.hooked = hooked
        self.client = Stream(self)
        self.upstream = Stream(self)
        self.interim_responses = 0
        self.outcome = Outcome.COMPLETED
        self.grpc_status = b""
        """The gRPC status sent to the client, once known."""
