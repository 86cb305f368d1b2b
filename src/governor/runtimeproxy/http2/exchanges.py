"""Opens, writes and ends relayed streams at both of their connections, and remembers what is to be told of it.

What a peer's frames or the caller's commands mean is ``relay``'s.
"""

import base64
import re
from typing import Final

from governor.runtimeproxy.http2.connection import Connection, Limits
from governor.runtimeproxy.http2.errors import ErrorCode
from governor.runtimeproxy.http2.events import RelayEvent, RequestHeld, ResponseHeld, StreamClosed, UpstreamNeeded
from governor.runtimeproxy.http2.frames import LARGEST_STREAM
from governor.runtimeproxy.http2.header_blocks import Fields
from governor.runtimeproxy.http2.streams import Exchange, Outcome, Peer, Stream

RESOURCE_EXHAUSTED: Final = 8
INTERNAL: Final = 13
UNAVAILABLE: Final = 14

_ENCODED: Final = re.compile(rb"[^ -$&-~]")
_NAMES: Final = {Peer.RUNTIME: "runtime", Peer.IMAGES: "image service"}


class ExchangeTable:
    """The streams of one client and the connections between which they pass."""

    def __init__(self, limits: Limits) -> None:
        self.client = Connection(limits, serving=True)
        self.upstreams: dict[Peer, Connection] = {}
        self.streams: dict[int, Exchange] = {}
        self.events: list[RelayEvent] = []
        self.retired = False
        """The client opens no more streams."""
        self.held_bytes = 0
        """Of held messages, until they were written or dropped."""
        self.resets = 0
        """Streams that the client cancelled, less those that were completed."""
        self._limits = limits
        self._lost: dict[Peer, str] = {}
        self._leaving: set[Peer] = set()
        self._queues: dict[Peer, dict[int, Exchange]] = {}

    def peer(self, side: Peer) -> Connection | None:
        """The connection with a peer, if there is one."""
        return self.client if side is Peer.CLIENT else self.upstreams.get(side)

    def attach(self, side: Peer) -> None:
        """There is a connection with an upstream."""
        self.upstreams[side] = Connection(self._limits, serving=False)
        self._admit_queued(side)

    def drain(self) -> None:
        """Tell the client that no more streams are taken."""
        if not self.retired:
            self.retired = True
            self.client.goaway()

    def lose(self, side: Peer, why: str) -> None:
        """An upstream is gone: its streams are answered, and the client is to come again."""
        self._lost[side] = f"the {_NAMES[side]} is not available: {why}"
        for stream in self._streams_of(side):
            self._miss(stream)
        self.drain()

    def let_go(self, side: Peer, last: int) -> None:
        """An upstream takes no streams after ``last``: what it did not begin the client can try again elsewhere."""
        self._leaving.add(side)
        for stream in self._streams_of(side):
            if stream.upstream.id > last or stream.id in self._queues.get(side, ()):
                self.close_upstream(stream)
                self.give_up(stream, Outcome.RESET, client_code=ErrorCode.REFUSED_STREAM)
        self.drain()

    def _streams_of(self, side: Peer) -> list[Exchange]:
        """Those for which an upstream still has to do something."""
        return [stream for stream in self.streams.values() if stream.side is side and not stream.upstream.over]

    def _miss(self, stream: Exchange) -> None:
        """The upstream of a stream is gone; what it answered in full stays."""
        if stream.upstream.got_end:
            self.close_upstream(stream)
            self.settle(stream)
        else:
            self.answer(stream, UNAVAILABLE, self._lost[stream.side])

    def admit(self, stream: Exchange) -> None:
        """Begin a stream at its upstream, or let it wait for its turn."""
        side = stream.side
        peer = self.upstreams.get(side)
        if side in self._lost:
            self.answer(stream, UNAVAILABLE, self._lost[side])
        elif side in self._leaving:
            self.give_up(stream, Outcome.RESET, client_code=ErrorCode.REFUSED_STREAM)
        elif peer is None or not peer.room:
            self._queue(stream, wanted=peer is None)
        elif peer.writer.backlog > self._limits.backlog:
            self.answer(stream, UNAVAILABLE, f"the {_NAMES[side]} does not read")
        else:
            peer.open(stream.upstream, peer.last + 2)
            if peer.last + 2 > LARGEST_STREAM:
                self._leaving.add(side)
                self.drain()
            self.flush(stream.upstream)

    def _queue(self, stream: Exchange, *, wanted: bool) -> None:
        if wanted and stream.side not in self._queues:
            self.events.append(UpstreamNeeded(stream.side))
        self._queues.setdefault(stream.side, {})[stream.id] = stream

    def _admit_queued(self, side: Peer) -> None:
        queue = self._queues.get(side)
        peer = self.upstreams[side]
        while queue and peer.room:
            self.admit(queue.pop(next(iter(queue))))

    def share(self, side: Peer) -> None:
        """A peer lets more be written, and perhaps more streams be opened."""
        peer = self.peer(side)
        for lane, written in peer.writer.share() if peer is not None else ():
            self._account(lane, written)
        if side is not Peer.CLIENT:
            self._admit_queued(side)

    def flush(self, lane: Stream) -> None:
        """Write what waits in a lane, as far as it may be."""
        self._account(lane, self._peer_of(lane).writer.flush(lane))

    def credit(self, lane: Stream, size: int) -> None:
        """So much of what was read from a lane needs no room any more."""
        self._peer_of(lane).credit(lane, size)

    def _peer_of(self, lane: Stream) -> Connection:
        stream = lane.stream
        return self.client if lane is stream.client else self.upstreams[stream.side]

    def _account(self, lane: Stream, written: int) -> None:
        """So much DATA of a lane was written: who sent it may send more."""
        if lane.credited:
            self.held_bytes -= written
        elif written:
            self.credit(other(lane), written)
        if lane.sent_end:
            self.settle(lane.stream)

    def settle(self, stream: Exchange) -> None:
        """Close what both directions are done with."""
        client, upstream = stream.client, stream.upstream
        if upstream.sent_end and upstream.got_end:
            self.close_upstream(stream)
        if client.sent_end and (client.got_end or upstream.over):
            self._close_client(stream, None if client.got_end else ErrorCode.NO_ERROR)
        if client.over and upstream.over:
            self._finish(stream)

    def answer(
        self, stream: Exchange, status: int, message: str, details: bytes = b"", *, code: int = ErrorCode.CANCEL
    ) -> None:
        """End a response with a status of ours, after what of it was passed on."""
        client = stream.client
        stream.outcome = Outcome.REFUSED
        stream.status = b"%d" % status
        self.close_upstream(stream, code)
        if client.held:
            self._forget(client)
        if client.sent_head:
            client.tail = trailers(status, message, details)
        else:
            client.heads.append(trailers_only(status, message, details))
            client.head_ends = True
        client.ending = True
        self.flush(client)

    def give_up(
        self,
        stream: Exchange,
        outcome: Outcome,
        *,
        client_code: int | None = None,
        upstream_code: int = ErrorCode.CANCEL,
    ) -> None:
        """End a stream at once at both peers."""
        stream.outcome = outcome
        self.close_upstream(stream, upstream_code)
        self._close_client(stream, client_code)
        self._finish(stream)

    def _close_client(self, stream: Exchange, code: int | None) -> None:
        lane = stream.client
        if lane.over:
            return
        if code is not None:
            self.client.reset(lane.id, code)
        self._forget(lane)
        self.client.close(lane)

    def close_upstream(self, stream: Exchange, code: int | None = None) -> None:
        """The stream is over for its upstream, which is told if it does not know and had begun."""
        lane = stream.upstream
        if lane.over:
            return
        self._forget(lane)
        lane.over = True
        self._queues.get(stream.side, {}).pop(stream.id, None)
        if lane.flow is None:
            return
        peer = self.upstreams[stream.side]
        if code is not None and not peer.closed:
            peer.reset(lane.id, code)
        peer.close(lane)
        if not peer.closed:
            self._admit_queued(stream.side)

    def _forget(self, lane: Stream) -> None:
        if lane.credited:
            self.held_bytes -= lane.size
        lane.clear()

    def _finish(self, stream: Exchange) -> None:
        if self.streams.pop(stream.id, None) is None:
            return
        if stream.outcome is Outcome.COMPLETED:
            self.resets = max(0, self.resets - 1)
        self.events.append(StreamClosed(stream.id, stream.path, stream.hooked, stream.outcome, stream.status))


def completed(lane: Stream) -> RelayEvent:
    """A held message is complete."""
    stream = lane.stream
    if lane is stream.upstream:
        return RequestHeld(stream.id, stream.path, lane.heads[0], lane.joined())
    return ResponseHeld(stream.id, stream.path, lane.heads[-1], lane.joined(), lane.tail or [])


def other(lane: Stream) -> Stream:
    """The lane at the other end of the same stream."""
    stream = lane.stream
    return stream.upstream if lane is stream.client else stream.client


def trailers(status: int, message: str, details: bytes = b"") -> Fields:
    """The fields that end a response which has begun."""
    text = _ENCODED.sub(lambda found: b"%%%02X" % found[0][0], message.encode(errors="replace"))
    fields = [(b"grpc-status", b"%d" % status), (b"grpc-message", text)]
    if details:
        fields.append((b"grpc-status-details-bin", base64.b64encode(details).rstrip(b"=")))
    return fields


def trailers_only(status: int, message: str, details: bytes = b"") -> Fields:
    """The fields that are a whole response."""
    return [(b":status", b"200"), (b"content-type", b"application/grpc"), *trailers(status, message, details)]


def grpc_status_in(fields: Fields) -> bytes:
    """The gRPC status of a response's last fields, empty if it has none."""
    for name, value in fields:
        if name == b"grpc-status":
            return value
    return b""
