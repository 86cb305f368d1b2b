"""Unary gRPC calls over one Unix socket: a kept connection, made anew at once when the server was restarted.

For plugins, and for what we ask the runtime ourselves. No streaming, no load balancing, no waiting between attempts.
"""

import asyncio
import urllib.parse
from collections.abc import Sequence
from typing import Final, cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from governor.errors import GovernorError, Kind
from governor.runtimeproxy import grpcstatus
from governor.runtimeproxy.framing import MESSAGE_LIMIT_BYTES, unwrap, wrap

Metadata = Sequence[tuple[bytes, bytes]]

_WINDOW_BYTES: Final = 1024 * 1024
_SETTINGS: Final = {
    h2.settings.SettingCodes.ENABLE_PUSH: 0,
    h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW_BYTES,
    h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: 64 * 1024,
}
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
        try:
            async with asyncio.timeout(timeout_s):
                return await self._call(_headers(method, timeout_s, metadata), wrap(message))
        except TimeoutError as error:
            message_ = f"{self._name} did not answer within {timeout_s:.3g} s"
            raise GovernorError(Kind.DEADLINE, "no-answer", message_) from error

    async def _call(self, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
        while True:
            is_kept = self.connected
            connection = await self._connected()
            try:
                return await connection.call(headers, body)
            except _GoneError as error:
                # A kept connection may have ended just before the call was written to it: then nobody heard of it.
                if not is_kept:
                    message = f"{self._name} ended the connection without an answer: {error}"
                    raise GovernorError(Kind.UNAVAILABLE, "connection-lost", message) from error

    async def _connected(self) -> "_Connection":
        async with self._connecting:
            if self._connection is None or not self._connection.usable:
                self.close()
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


def _headers(method: str, timeout_s: float, metadata: Metadata) -> list[tuple[bytes, bytes]]:
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", method.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"grpc-timeout", b"%dm" % max(1, int(timeout_s * 1000))),
        (b"user-agent", b"runtime-governor"),
        *metadata,
    ]


class _GoneError(Exception):
    """The connection ended before the server had answered anything."""


class _Exchange:
    """One call: what is still to be sent, and what came."""

    __slots__ = ("answer", "body", "fields", "to_send")

    def __init__(self, body: bytes, answer: "asyncio.Future[None]") -> None:
        self.to_send = memoryview(body)
        self.body = bytearray()
        self.fields: dict[bytes, bytes] = {}
        self.answer = answer


class _Connection(asyncio.Protocol):
    """One HTTP/2 connection."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._transport: asyncio.Transport | None = None
        config = h2.config.H2Configuration(client_side=True, header_encoding=None)
        self._protocol = h2.connection.H2Connection(config)
        self._exchanges: dict[int, _Exchange] = {}
        self._leaving = False

    @property
    def usable(self) -> bool:
        """Whether it takes another call."""
        return self._transport is not None and not self._leaving and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # Whole, since what is set one by one is not sent with the greeting and yet counts as agreed.
        self._protocol.local_settings = h2.settings.Settings(client=True, initial_values=_SETTINGS)
        self._protocol.initiate_connection()
        self._protocol.increment_flow_control_window(_WINDOW_BYTES)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for exchange in self._exchanges.values():
            _fail(exchange, _GoneError(str(exc or "closed")))
        self._exchanges.clear()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def call(self, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
        exchange = _Exchange(body, asyncio.get_running_loop().create_future())
        stream = self._begin(headers, exchange)
        try:
            await exchange.answer
        finally:
            self._forget(stream)
        return self._answer(exchange)

    def _begin(self, headers: list[tuple[bytes, bytes]], exchange: _Exchange) -> int:
        if not self.usable:
            raise _GoneError("closed")
        stream = self._protocol.get_next_available_stream_id()
        try:
            self._protocol.send_headers(stream, headers)
        except h2.exceptions.ProtocolError as error:
            raise GovernorError(Kind.EXHAUSTED, "streams", f"{self._name} takes no more calls: {error}") from error
        self._exchanges[stream] = exchange
        self._send(stream, exchange)
        self._flush()
        return stream

    def _forget(self, stream: int) -> None:
        """The call is over; if the server does not know yet, nobody waits for it any more."""
        if self._exchanges.pop(stream, None) is None or self._transport is None:
            return
        self._protocol.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        self._flush()

    def _send(self, stream: int, exchange: _Exchange) -> None:
        while exchange.to_send:
            size = min(self._protocol.local_flow_control_window(stream), self._protocol.max_outbound_frame_size)
            if size <= 0:
                return
            chunk, exchange.to_send = exchange.to_send[:size], exchange.to_send[size:]
            self._protocol.send_data(stream, bytes(chunk), end_stream=not exchange.to_send)

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._protocol.receive_data(data):
                self._handle(event)
        except h2.exceptions.ProtocolError as error:
            self._leaving = True
            self._flush()
            self._fail_all(f"{self._name} does not speak HTTP/2: {error}")
            self.close()
        else:
            self._flush()

    def _handle(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            for stream, exchange in self._exchanges.items():
                self._send(stream, exchange)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self._goaway(event.last_stream_id or 0)
        elif isinstance(event, h2.events.DataReceived):
            self._data(event)
        elif isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            if answered := self._exchanges.get(event.stream_id or 0):
                answered.fields.update((bytes(name), bytes(value)) for name, value in event.headers or ())
        elif isinstance(event, h2.events.StreamEnded):
            if ended := self._exchanges.pop(event.stream_id or 0, None):
                _succeed(ended)
        elif isinstance(event, h2.events.StreamReset):
            self._reset(event)

    def _data(self, event: h2.events.DataReceived) -> None:
        stream = event.stream_id or 0
        self._protocol.acknowledge_received_data(event.flow_controlled_length or 0, stream)
        exchange = self._exchanges.get(stream)
        if exchange is None:
            return
        exchange.body += event.data or b""
        if len(exchange.body) > _BODY_LIMIT_BYTES:
            message = f"{self._name} answered with more than {MESSAGE_LIMIT_BYTES} bytes"
            _fail(exchange, GovernorError(Kind.EXHAUSTED, "answer-size", message))

    def _reset(self, event: h2.events.StreamReset) -> None:
        exchange = self._exchanges.pop(event.stream_id or 0, None)
        if exchange is None:
            return
        if event.error_code == h2.errors.ErrorCodes.REFUSED_STREAM:
            _fail(exchange, _GoneError("refused"))
        else:
            message = f"{self._name} broke off the call with code {event.error_code}"
            _fail(exchange, GovernorError(Kind.UNAVAILABLE, "call-reset", message))

    def _goaway(self, last: int) -> None:
        self._leaving = True
        for stream in [each for each in self._exchanges if each > last]:
            _fail(self._exchanges.pop(stream), _GoneError("the server goes away"))

    def _fail_all(self, message: str) -> None:
        for exchange in self._exchanges.values():
            _fail(exchange, GovernorError(Kind.INTERNAL, "http2", message))
        self._exchanges.clear()

    def _flush(self) -> None:
        data = self._protocol.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)

    def _answer(self, exchange: _Exchange) -> bytes:
        fields = exchange.fields
        if fields.get(b":status") != b"200":
            status = fields.get(b":status", b"?").decode(errors="replace")
            raise GovernorError(Kind.UNAVAILABLE, "http-status", f"{self._name} answered with HTTP status {status}")
        code = fields.get(b"grpc-status", b"?")
        if code != b"0":
            number = int(code) if code.isdigit() else -1
            text = urllib.parse.unquote(fields.get(b"grpc-message", b"").decode(errors="replace"))
            raise GovernorError(grpcstatus.kind_of(number), "grpc-status", text or f"gRPC status {number}")
        return unwrap(bytes(exchange.body), fields.get(b"grpc-encoding", b"").decode(errors="replace"))


def _succeed(exchange: _Exchange) -> None:
    if not exchange.answer.done():
        exchange.answer.set_result(None)


def _fail(exchange: _Exchange, error: Exception) -> None:
    if not exchange.answer.done():
        exchange.answer.set_exception(error)
