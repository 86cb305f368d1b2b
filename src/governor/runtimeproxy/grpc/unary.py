"""Unary gRPC calls over one Unix socket, on one persistent connection that is re-established as soon as it is lost.

Used for plugins and for the proxy's own calls to the runtime. No streaming, load balancing or backoff. A call is sent
again, once, only if the server has certainly not processed it. HTTP/2 is handled by ``http2.connection``, as for
relayed calls.

A call ends by a callback: a task, a future and a timer for each would take a third of its time.
"""

import asyncio
import select
import urllib.parse
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, cast

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
from governor.runtimeproxy.http2.frames import MAX_STREAM_ID
from governor.runtimeproxy.http2.header_blocks import CachedFields, Fields
from governor.runtimeproxy.http2.streams import Exchange, Peer, Stream
from governor.runtimeproxy.http2.writer import DEFERRAL_S

Metadata = Sequence[tuple[bytes, bytes]]
Result: TypeAlias = bytes | GovernorError
"""The message of a response, or why there is none."""

_LIMITS: Final = Limits(stream_window=1024 * 1024, connection_window=1024 * 1024, max_header_list=64 * 1024)
_NOT_RELAYED: Final = Exchange(0, b"", Peer.RUNTIME, hooked=False)
"""The exchange of streams that are not relayed."""
_BODY_LIMIT_BYTES: Final = MESSAGE_LIMIT_BYTES + 64 * 1024


class UnaryClient:
    """Client of the server at ``path``; error messages call the server ``name``."""

    def __init__(self, path: str, name: str) -> None:
        self._path = path
        self.name = name
        self._connection: _ClientConnection | None = None
        self._unsent: deque[UnaryCall] = deque()
        """Calls that wait for a connection."""
        self._connecting: asyncio.Task[None] | None = None
        self.connections = 0
        """Number of connections so far: it changes when the server was restarted."""

    @property
    def connected(self) -> bool:
        """Whether the connection of the last call is still usable."""
        return self._connection is not None and self._connection.usable

    def close(self) -> None:
        """Close the connection; calls in flight fail."""
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
            self._fail_unsent(_connection_lost(self.name, "closed"))
        if self._connection is not None:
            self._connection.close()

    async def call(self, method: str, message: bytes, *, timeout_s: float, metadata: Metadata = ()) -> bytes:
        """Return the response message.

        Raise UNAVAILABLE or DEADLINE if there is no response, otherwise the kind that matches the server's status.
        """
        ended: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        call = self.start(request_fields(method, timeout_s, metadata), message, timeout_s, ended.set_result)
        try:
            result = await ended
        finally:
            call.cancel()
        if isinstance(result, GovernorError):
            raise result
        return result

    def start(self, headers: Fields, message: bytes, timeout_s: float, done: Callable[[Result], None]) -> "UnaryCall":
        """Start a call; ``done`` is called once with its result, later and not at all after it was cancelled."""
        call = UnaryCall(self, headers, wrap(message), timeout_s, done)
        self.send(call)
        return call

    def send(self, call: "UnaryCall") -> None:
        """Send a call on the connection, or on a new one."""
        connection = self._connection
        if connection is not None and connection.usable:
            connection.add(call)
            return
        self._unsent.append(call)
        call.timer = asyncio.get_running_loop().call_at(call.deadline, self._expire, call)
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def remove(self, call: "UnaryCall") -> None:
        """Forget a call that waits for a connection."""
        if call in self._unsent:
            self._unsent.remove(call)

    def _expire(self, call: "UnaryCall") -> None:
        self.remove(call)
        call.end(call.timeout())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_unix_connection(lambda: _ClientConnection(self.name), self._path)
        except OSError as error:
            self._connecting = None
            message = f"{self.name} cannot be reached at {self._path}: {error.strerror or error}"
            self._fail_unsent(GovernorError(Kind.UNAVAILABLE, "unreachable", message))
            return
        self._connecting = None
        self._connection = connection
        self.connections += 1
        while self._unsent:
            call = self._unsent.popleft()
            call.stop_timer()
            connection.add(call)

    def _fail_unsent(self, error: GovernorError) -> None:
        while self._unsent:
            self._unsent.popleft().end(error)


def request_fields(method: str, timeout_s: float, metadata: Metadata = ()) -> Fields:
    """Return the header fields of a call; without metadata they can be used for any number of calls."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", method.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"grpc-timeout", timeout_header(timeout_s)),
        (b"user-agent", b"runtime-governor"),
    ]
    return [*fields, *metadata] if metadata else CachedFields(fields)


def _connection_lost(name: str, reason: str) -> GovernorError:
    message = f"{name} closed the connection without a response: {reason}"
    return GovernorError(Kind.UNAVAILABLE, "connection-lost", message)


class UnaryCall:
    """One call: its stream, and the response received so far."""

    __slots__ = (
        "_client",
        "_done",
        "_timeout_s",
        "body",
        "connection",
        "deadline",
        "fields",
        "headers",
        "is_repeated",
        "message",
        "stream",
        "timer",
    )

    def __init__(
        self, client: UnaryClient, headers: Fields, message: bytes, timeout_s: float, done: Callable[[Result], None]
    ) -> None:
        self._client = client
        self._done: Callable[[Result], None] | None = done
        self._timeout_s = timeout_s
        self.headers = headers
        self.message = message
        """The wrapped request, until it is certain that it is not sent again."""
        self.deadline = asyncio.get_running_loop().time() + timeout_s
        self.is_repeated = False
        self.timer: asyncio.TimerHandle | None = None
        self.connection: _ClientConnection | None = None
        self.prepare()

    def prepare(self) -> None:
        """Set up a new stream for the request."""
        self.stream = Stream(_NOT_RELAYED)
        self.stream.queued_headers.append(self.headers)
        self.stream.enqueue(self.message)
        self.stream.end_queued = True
        self.body = bytearray()
        self.fields: Mapping[bytes, bytes] = {}
        """Headers and trailers of the response."""

    @property
    def is_over(self) -> bool:
        """Whether the call has ended or was cancelled."""
        return self._done is None

    def cancel(self) -> None:
        """End the call without a result."""
        if self._done is not None:
            self._done = None
            self._close()

    def end(self, result: Result) -> None:
        """End the call with its result, unless it is over: a server may reset the stream right after its response."""
        done, self._done = self._done, None
        if done is not None:
            self._close()
            done(result)

    def repeat(self, reason: str) -> None:
        """Send the call again, once: the server has not processed it and never will."""
        if self.is_over:
            return
        if self.is_repeated:
            self.end(_connection_lost(self._client.name, reason))
            return
        self.is_repeated = True
        self._close()
        self.prepare()
        self._client.send(self)

    def timeout(self) -> GovernorError:
        """Return the error of a call that the server has not answered in time."""
        message = f"{self._client.name} did not respond within {self._timeout_s:.3g} s"
        return GovernorError(Kind.DEADLINE, "no-answer", message)

    def stop_timer(self) -> None:
        """Cancel the timer of a call that waits for a connection."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _close(self) -> None:
        self.stop_timer()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.remove(self)
        else:
            self._client.remove(self)

    def add_headers(self, event: HeadersReceived) -> None:
        """Add a header section or the trailers of the response."""
        fields = dict(event.fields)
        if self.stream.headers_received:
            if not event.end_stream:
                raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "trailers without END_STREAM")
            self.fields = {**self.fields, **fields}
        else:
            self.stream.headers_received = not fields.get(b":status", b"").startswith(b"1")
            self.fields = fields


class _ClientConnection(asyncio.Protocol):
    """One HTTP/2 connection. Calls queue until the server's SETTINGS are known and allow another stream."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._transport: asyncio.Transport | None = None
        self._http2 = Connection(_LIMITS, server_side=False)
        self._queue: deque[UnaryCall] = deque()
        self._calls: dict[int, UnaryCall] = {}
        self._draining = False
        self._flush_scheduled = False
        self._deferred_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        """Fires at or before the next deadline of a call."""
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
        if self._timer is not None:
            self._timer.cancel()
        queued, sent = list(self._queue), list(self._calls.values())
        for call in sent:
            call.end(_connection_lost(self._name, reason))
        for call in queued:
            call.repeat(reason)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def add(self, call: UnaryCall) -> None:
        """Send a call as soon as the server allows it."""
        if self._transport is None:
            # Lost between connecting and this call.
            call.repeat("closed")
            return
        call.connection = self
        self._queue.append(call)
        if self._timer is None or call.deadline < self._timer.when():
            self._start_timer(call.deadline)
        self._flush_soon()

    def _start_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        """Fail the calls whose time is over. One timer serves all calls: most end long before their deadline."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        calls = [*self._queue, *self._calls.values()]
        for call in calls:
            if call.deadline <= now:
                call.end(call.timeout())
        left = [call.deadline for call in calls if not call.is_over]
        if left and self._transport is not None:
            self._start_timer(min(left))

    def remove(self, call: UnaryCall) -> None:
        """Close a call's stream; reset it if the server has not ended it."""
        stream = call.stream
        if self._calls.pop(stream.id, None) is None:
            if call in self._queue:
                self._queue.remove(call)
            return
        if not (stream.end_received and stream.end_sent):
            self._http2.reset_stream(stream.id, ErrorCode.CANCEL)
        self._http2.close_stream(stream)
        if self._queue or self._draining or self._http2.writer.pending:
            self._flush_soon()

    def _flush_soon(self) -> None:
        """Flush; with several calls, after all ready callbacks, so that their output is one write."""
        if len(self._queue) + len(self._calls) <= 1:
            self._flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _write_deferred(self) -> None:
        self._deferred_scheduled = False
        self._http2.writer.write_deferred()
        self._flush()

    def _flush(self) -> None:
        """Start queued calls, write, and close the connection once it is drained."""
        self._flush_scheduled = False
        while self._queue and self._http2.can_open_stream and not self._draining:
            self._start(self._queue.popleft())
        if self._draining:
            for call in list(self._queue):
                call.repeat("the server sent GOAWAY")
        data = self._http2.writer.data_to_send()
        if self._transport is not None:
            if data:
                self._transport.write(data)
            if self._draining and not self._calls:
                self._transport.close()

    def _start(self, call: UnaryCall) -> None:
        http2 = self._http2
        http2.open_stream(call.stream, http2.last_stream_id + 2)
        self._draining = http2.last_stream_id + 2 > MAX_STREAM_ID
        self._calls[call.stream.id] = call
        http2.writer.flush(call.stream)

    def data_received(self, data: bytes) -> None:
        http2 = self._http2
        for frame in http2.feed(data):
            try:
                event = http2.process(frame)
                if event is not None:
                    self._handle(event)
            except Http2StreamError as error:
                self._on_stream_error(frame[2], error)
            except Http2ConnectionError as error:
                http2.fail(error)
        http2.check_frame_error()
        if self._http2.error:
            self._draining = True
            message = f"{self._name} does not speak HTTP/2: {self._http2.error}"
            for call in [*self._queue, *self._calls.values()]:
                call.end(GovernorError(Kind.INTERNAL, "http2", message))
        self._flush()
        if not self._deferred_scheduled and self._http2.writer.has_deferred:
            self._deferred_scheduled = True
            asyncio.get_running_loop().call_later(DEFERRAL_S, self._write_deferred)

    def _on_stream_error(self, stream_id: int, error: Http2StreamError) -> None:
        if call := self._calls.get(stream_id):
            message = f"{self._name} does not speak HTTP/2: {error.message}"
            call.end(GovernorError(Kind.INTERNAL, "http2", message))

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

    def _on_data(self, call: UnaryCall, event: DataReceived) -> None:
        if not call.stream.headers_received:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "DATA before HEADERS")
        self._http2.credit(event.stream, len(event.payload))
        call.body += event.payload
        if announced_bytes(call.body) > MESSAGE_LIMIT_BYTES or len(call.body) > _BODY_LIMIT_BYTES:
            message = f"{self._name} responded with more than {MESSAGE_LIMIT_BYTES} bytes"
            # The error lives until garbage is collected, which can take minutes.
            call.body.clear()
            call.end(GovernorError(Kind.EXHAUSTED, "answer-size", message))
            return
        self._received(event.stream, end_stream=event.end_stream)

    def _received(self, stream: Stream, *, end_stream: bool) -> None:
        if end_stream:
            stream.end_received = True
            call = self._calls[stream.id]
            call.end(self._response(call))

    def _on_reset(self, call: UnaryCall, code: int) -> None:
        call.stream.end_received = call.stream.end_sent = True
        if code == ErrorCode.REFUSED_STREAM:
            call.repeat("refused")
        else:
            message = f"{self._name} reset the call with HTTP/2 error code {code}"
            call.end(GovernorError(Kind.UNAVAILABLE, "call-reset", message))

    def _on_goaway(self, last_stream_id: int) -> None:
        self._draining = True
        for stream_id, call in list(self._calls.items()):
            if stream_id > last_stream_id:
                call.repeat("the server sent GOAWAY")

    def _response(self, call: UnaryCall) -> Result:
        """Return the message of a complete response, or its error status."""
        fields = call.fields
        if fields.get(b":status") != b"200":
            status = fields.get(b":status", b"?").decode(errors="replace")
            return GovernorError(Kind.UNAVAILABLE, "http-status", f"{self._name} responded with HTTP status {status}")
        code = status_codes.parse(fields.get(b"grpc-status", b""))
        if code is None:
            return GovernorError(Kind.INTERNAL, "no-status", f"{self._name} responded without a gRPC status")
        if code != status_codes.OK:
            text = urllib.parse.unquote(fields.get(b"grpc-message", b"").decode(errors="replace"))
            return GovernorError(status_codes.kind_of(code), "grpc-status", text or f"gRPC status {code}")
        try:
            return unwrap(call.body, fields.get(b"grpc-encoding", b"").decode(errors="replace"))
        except GovernorError as error:
            return error
