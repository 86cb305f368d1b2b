"""Relays the streams of one client to a runtime, and to an image service of its own if there is one.

Each peer has an HTTP/2 connection of its own with us: its own SETTINGS, windows, header tables and stream numbers.
Streams pass as they come, except those whose request is hooked: they are held until the caller releases or refuses
them, and their responses are if the caller asks for it. No stream waits for another. Whatever a peer sends, nothing is
raised: who breaks the rules loses a stream or the connection.

The caller moves bytes (``receive`` and, while a peer takes them, ``outgoing``), handles ``events`` after each call, and
closes what is ``finished``. When an upstream goes away or is lost the client is told to come again on a new connection,
which gets a new relay. Deadlines are the caller's.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Final

from governor.runtimeproxy.http2.connection import Connection, Limits
from governor.runtimeproxy.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError
from governor.runtimeproxy.http2.events import (
    ConnectionEvent,
    DataReceived,
    GoawayReceived,
    HeadersReceived,
    RelayEvent,
    RequestData,
    StreamOpened,
    StreamReset,
    WindowUpdated,
)
from governor.runtimeproxy.http2.exchanges import (
    INTERNAL,
    RESOURCE_EXHAUSTED,
    ExchangeTable,
    completed,
    grpc_status_in,
    other,
)
from governor.runtimeproxy.http2.flow_control import FlowControl
from governor.runtimeproxy.http2.frames import Frame
from governor.runtimeproxy.http2.header_blocks import Fields, FieldValidator
from governor.runtimeproxy.http2.streams import Exchange, Outcome, Peer, Stream

_IMAGE_SERVICE: Final = b"ImageService"
_NOT_AS_LONG: Final = "a request that is not as long as it says"


class Relay:
    """One client's connection and its upstreams. ``hooked`` says of a request's path whether it is to be held."""

    def __init__(
        self,
        hooked: Callable[[bytes], bool],
        *,
        has_image_service: bool = False,
        limits: Limits | None = None,
        total_held: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._hooked = hooked
        self._held_by_all = total_held or (lambda: (self.held_bytes, 1))
        """How many bytes all relays hold, and how many relays there are."""
        self._images_apart = has_image_service
        self._limits = limits or Limits()
        self._rules = FieldValidator()
        self._exchanges = ExchangeTable(self._limits)
        self.tapped = False
        """Whether the caller is told of every stream that is opened, and what is said on those that are not held."""

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._exchanges.streams)

    @property
    def held_bytes(self) -> int:
        """Of held messages, in both directions, until they were written or dropped."""
        return self._exchanges.held_bytes

    def flow_controls(self) -> dict[Peer, FlowControl]:
        """The accounts with each peer."""
        peers = {side: self._exchanges.peer(side) for side in Peer}
        return {side: peer.ledger for side, peer in peers.items() if peer is not None}

    def events(self) -> list[RelayEvent]:
        """What happened since the last call, in order."""
        events, self._exchanges.events = self._exchanges.events, []
        return events

    def attach(self, side: Peer) -> None:
        """The caller is connected to an upstream, of which nothing was read yet."""
        self._exchanges.attach(side)

    def outgoing(self, side: Peer) -> bytes:
        """What is to be written to a peer; take it only when it can be: what is not taken is what limits its sender."""
        peer = self._exchanges.peer(side)
        return b"" if peer is None else peer.writer.outgoing()

    def can_defer(self, side: Peer) -> bool:
        """Whether what is to be written to a peer may as well be written a moment later, with what comes next."""
        peer = self._exchanges.peer(side)
        return peer is not None and peer.writer.can_defer

    def should_close(self, side: Peer) -> bool:
        """Whether the connection with a peer is to be closed, as nothing more is to be said on it.

        A client that has not spoken yet is waited for: it would take the end for a failure to connect.
        """
        board = self._exchanges
        peer = board.peer(side)
        done = board.client.closed or (board.retired and not board.streams and board.client.greeted)
        return peer is not None and not peer.writer.pending and (peer.closed or done)

    def receive(self, side: Peer, data: bytes) -> None:
        """Bytes of a peer."""
        peer = self._exchanges.peer(side)
        if peer is None:
            return
        for frame in peer.cut(data):
            self._read(side, peer, frame)
            if peer.closed:
                break
        peer.check_rest()
        if peer.failure:
            self._leave(side, peer.failure)

    def _read(self, side: Peer, peer: Connection, frame: Frame) -> None:
        try:
            read = peer.read(frame)
            if read is not None:
                self._HANDLERS[type(read)](self, side, read)
        except Http2StreamError as fault:
            self._break(peer, frame[2], fault)
        except Http2ConnectionError as fault:
            peer.fail(fault)

    def lost(self, side: Peer, why: str = "the connection was closed") -> None:
        """A peer is gone, or an upstream that was wanted cannot be reached."""
        peer = self._exchanges.peer(side)
        if peer is not None:
            peer.closed = True
            peer.writer.outgoing()
        self._leave(side, why)

    def drain(self) -> None:
        """Take no more streams; those there are go on to their end."""
        self._exchanges.drain()

    def release(self, stream_id: int, body: bytes | None = None, *, hold_response: bool = False) -> bool:
        """Send a held request on, with another body if one is given. False if it is not held any more."""
        stream = self._exchanges.streams.get(stream_id)
        if stream is None or not (stream.upstream.held and stream.upstream.ending):
            return False
        lane = stream.upstream
        if body is not None:
            self._exchanges.held_bytes += len(body) - lane.size
            lane.replace(body)
            lane.heads[0] = _with_length(lane.heads[0], len(body))
        lane.held = False
        stream.client.held = stream.client.credited = hold_response
        self._exchanges.admit(stream)
        return True

    def release_response(self, stream_id: int) -> bool:
        """Let the client have a held response. False if it is not held any more."""
        stream = self._exchanges.streams.get(stream_id)
        if stream is None or not (stream.client.held and stream.client.ending):
            return False
        stream.client.held = False
        self._exchanges.flush(stream.client)
        return True

    def refuse(self, stream_id: int, status: int, message: str, details: bytes = b"") -> bool:
        """Answer in the upstream's place with a gRPC status. False if the stream is over or was answered."""
        stream = self._exchanges.streams.get(stream_id)
        if stream is None or (stream.client.ending and not stream.client.held):
            return False
        self._exchanges.answer(stream, status, message, details)
        return True

    def _route(self, path: bytes) -> Peer:
        service = path.rpartition(b"/")[0]
        return Peer.IMAGES if self._images_apart and service.endswith(_IMAGE_SERVICE) else Peer.RUNTIME

    def _on_headers(self, _side: Peer, read: HeadersReceived) -> None:
        if read.lane is None:
            self._open(read)
        elif read.lane.got_head:
            self._end(read.lane, read)
        else:
            self._respond(read.lane, read)

    def _open(self, read: HeadersReceived) -> None:
        """A new stream of the client."""
        board = self._exchanges
        if board.client.writer.backlog > self._limits.backlog:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "streams are opened and no answer is read")
        path, length = self._rules.check_request(read.fields)
        if length and read.ended:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, _NOT_AS_LONG)
        if board.retired or len(board.client.lanes) >= self._limits.streams:
            board.client.reset(read.stream, ErrorCode.REFUSED_STREAM)
            return
        stream = Exchange(read.stream, path, self._route(path), hooked=self._hooked(path))
        board.streams[stream.id] = stream
        board.client.open(stream.client, stream.id)
        if self.tapped:
            board.events.append(StreamOpened(stream.id, path, read.fields))
        stream.client.got_head = True
        stream.client.length = length
        stream.upstream.heads.append(read.fields)
        stream.upstream.held = stream.upstream.credited = stream.hooked
        if read.ended:
            stream.client.got_end = stream.upstream.ending = stream.upstream.head_ends = True
        if not stream.hooked:
            board.admit(stream)
        elif read.ended:
            self._hold(stream.upstream)

    def _end(self, lane: Stream, read: HeadersReceived) -> None:
        """Trailers, of a response or of a request."""
        if not read.ended:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "HEADERS within a message")
        self._rules.check_trailers(read.fields)
        if lane.length:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, _NOT_AS_LONG)
        target = other(lane)
        target.tail = read.fields
        if target is lane.stream.client:
            lane.stream.status = grpc_status_in(read.fields)
        self._passed_on(lane, target, ended=True)

    def _respond(self, lane: Stream, read: HeadersReceived) -> None:
        """A response of an upstream, or an interim one."""
        stream = lane.stream
        if self._rules.check_response(read.fields).startswith(b"1"):
            stream.interim += 1
            if read.ended or stream.interim > self._limits.interim_responses:
                raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "interim responses that lead to none")
        else:
            lane.got_head = True
        if read.ended:
            stream.status = grpc_status_in(read.fields)
            stream.client.head_ends = True
        stream.client.heads.append(read.fields)
        self._passed_on(lane, stream.client, ended=read.ended)
        stream.client.sent_head = lane.got_head and not stream.client.held

    def _on_data(self, side: Peer, read: DataReceived) -> None:
        lane, target, size = read.lane, other(read.lane), len(read.payload)
        if not lane.got_head:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "DATA before HEADERS")
        if lane.length is not None:
            lane.length -= size
            if lane.length < 0 or (read.ended and lane.length):
                raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, _NOT_AS_LONG)
        if self.tapped and side is Peer.CLIENT and not target.held:
            self._exchanges.events.append(RequestData(lane.stream.id, bytes(read.payload)))
        if not target.over:
            target.put(read.payload)
        if target.held:
            self._exchanges.held_bytes += size
        if target.held or target.over:
            self._exchanges.credit(lane, size)
        self._passed_on(lane, target, ended=read.ended)
        target.keep()

    def _passed_on(self, lane: Stream, target: Stream, *, ended: bool) -> None:
        """What was read from a lane is in the other: write it, or go on holding it."""
        if ended:
            lane.got_end = True
            target.ending = not target.over
        if target.held:
            self._hold(target)
        elif target.flow is not None and not target.over:
            self._exchanges.flush(target)
        if ended:
            self._exchanges.settle(lane.stream)

    def _hold(self, lane: Stream) -> None:
        if lane.size > self._limits.held_body or self._holds_too_much():
            self._exchanges.answer(lane.stream, RESOURCE_EXHAUSTED, "the message is too large to be held for a hook")
        elif lane.ending:
            self._exchanges.events.append(completed(lane))

    def _holds_too_much(self) -> bool:
        """Relays share what may be held; when it is used up, none may have more than its part."""
        held, relays = self._held_by_all()
        return held > self._limits.held_bodies and self.held_bytes * relays > self._limits.held_bodies

    def _on_reset(self, side: Peer, read: StreamReset) -> None:
        board, lane = self._exchanges, read.lane
        if side is Peer.CLIENT:
            self._count_reset()
            board.give_up(lane.stream, Outcome.CANCELLED, upstream_code=read.code)
            return
        board.close_upstream(lane.stream)
        if lane.got_end:
            board.settle(lane.stream)
        else:
            board.give_up(lane.stream, Outcome.RESET, client_code=read.code)

    def _count_reset(self) -> None:
        self._exchanges.resets += 1
        if self._exchanges.resets > self._limits.resets:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "streams are opened to be cancelled")

    def _on_window(self, side: Peer, read: WindowUpdated) -> None:
        if read.lane is not None:
            self._exchanges.flush(read.lane)
        else:
            self._exchanges.share(side)

    def _on_goaway(self, side: Peer, read: GoawayReceived) -> None:
        if side is Peer.CLIENT:
            self._exchanges.retired = True
        else:
            self._exchanges.let_go(side, read.last)

    def _break(self, peer: Connection, stream_id: int, fault: Http2StreamError) -> None:
        """A peer broke the rules of a stream: it is told, and the other one hears of an end that it understands."""
        board = self._exchanges
        lane = peer.lanes.get(stream_id)
        if lane is None:
            peer.reset(stream_id, fault.code)
        elif peer is board.client:
            board.give_up(lane.stream, Outcome.CANCELLED, client_code=fault.code)
        elif lane.got_end:
            board.close_upstream(lane.stream, fault.code)
            board.settle(lane.stream)
        else:
            board.answer(lane.stream, INTERNAL, f"the runtime's answer: {fault.message}", code=fault.code)

    def _leave(self, side: Peer, why: str) -> None:
        """A peer is gone: its streams are answered or given up."""
        board = self._exchanges
        if side is not Peer.CLIENT:
            board.lose(side, why)
            return
        board.client.closed = board.retired = True
        for stream in list(board.streams.values()):
            board.give_up(stream, Outcome.CANCELLED)

    _HANDLERS: ClassVar[dict[type[ConnectionEvent], Callable[["Relay", Peer, Any], None]]] = {
        HeadersReceived: _on_headers,
        DataReceived: _on_data,
        StreamReset: _on_reset,
        WindowUpdated: _on_window,
        GoawayReceived: _on_goaway,
    }


def _with_length(fields: Fields, length: int) -> Fields:
    """The same fields for a body of another length; gRPC seldom declares one."""
    return [(name, b"%d" % length if name == b"content-length" else value) for name, value in fields]
