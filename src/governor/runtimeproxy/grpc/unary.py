"""Unary gRPC calls over one Unix socket, on one persistent connection that is re-established as soon as it is lost.

Used for plugins and for the proxy's own calls to the runtime. No streaming, load balancing or backoff. A call is sent
again, once, only if the server has certainly not processed it. HTTP/2 is handled by ``http2.connection``, as for
relayed calls.
"""

import asyncio
import contextlib
import select
import urllib.parse
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, cast

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.grpc import status_codes
from governor.runtimeproxy.grpc.deadlines import timeout_header
from governor.runtimeproxy.grpc.framing import MESSAGE_LIMIT_BYTES, announced_bytes, unwrap, wrap
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
from governor.runtimeproxy.http2.frames import MAX_STREAM_ID, Frame, Payload
from governor.runtimeproxy.http2.header_blocks import Fields
from governor.runtimeproxy.http2.streams import Exchange, Peer, Stream
from governor.runtimeproxy.http2.writer import COALESCE_DELAY_S

Metadata = Sequence[tuple[bytes, bytes]]

_LIMITS: Final = Limits(stream_window=1024 * 1024, connection_window=1024 * 1024, max_header_list=64 * 1024)
_NOT_RELAYED: Final = Exchange(0, b"", Peer.RUNTIME, hooked=False)
"""The exchange of streams that are not relayed."""
_BODY_LIMIT_BYTES: Final = MESSAGE_LIMIT_BYTES + 64 * 1024


class UnaryClient:
    """Client of the server at ``path``; error messages call the server ``name``."""

    def __init__(self, path: str, name: str) -> None:
        self._path = path
        self._name = name
        self._connection: _ClientConnection | None = None
        self._connecting = asyncio.Lock()

    @property
    def connected(self) -> bool:
        """Whether the connection of the last call is still usable."""
        return self._connection is not None and self._connection.usable

    def close(self) -> None:
        """Close the connection; calls in flight fail."""
        if self._connection is not None:
            self._connection.close()

    async def call(self, method: str, message: bytes, *, timeout_s: float, metadata: Metadata = ()) -> bytes:
        """Return the response message.

        Raise UNAVAILABLE or DEADLINE if there is no response, otherwise the kind that matches the server's status.
        """
        headers, body = _headers(method, timeout_s, metadata), wrap(message)
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            if self._connection is not None and self._connection.usable:
                with contextlib.suppress(_NotProcessedError):
                    return await self._connection.call(headers, body, deadline)
            async with asyncio.timeout_at(deadline):
                connection = await self._ensure_connected()
            return await connection.call(headers, body, deadline)
        except TimeoutError as error:
            message_ = f"{self._name} did not respond within {timeout_s:.3g} s"
            raise GovernorError(Kind.DEADLINE, "no-answer", message_) from error
        except _NotProcessedError as error:
            raise _connection_lost(self._name, str(error)) from error

    async def _ensure_connected(self) -> "_ClientConnection":
        async with self._connecting:
            if self._connection is None or not self._connection.usable:
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> "_ClientConnection":
        try:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_unix_connection(lambda: _ClientConnection(self._name), self._path)
        except OSError as error:
            message = f"{self._name} cannot be reached at {self._path}: {error.strerror or error}"
            raise GovernorError(Kind.UNAVAILABLE, "unreachable", message) from error
        return connection


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


class _NotProcessedError(Exception):
    """The server has not processed the call and never will, so that it can be sent again."""


def _connection_lost(name: str, reason: str) -> GovernorError:
    message = f"{name} closed the connection without a response: {reason}"
    return GovernorError(Kind.UNAVAILABLE, "connection-lost", message)


class _Call:
    """One call: its stream, and the response received so far."""

    __slots__ = ("body", "done", "fields", "stream")

    def __init__(self, headers: Fields, body: bytes, done: "asyncio.Future[None]") -> None:
        self.stream = Stream(_NOT_RELAYED)
        self.stream.queued_headers.append(headers)
        self.stream.enqueue(body)
        self.stream.end_queued = True
        self.body = bytearray()
        self.fields: Mapping[bytes, bytes] = {}
        """Headers and trailers of the response."""
        self.done = done

    def add_headers(self, event: HeadersReceived) -> None:
        fields = dict(event.fields)
        if self.stream.headers_received:
            if not event.end_stream:
                raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "trailers without END_STREAM")
            self.fields = {**self.fields, **fields}
        else:
            self.stream.headers_received = not fields.get(b":status", b"").startswith(b"1")
            self.fields = fields

    def add_data(self, payload: Payload) -> None:
        """Add to the body; ignore what arrives after the call has failed, until its stream is reset."""
        if not self.done.done():
            self.body += payload

    def succeed(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        """Fail the call unless its response is complete: a server may reset the stream or close right after it."""
        if not self.done.done():
            # The error refers to this call and lives until garbage is collected, which can take minutes.
            self.body.clear()
            self.done.set_exception(error)


class _ClientConnection(asyncio.Protocol):
    """One HTTP/2 connection. Calls queue until the server's SETTINGS are known and allow another stream."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._transport: asyncio.Transport | None = None
        self._http2 = Connection(_LIMITS, server_side=False)
        self._queue: deque[_Call] = deque()
        self._calls: dict[int, _Call] = {}
        self._draining = False
        self._flush_scheduled = False
        self._deferred_scheduled = False
        self._hang_up = select.poll()

    @property
    def usable(self) -> bool:
        """Whether another call can be started.

        The server may have closed the connection, but the event loop has not reported it yet: what would be sent then
        could not be sent again.
        """
        transport = self._transport
        return not (transport is None or self._draining or transport.is_closing() or self._hang_up.poll(0))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._hang_up.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        reason = str(exc or "closed")
        for call in self._queue:
            call.fail(_NotProcessedError(reason))
        for call in self._calls.values():
            call.fail(_connection_lost(self._name, reason))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def call(self, headers: Fields, body: bytes, deadline: float) -> bytes:
        if not self.usable:
            raise _NotProcessedError("closed")
        loop = asyncio.get_running_loop()
        call = _Call(headers, body, loop.create_future())
        self._queue.append(call)
        self._flush_soon()
        # Cheaper than asyncio.timeout, which must be able to cancel any awaitable.
        timer = loop.call_at(deadline, call.fail, TimeoutError())
        try:
            await call.done
        finally:
            timer.cancel()
            self._end(call)
        return self._response(call)

    def _end(self, call: _Call) -> None:
        """Close a call's stream; reset it if the server has not ended it."""
        stream = call.stream
        if self._calls.pop(stream.id, None) is None:
            if call in self._queue:
                self._queue.remove(call)
            return
        if not (stream.end_received and stream.end_sent):
            self._http2.reset_stream(stream.id, ErrorCode.CANCEL)
        self._http2.close_stream(stream)
        if self._queue or self._draining or (self._http2.writer.pending and not self._http2.writer.can_defer):
            self._flush_soon()

    def _flush_soon(self) -> None:
        """Flush; with several calls, after all ready callbacks, so that their output is one write."""
        if len(self._queue) + len(self._calls) <= 1:
            self._flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush_later(self) -> None:
        if not self._deferred_scheduled:
            self._deferred_scheduled = True
            asyncio.get_running_loop().call_later(COALESCE_DELAY_S, self._flush_deferred)

    def _flush_deferred(self) -> None:
        self._deferred_scheduled = False
        self._flush()

    def _flush(self) -> None:
        """Start queued calls, write, and close the connection once it is drained."""
        self._flush_scheduled = False
        while self._queue and self._http2.can_open_stream and not self._draining:
            self._start(self._queue.popleft())
        if self._draining:
            for call in self._queue:
                call.fail(_NotProcessedError("the server sent GOAWAY"))
        data = self._http2.writer.data_to_send()
        if self._transport is not None:
            if data:
                self._transport.write(data)
            if self._draining and not self._calls:
                self._transport.close()

    def _start(self, call: _Call) -> None:
        http2 = self._http2
        http2.open_stream(call.stream, http2.last_stream_id + 2)
        self._draining = http2.last_stream_id + 2 > MAX_STREAM_ID
        self._calls[call.stream.id] = call
        http2.writer.flush(call.stream)

    def data_received(self, data: bytes) -> None:
        for frame in self._http2.feed(data):
            self._process(frame)
        self._http2.check_frame_error()
        if self._http2.error:
            self._draining = True
            message = f"{self._name} does not speak HTTP/2: {self._http2.error}"
            self._fail_all(GovernorError(Kind.INTERNAL, "http2", message))
        if self._http2.writer.can_defer and not (self._queue or self._draining):
            self._flush_later()
        else:
            self._flush()

    def _process(self, frame: Frame) -> None:
        try:
            event = self._http2.process(frame)
            if event is not None:
                self._handle(event)
        except Http2StreamError as error:
            if call := self._calls.get(frame[2]):
                message = f"{self._name} does not speak HTTP/2: {error.message}"
                call.fail(GovernorError(Kind.INTERNAL, "http2", message))
        except Http2ConnectionError as error:
            self._http2.fail(error)

    def _handle(self, event: ConnectionEvent) -> None:
        match event:
            case HeadersReceived(stream=Stream() as stream):
                self._calls[stream.id].add_headers(event)
                self._received(stream, end_stream=event.end_stream)
            case DataReceived():
                self._on_data(self._calls[event.stream.id], event)
            case WindowUpdated(stream=None):
                for _ in self._http2.writer.flush_blocked():
                    pass
            case WindowUpdated(stream=Stream() as stream):
                self._http2.writer.flush(stream)
            case StreamReset():
                self._on_reset(self._calls[event.stream.id], event.code)
            case GoawayReceived():
                self._on_goaway(event.last_stream_id)

    def _on_data(self, call: _Call, event: DataReceived) -> None:
        if not call.stream.headers_received:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "DATA before HEADERS")
        self._http2.credit(event.stream, len(event.payload))
        call.add_data(event.payload)
        if announced_bytes(call.body) > MESSAGE_LIMIT_BYTES or len(call.body) > _BODY_LIMIT_BYTES:
            message = f"{self._name} responded with more than {MESSAGE_LIMIT_BYTES} bytes"
            call.fail(GovernorError(Kind.EXHAUSTED, "answer-size", message))
        self._received(event.stream, end_stream=event.end_stream)

    def _received(self, stream: Stream, *, end_stream: bool) -> None:
        if end_stream:
            stream.end_received = True
            self._calls[stream.id].succeed()

    def _on_reset(self, call: _Call, code: int) -> None:
        call.stream.end_received = call.stream.end_sent = True
        if code == ErrorCode.REFUSED_STREAM:
            call.fail(_NotProcessedError("refused"))
        else:
            message = f"{self._name} reset the call with HTTP/2 error code {code}"
            call.fail(GovernorError(Kind.UNAVAILABLE, "call-reset", message))

    def _on_goaway(self, last_stream_id: int) -> None:
        self._draining = True
        for stream_id, call in self._calls.items():
            if stream_id > last_stream_id:
                call.fail(_NotProcessedError("the server sent GOAWAY"))

    def _fail_all(self, error: Exception) -> None:
        for call in [*self._queue, *self._calls.values()]:
            call.fail(error)

    def _response(self, call: _Call) -> bytes:
        """Return the message of a complete response; raise its error status."""
        fields = call.fields
        if fields.get(b":status") != b"200":
            status = fields.get(b":status", b"?").decode(errors="replace")
            raise GovernorError(Kind.UNAVAILABLE, "http-status", f"{self._name} responded with HTTP status {status}")
        code = status_codes.parse(fields.get(b"grpc-status", b""))
        if code is None:
            raise GovernorError(Kind.INTERNAL, "no-status", f"{self._name} responded without a gRPC status")
        if code != status_codes.OK:
            text = urllib.parse.unquote(fields.get(b"grpc-message", b"").decode(errors="replace"))
            raise GovernorError(status_codes.kind_of(code), "grpc-status", text or f"gRPC status {code}")
        return unwrap(bytes(call.body), fields.get(b"grpc-encoding", b"").decode(errors="replace"))
