"""Unary gRPC calls over one Unix socket: a kept connection, made anew at once when the server was restarted.

For plugins, and for what we ask the runtime ourselves. No streaming, no load balancing, no waiting between attempts.
HTTP/2 is ``http2.connection``'s, as for relayed calls.
"""

import asyncio
import contextlib
import urllib.parse
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, cast

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.grpc import status_codes
from governor.runtimeproxy.grpc.deadlines import timeout_header
from governor.runtimeproxy.grpc.framing import MESSAGE_LIMIT_BYTES, unwrap, wrap
from governor.runtimeproxy.http2.connection import Connection, Limits
from governor.runtimeproxy.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError
from governor.runtimeproxy.http2.events import (
    ConnectionEvent,
    DataReceived,
    GoawayReceived,
    HeadersReceived,
    StreamReset,
    WindowUpdated,
)
from governor.runtimeproxy.http2.frames import LARGEST_STREAM, Frame
from governor.runtimeproxy.http2.header_blocks import Fields
from governor.runtimeproxy.http2.streams import Exchange, Peer, Stream
from governor.runtimeproxy.http2.writer import COALESCE_DELAY_S

Metadata = Sequence[tuple[bytes, bytes]]

_LIMITS: Final = Limits(stream_window=1024 * 1024, connection_window=1024 * 1024, header_list=64 * 1024)
_NO_RELAY: Final = Exchange(0, b"", Peer.RUNTIME, hooked=False)
"""The stream of lanes that nothing is relayed to."""
_BODY_LIMIT_BYTES: Final = MESSAGE_LIMIT_BYTES + 64 * 1024


class UnaryClient:
    """Calls methods of the server at ``path``; ``name`` names it for people."""

    def __init__(self, path: str, name: str) -> None:
        self._path = path
        self._name = name
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    @property
    def connected(self) -> bool:
        """Whether the connection of the last call is still there."""
        return self._connection is not None and self._connection.usable

    def close(self) -> None:
        """Let go of the connection; calls that are under way fail."""
        if self._connection is not None:
            self._connection.close()

    async def call(self, method: str, message: bytes, *, timeout_s: float, metadata: Metadata = ()) -> bytes:
        """The answer; UNAVAILABLE or DEADLINE if there is none, otherwise of the kind that the server's status has."""
        headers, body = _headers(method, timeout_s, metadata), wrap(message)
        until = asyncio.get_running_loop().time() + timeout_s
        try:
            if self._connection is not None and self._connection.usable:
                # It may end just before the call is written to it: then nobody heard of it.
                with contextlib.suppress(_GoneError):
                    return await self._connection.call(headers, body, until)
            async with asyncio.timeout_at(until):
                connection = await self._connected()
            return await connection.call(headers, body, until)
        except TimeoutError as error:
            message_ = f"{self._name} did not answer within {timeout_s:.3g} s"
            raise GovernorError(Kind.DEADLINE, "no-answer", message_) from error
        except _GoneError as error:
            message_ = f"{self._name} ended the connection without an answer: {error}"
            raise GovernorError(Kind.UNAVAILABLE, "connection-lost", message_) from error

    async def _connected(self) -> "_Connection":
        async with self._connecting:
            if self._connection is None or not self._connection.usable:
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> "_Connection":
        try:
            loop = asyncio.get_running_loop()
            _, made = await loop.create_unix_connection(lambda: _Connection(self._name), self._path)
        except OSError as error:
            message = f"{self._name} cannot be reached at {self._path}: {error.strerror or error}"
            raise GovernorError(Kind.UNAVAILABLE, "unreachable", message) from error
        return made


def _headers(method: str, timeout_s: float, metadata: Metadata) -> Fields:
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", method.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"grpc-timeout", timeout_header(timeout_s)),
        (b"user-agent", b"runtime-governor"),
        *metadata,
    ]


class _GoneError(Exception):
    """The connection ended before the server had answered anything."""


class _Call:
    """One call: the lane on which it is sent, and what came."""

    __slots__ = ("answer", "body", "fields", "lane")

    def __init__(self, headers: Fields, body: bytes, answer: "asyncio.Future[None]") -> None:
        self.lane = Stream(_NO_RELAY)
        self.lane.heads.append(headers)
        self.lane.put(body)
        self.lane.ending = True
        self.body = bytearray()
        self.fields: Mapping[bytes, bytes] = {}
        """Those of the response, and its trailers."""
        self.answer = answer

    def take_headers(self, read: HeadersReceived) -> None:
        fields = dict(read.fields)
        if self.lane.got_head:
            if not read.ended:
                raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "HEADERS within a message")
            self.fields = {**self.fields, **fields}
        else:
            self.lane.got_head = not fields.get(b":status", b"").startswith(b"1")
            self.fields = fields

    def succeed(self) -> None:
        if not self.answer.done():
            self.answer.set_result(None)

    def fail(self, error: Exception) -> None:
        """Without effect after a whole answer: a server may reset the stream, or go, right behind it."""
        if not self.answer.done():
            # The error, and with it what knows this exchange, lives until garbage is collected, which may take minutes.
            self.body.clear()
            self.answer.set_exception(error)


class _Connection(asyncio.Protocol):
    """One HTTP/2 connection. A call waits until the server has said how many it takes at once, and for its turn."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._transport: asyncio.Transport | None = None
        self._peer = Connection(_LIMITS, serving=False)
        self._waiting: deque[_Call] = deque()
        self._exchanges: dict[int, _Call] = {}
        self._leaving = False
        self._flushing = False
        """Flushing is due."""
        self._late_due = False

    @property
    def usable(self) -> bool:
        """Whether it takes another call."""
        return self._transport is not None and not self._leaving and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail_all(_GoneError(str(exc or "closed")))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def call(self, headers: Fields, body: bytes, until: float) -> bytes:
        if not self.usable:
            raise _GoneError("closed")
        loop = asyncio.get_running_loop()
        exchange = _Call(headers, body, loop.create_future())
        self._waiting.append(exchange)
        self._flush_soon()
        # Cheaper than a timeout of asyncio, which must be able to break off anything.
        timer = loop.call_at(until, exchange.fail, TimeoutError())
        try:
            await exchange.answer
        finally:
            timer.cancel()
            self._end(exchange)
        return self._answer(exchange)

    def _end(self, exchange: _Call) -> None:
        """The call is over; if the server does not know yet, nobody waits for it any more."""
        lane = exchange.lane
        if self._exchanges.pop(lane.id, None) is None:
            if exchange in self._waiting:
                self._waiting.remove(exchange)
            return
        if not (lane.got_end and lane.sent_end):
            self._peer.reset(lane.id, ErrorCode.CANCEL)
        self._peer.close(lane)
        if self._waiting or self._leaving or (self._peer.writer.pending and not self._peer.writer.can_defer):
            self._flush_soon()

    def _flush_soon(self) -> None:
        """Flush, with several calls when all that is ready now has been done: what begins together is one write."""
        if len(self._waiting) + len(self._exchanges) <= 1:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush_later(self) -> None:
        if not self._late_due:
            self._late_due = True
            asyncio.get_running_loop().call_later(COALESCE_DELAY_S, self._flush_late)

    def _flush_late(self) -> None:
        self._late_due = False
        self._flush()

    def _flush(self) -> None:
        """Begin calls whose turn it is, write, and close when there is nothing left to be said."""
        self._flushing = False
        while self._waiting and self._peer.room and not self._leaving:
            self._begin(self._waiting.popleft())
        if self._leaving:
            for exchange in self._waiting:
                exchange.fail(_GoneError("the server goes away"))
        data = self._peer.writer.outgoing()
        if self._transport is not None:
            if data:
                self._transport.write(data)
            if self._leaving and not self._exchanges:
                self._transport.close()

    def _begin(self, exchange: _Call) -> None:
        peer = self._peer
        peer.open(exchange.lane, peer.last + 2)
        self._leaving = peer.last + 2 > LARGEST_STREAM
        self._exchanges[exchange.lane.id] = exchange
        peer.writer.flush(exchange.lane)

    def data_received(self, data: bytes) -> None:
        for frame in self._peer.cut(data):
            self._read(frame)
        self._peer.check_rest()
        if self._peer.failure:
            self._leaving = True
            message = f"{self._name} does not speak HTTP/2: {self._peer.failure}"
            self._fail_all(GovernorError(Kind.INTERNAL, "http2", message))
        if self._peer.writer.can_defer and not (self._waiting or self._leaving):
            self._flush_later()
        else:
            self._flush()

    def _read(self, frame: Frame) -> None:
        try:
            read = self._peer.read(frame)
            if read is not None:
                self._handle(read)
        except Http2StreamError as fault:
            if exchange := self._exchanges.get(frame[2]):
                message = f"{self._name} does not speak HTTP/2: {fault.message}"
                exchange.fail(GovernorError(Kind.INTERNAL, "http2", message))
        except Http2ConnectionError as fault:
            self._peer.fail(fault)

    def _handle(self, read: ConnectionEvent) -> None:
        match read:
            case HeadersReceived(lane=Stream() as lane):
                self._exchanges[lane.id].take_headers(read)
                self._passed(lane, ended=read.ended)
            case DataReceived():
                self._data(self._exchanges[read.lane.id], read)
            case WindowUpdated(lane=None):
                for _ in self._peer.writer.share():
                    pass
            case WindowUpdated(lane=Stream() as lane):
                self._peer.writer.flush(lane)
            case StreamReset():
                self._reset(self._exchanges[read.lane.id], read.code)
            case GoawayReceived():
                self._goaway(read.last)

    def _data(self, exchange: _Call, read: DataReceived) -> None:
        if not exchange.lane.got_head:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "DATA before HEADERS")
        exchange.body += read.payload
        self._peer.credit(read.lane, len(read.payload))
        if len(exchange.body) > _BODY_LIMIT_BYTES:
            message = f"{self._name} answered with more than {MESSAGE_LIMIT_BYTES} bytes"
            exchange.fail(GovernorError(Kind.EXHAUSTED, "answer-size", message))
        self._passed(read.lane, ended=read.ended)

    def _passed(self, lane: Stream, *, ended: bool) -> None:
        if ended:
            lane.got_end = True
            self._exchanges[lane.id].succeed()

    def _reset(self, exchange: _Call, code: int) -> None:
        exchange.lane.got_end = exchange.lane.sent_end = True
        if code == ErrorCode.REFUSED_STREAM:
            exchange.fail(_GoneError("refused"))
        else:
            message = f"{self._name} broke off the call with code {code}"
            exchange.fail(GovernorError(Kind.UNAVAILABLE, "call-reset", message))

    def _goaway(self, last: int) -> None:
        self._leaving = True
        for stream, exchange in self._exchanges.items():
            if stream > last:
                exchange.fail(_GoneError("the server goes away"))

    def _fail_all(self, error: Exception) -> None:
        for exchange in [*self._waiting, *self._exchanges.values()]:
            exchange.fail(error)

    def _answer(self, exchange: _Call) -> bytes:
        fields = exchange.fields
        if fields.get(b":status") != b"200":
            status = fields.get(b":status", b"?").decode(errors="replace")
            raise GovernorError(Kind.UNAVAILABLE, "http-status", f"{self._name} answered with HTTP status {status}")
        code = status_codes.number_in(fields.get(b"grpc-status", b""))
        if code is None:
            raise GovernorError(Kind.INTERNAL, "no-status", f"{self._name} answered without a gRPC status")
        if code != status_codes.OK:
            text = urllib.parse.unquote(fields.get(b"grpc-message", b"").decode(errors="replace"))
            raise GovernorError(status_codes.kind_of(code), "grpc-status", text or f"gRPC status {code}")
        return unwrap(bytes(exchange.body), fields.get(b"grpc-encoding", b"").decode(errors="replace"))
