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

from governor.runtimeproxy.http2 import answers
from governor.runtimeproxy.http2.blocks import FieldRules
from governor.runtimeproxy.http2.connection import Connection
from governor.runtimeproxy.http2.errors import Code, ConnectionFault, StreamFault
from governor.runtimeproxy.http2.events import Event, Opened, Said
from governor.runtimeproxy.http2.flow_control import Ledger
from governor.runtimeproxy.http2.frames import Frame
from governor.runtimeproxy.http2.limits import Limits
from governor.runtimeproxy.http2.reads import DataRead, GoawayRead, HeadersRead, Read, ResetRead, WindowRead
from governor.runtimeproxy.http2.streams import Lane, Outcome, Side, Stream
from governor.runtimeproxy.http2.switchboard import Switchboard, completed, other

_IMAGE_SERVICE: Final = b"ImageService"
_NOT_AS_LONG: Final = "a request that is not as long as it says"


class Relay:
    """One client's connection and its upstreams. ``hooked`` says of a request's path whether it is to be held."""

    def __init__(
        self,
        hooked: Callable[[bytes], bool],
        *,
        images_apart: bool = False,
        limits: Limits | None = None,
        held_by_all: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._hooked = hooked
        self._held_by_all = held_by_all or (lambda: (self.held_bytes, 1))
        """How many bytes all relays hold, and how many relays there are."""
        self._images_apart = images_apart
        self._limits = limits or Limits()
        self._rules = FieldRules()
        self._board = Switchboard(self._limits)
        self.watched = False
        """Whether the caller is told of every stream that is opened, and what is said on those that are not held."""

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._board.streams)

    @property
    def held_bytes(self) -> int:
        """Of held messages, in both directions, until they were written or dropped."""
        return self._board.held_bytes

    def ledgers(self) -> dict[Side, Ledger]:
        """The accounts with each peer."""
        peers = {side: self._board.peer(side) for side in Side}
        return {side: peer.ledger for side, peer in peers.items() if peer is not None}

    def events(self) -> list[Event]:
        """What happened since the last call, in order."""
        events, self._board.events = self._board.events, []
        return events

    def attach(self, side: Side) -> None:
        """The caller is connected to an upstream, of which nothing was read yet."""
        self._board.attach(side)

    def outgoing(self, side: Side) -> bytes:
        """What is to be written to a peer; take it only when it can be: what is not taken is what limits its sender."""
        peer = self._board.peer(side)
        return b"" if peer is None else peer.writer.outgoing()

    def can_wait(self, side: Side) -> bool:
        """Whether what is to be written to a peer may as well be written a moment later, with what comes next."""
        peer = self._board.peer(side)
        return peer is not None and peer.writer.can_wait

    def finished(self, side: Side) -> bool:
        """Whether the connection with a peer is to be closed, as nothing more is to be said on it.

        A client that has not spoken yet is waited for: it would take the end for a failure to connect.
        """
        board = self._board
        peer = board.peer(side)
        done = board.client.closed or (board.retired and not board.streams and board.client.greeted)
        return peer is not None and not peer.writer.pending and (peer.closed or done)

    def receive(self, side: Side, data: bytes) -> None:
        """Bytes of a peer."""
        peer = self._board.peer(side)
        if peer is None:
            return
        for frame in peer.cut(data):
            self._read(side, peer, frame)
            if peer.closed:
                break
        peer.check_rest()
        if peer.failure:
            self._leave(side, peer.failure)

    def _read(self, side: Side, peer: Connection, frame: Frame) -> None:
        try:
            read = peer.read(frame)
            if read is not None:
                self._HANDLERS[type(read)](self, side, read)
        except StreamFault as fault:
            self._break(peer, frame[2], fault)
        except ConnectionFault as fault:
            peer.fail(fault)

    def lost(self, side: Side, why: str = "the connection was closed") -> None:
        """A peer is gone, or an upstream that was wanted cannot be reached."""
        peer = self._board.peer(side)
        if peer is not None:
            peer.closed = True
            peer.writer.outgoing()
        self._leave(side, why)

    def retire(self) -> None:
        """Take no more streams; those there are go on to their end."""
        self._board.retire()

    def release(self, stream_id: int, body: bytes | None = None, *, hold_response: bool = False) -> bool:
        """Send a held request on, with another body if one is given. False if it is not held any more."""
        stream = self._board.streams.get(stream_id)
        if stream is None or not (stream.upstream.held and stream.upstream.ending):
            return False
        lane = stream.upstream
        if body is not None:
            self._board.held_bytes += len(body) - lane.size
            lane.replace(body)
            lane.heads[0] = answers.with_length(lane.heads[0], len(body))
        lane.held = False
        stream.client.held = stream.client.credited = hold_response
        self._board.admit(stream)
        return True

    def release_response(self, stream_id: int) -> bool:
        """Let the client have a held response. False if it is not held any more."""
        stream = self._board.streams.get(stream_id)
        if stream is None or not (stream.client.held and stream.client.ending):
            return False
        stream.client.held = False
        self._board.flush(stream.client)
        return True

    def refuse(self, stream_id: int, status: int, message: str, details: bytes = b"") -> bool:
        """Answer in the upstream's place with a gRPC status. False if the stream is over or was answered."""
        stream = self._board.streams.get(stream_id)
        if stream is None or (stream.client.ending and not stream.client.held):
            return False
        self._board.answer(stream, status, message, details)
        return True

    def _route(self, path: bytes) -> Side:
        service = path.rpartition(b"/")[0]
        return Side.IMAGES if self._images_apart and service.endswith(_IMAGE_SERVICE) else Side.RUNTIME

    def _on_headers(self, _side: Side, read: HeadersRead) -> None:
        if read.lane is None:
            self._open(read)
        elif read.lane.got_head:
            self._end(read.lane, read)
        else:
            self._respond(read.lane, read)

    def _open(self, read: HeadersRead) -> None:
        """A new stream of the client."""
        board = self._board
        if board.client.writer.backlog > self._limits.backlog:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "streams are opened and no answer is read")
        path, length = self._rules.check_request(read.fields)
        if length and read.ended:
            raise StreamFault(Code.PROTOCOL_ERROR, _NOT_AS_LONG)
        if board.retired or len(board.client.lanes) >= self._limits.streams:
            board.client.reset(read.stream, Code.REFUSED_STREAM)
            return
        stream = Stream(read.stream, path, self._route(path), hooked=self._hooked(path))
        board.streams[stream.id] = stream
        board.client.open(stream.client, stream.id)
        if self.watched:
            board.events.append(Opened(stream.id, path, read.fields))
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

    def _end(self, lane: Lane, read: HeadersRead) -> None:
        """Trailers, of a response or of a request."""
        if not read.ended:
            raise StreamFault(Code.PROTOCOL_ERROR, "HEADERS within a message")
        self._rules.check_trailers(read.fields)
        if lane.length:
            raise StreamFault(Code.PROTOCOL_ERROR, _NOT_AS_LONG)
        target = other(lane)
        target.tail = read.fields
        if target is lane.stream.client:
            lane.stream.status = answers.status_in(read.fields)
        self._passed_on(lane, target, ended=True)

    def _respond(self, lane: Lane, read: HeadersRead) -> None:
        """A response of an upstream, or an interim one."""
        stream = lane.stream
        if self._rules.check_response(read.fields).startswith(b"1"):
            stream.interim += 1
            if read.ended or stream.interim > self._limits.interim_responses:
                raise StreamFault(Code.PROTOCOL_ERROR, "interim responses that lead to none")
        else:
            lane.got_head = True
        if read.ended:
            stream.status = answers.status_in(read.fields)
            stream.client.head_ends = True
        stream.client.heads.append(read.fields)
        self._passed_on(lane, stream.client, ended=read.ended)
        stream.client.sent_head = lane.got_head and not stream.client.held

    def _on_data(self, side: Side, read: DataRead) -> None:
        lane, target, size = read.lane, other(read.lane), len(read.payload)
        if not lane.got_head:
            raise StreamFault(Code.PROTOCOL_ERROR, "DATA before HEADERS")
        if lane.length is not None:
            lane.length -= size
            if lane.length < 0 or (read.ended and lane.length):
                raise StreamFault(Code.PROTOCOL_ERROR, _NOT_AS_LONG)
        if self.watched and side is Side.CLIENT and not target.held:
            self._board.events.append(Said(lane.stream.id, bytes(read.payload)))
        if not target.over:
            target.put(read.payload)
        if target.held:
            self._board.held_bytes += size
        if target.held or target.over:
            self._board.credit(lane, size)
        self._passed_on(lane, target, ended=read.ended)
        target.keep()

    def _passed_on(self, lane: Lane, target: Lane, *, ended: bool) -> None:
        """What was read from a lane is in the other: write it, or go on holding it."""
        if ended:
            lane.got_end = True
            target.ending = not target.over
        if target.held:
            self._hold(target)
        elif target.flow is not None and not target.over:
            self._board.flush(target)
        if ended:
            self._board.settle(lane.stream)

    def _hold(self, lane: Lane) -> None:
        if lane.size > self._limits.held_body or self._holds_too_much():
            self._board.answer(
                lane.stream, answers.RESOURCE_EXHAUSTED, "the message is too large to be held for a hook"
            )
        elif lane.ending:
            self._board.events.append(completed(lane))

    def _holds_too_much(self) -> bool:
        """Relays share what may be held; when it is used up, none may have more than its part."""
        held, relays = self._held_by_all()
        return held > self._limits.held_bodies and self.held_bytes * relays > self._limits.held_bodies

    def _on_reset(self, side: Side, read: ResetRead) -> None:
        board, lane = self._board, read.lane
        if side is Side.CLIENT:
            self._count_reset()
            board.give_up(lane.stream, Outcome.CANCELLED, upstream_code=read.code)
            return
        board.close_upstream(lane.stream)
        if lane.got_end:
            board.settle(lane.stream)
        else:
            board.give_up(lane.stream, Outcome.RESET, client_code=read.code)

    def _count_reset(self) -> None:
        self._board.resets += 1
        if self._board.resets > self._limits.resets:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "streams are opened to be cancelled")

    def _on_window(self, side: Side, read: WindowRead) -> None:
        if read.lane is not None:
            self._board.flush(read.lane)
        else:
            self._board.share(side)

    def _on_goaway(self, side: Side, read: GoawayRead) -> None:
        if side is Side.CLIENT:
            self._board.retired = True
        else:
            self._board.let_go(side, read.last)

    def _break(self, peer: Connection, stream_id: int, fault: StreamFault) -> None:
        """A peer broke the rules of a stream: it is told, and the other one hears of an end that it understands."""
        board = self._board
        lane = peer.lanes.get(stream_id)
        if lane is None:
            peer.reset(stream_id, fault.code)
        elif peer is board.client:
            board.give_up(lane.stream, Outcome.CANCELLED, client_code=fault.code)
        elif lane.got_end:
            board.close_upstream(lane.stream, fault.code)
            board.settle(lane.stream)
        else:
            board.answer(lane.stream, answers.INTERNAL, f"the runtime's answer: {fault.message}", code=fault.code)

    def _leave(self, side: Side, why: str) -> None:
        """A peer is gone: its streams are answered or given up."""
        board = self._board
        if side is not Side.CLIENT:
            board.lose(side, why)
            return
        board.client.closed = board.retired = True
        for stream in list(board.streams.values()):
            board.give_up(stream, Outcome.CANCELLED)

    _HANDLERS: ClassVar[dict[type[Read], Callable[["Relay", Side, Any], None]]] = {
        HeadersRead: _on_headers,
        DataRead: _on_data,
        ResetRead: _on_reset,
        WindowRead: _on_window,
        GoawayRead: _on_goaway,
    }
