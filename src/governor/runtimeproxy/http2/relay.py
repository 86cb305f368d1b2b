"""Relays the streams of one client to a runtime, and to a separate image service if there is one.

Each peer has its own HTTP/2 connection: its own SETTINGS, windows, header tables and stream ids. Streams are forwarded
as they arrive, except hooked ones: their requests, and on demand their responses, are held until the caller releases or
refuses them. No stream blocks another. No input raises: a peer that violates the protocol loses the stream or the
connection.

The caller moves bytes (``receive``, and ``data_to_send`` while a peer reads), handles ``events`` after each call, and
closes a connection when ``should_close``. When an upstream goes away or is lost, the client is sent GOAWAY so that it
reconnects and gets a new relay. Deadlines are up to the caller.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final

from governor.runtimeproxy.grpc.framing import PREFIX_BYTES, body_bytes
from governor.runtimeproxy.http2.connection import Connection, Limits
from governor.runtimeproxy.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError
from governor.runtimeproxy.http2.events import (
    ConnectionEvent,
    DataReceived,
    GoawayReceived,
    HeadersReceived,
    RelayEvent,
    RequestData,
    RequestTooLarge,
    StreamOpened,
    StreamReset,
    WindowUpdated,
)
from governor.runtimeproxy.http2.exchanges import (
    INTERNAL,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    ExchangeTable,
    grpc_status_in,
    held_event,
    opposite,
)
from governor.runtimeproxy.http2.flow_control import FlowControl
from governor.runtimeproxy.http2.header_blocks import Fields, FieldValidator
from governor.runtimeproxy.http2.held_budget import HeldBudget
from governor.runtimeproxy.http2.streams import Exchange, Outcome, Peer, Stream
from governor.runtimeproxy.http2.watches import WATCH_ENDED, WATCHES

_IMAGE_SERVICE: Final = b"ImageService"
_WRONG_LENGTH: Final = "content-length does not match the DATA received"


class Relay:
    """One client connection and its upstream connections. ``hooked`` decides by path which requests are held."""

    def __init__(
        self,
        hooked: Callable[[bytes], bool],
        *,
        has_image_service: bool = False,
        limits: Limits | None = None,
        budget: HeldBudget | None = None,
        granted: Callable[[], None] = lambda: None,
    ) -> None:
        self._hooked = hooked
        self._has_image_service = has_image_service
        self._limits = limits or Limits()
        self._validator = FieldValidator()
        self._exchanges = ExchangeTable(self._limits, budget or HeldBudget(self._limits.max_held_total))
        self._granted = granted
        """Called when a request that waited for memory continues: there may be events, and bytes to send."""
        self.tapped = False
        """Whether to emit StreamOpened for every stream, and RequestData for requests that are not held."""

    @property
    def streams(self) -> int:
        """Number of open client streams."""
        return len(self._exchanges.by_id)

    @property
    def held_bytes(self) -> int:
        """Size of held messages in both directions, until they are written or dropped."""
        return self._exchanges.held_bytes

    def flow_controls(self) -> dict[Peer, FlowControl]:
        """Return the flow control of each connected peer."""
        return {peer: connection.flow_control for peer, connection in self._exchanges.connections.items()}

    def events(self) -> list[RelayEvent]:
        """Return and remove the events since the last call, in order."""
        return self._exchanges.take_events()

    def attach(self, peer: Peer) -> None:
        """Add a connected upstream, from which nothing was read yet."""
        self._exchanges.attach(peer)

    def data_to_send(self, peer: Peer) -> bytes:
        """Return and remove the bytes for a peer. Call only while it reads: bytes left here slow down their sender."""
        connection = self._exchanges.connections.get(peer)
        return b"" if connection is None else connection.writer.data_to_send()

    def busy_peers(self) -> list[Peer]:
        """Return the peers for which there are bytes, or whose connection may have to be closed."""
        exchanges = self._exchanges
        if exchanges.draining or exchanges.client.closed:
            return list(exchanges.connections)
        return [peer for peer, each in exchanges.connections.items() if each.writer.pending or each.closed]

    def has_deferred(self, peer: Peer) -> bool:
        """Whether frames for a peer wait for ``write_deferred``, which is due ``DEFERRAL_S`` later."""
        connection = self._exchanges.connections.get(peer)
        return connection is not None and connection.writer.has_deferred

    def write_deferred(self) -> None:
        """Add the frames that wait to the bytes to send."""
        for connection in self._exchanges.connections.values():
            connection.writer.write_deferred()

    def should_close(self, peer: Peer) -> bool:
        """Whether the caller should close the connection with a peer.

        A client's preface is awaited: a client that has not sent it would report a failure to connect.
        """
        exchanges = self._exchanges
        connection, client = exchanges.connections.get(peer), exchanges.client
        done = client.closed or (exchanges.draining and not exchanges.by_id and client.settings_received)
        return connection is not None and not connection.writer.pending and (connection.closed or done)

    def receive(self, peer: Peer, data: bytes) -> None:
        """Process bytes received from a peer."""
        connection = self._exchanges.connections.get(peer)
        if connection is None:
            return
        process, handlers = connection.process, self._HANDLERS
        for frame in connection.feed(data):
            try:
                event = process(frame)
                if event is not None:
                    handlers[type(event)](self, peer, event)
            except Http2StreamError as error:
                self._on_stream_error(connection, frame[2], error)
            except Http2ConnectionError as error:
                connection.fail(error)
            if connection.closed:
                break
        connection.check_frame_error()
        if connection.error:
            self._on_disconnect(peer, connection.error)

    def connection_lost(self, peer: Peer, reason: str = "the connection was closed") -> None:
        """Handle a lost connection, or an upstream that cannot be reached."""
        connection = self._exchanges.connections.get(peer)
        if connection is not None:
            connection.closed = True
            connection.writer.data_to_send()
        self._on_disconnect(peer, reason)

    def drain(self, *, end_watches: bool = False) -> None:
        """Refuse new streams; open ones continue until they end. Watches are ended with UNAVAILABLE on demand."""
        self._exchanges.drain()
        for exchange in list(self._exchanges.by_id.values()) if end_watches else ():
            if exchange.path in WATCHES:
                self._exchanges.respond(exchange, UNAVAILABLE, WATCH_ENDED)

    def release(self, stream_id: int, body: bytes | None = None, *, hold_response: bool = False) -> bool:
        """Forward a held request, with another body if given. Return False if it is no longer held."""
        exchange = self._exchanges.by_id.get(stream_id)
        if exchange is None or not (exchange.upstream.held and exchange.upstream.end_queued):
            return False
        stream = exchange.upstream
        if body is not None:
            self._exchanges.replace_body(stream, body)
            if exchange.client.content_remaining is not None:
                stream.queued_headers[0] = _with_content_length(stream.queued_headers[0], len(body))
        stream.held = False
        exchange.client.held = hold_response
        self._exchanges.open_upstream(exchange)
        return True

    def pass_on(self, stream_id: int) -> bool:
        """Forward a request that is too large to be held, as it arrives. Return False if it is no longer held."""
        exchange = self._exchanges.by_id.get(stream_id)
        if exchange is None or not exchange.upstream.held:
            return False
        stream = exchange.upstream
        stream.held = stream.is_waiting = False
        exchange.client.held = True
        self._exchanges.open_upstream(exchange)
        return True

    def release_response(self, stream_id: int) -> bool:
        """Forward a held response. Return False if it is no longer held."""
        exchange = self._exchanges.by_id.get(stream_id)
        if exchange is None or not (exchange.client.held and exchange.client.end_queued):
            return False
        exchange.client.held = False
        self._exchanges.flush(exchange.client)
        return True

    def refuse(self, stream_id: int, status: int, message: str, details: bytes = b"") -> bool:
        """Respond with a gRPC status in the upstream's place. Return False if the response was already sent."""
        exchange = self._exchanges.by_id.get(stream_id)
        if exchange is None or (exchange.client.end_queued and not exchange.client.held):
            return False
        self._exchanges.respond(exchange, status, message, details)
        return True

    def _route(self, path: bytes) -> Peer:
        service = path.rpartition(b"/")[0]
        return Peer.IMAGES if self._has_image_service and service.endswith(_IMAGE_SERVICE) else Peer.RUNTIME

    def _on_headers(self, _peer: Peer, event: HeadersReceived) -> None:
        if event.stream is None:
            self._on_request(event)
        elif event.stream.headers_received:
            self._on_trailers(event.stream, event)
        else:
            self._on_response(event.stream, event)

    def _on_request(self, event: HeadersReceived) -> None:
        exchanges = self._exchanges
        if exchanges.client.writer.backlog > self._limits.max_backlog:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "streams are opened while responses are not read")
        path, length = self._validator.check_request(event.fields)
        if length and event.end_stream:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, _WRONG_LENGTH)
        if exchanges.draining or len(exchanges.client.streams) >= self._limits.max_streams:
            exchanges.client.reset_stream(event.stream_id, ErrorCode.REFUSED_STREAM)
            return
        exchange = Exchange(event.stream_id, path, self._route(path), hooked=self._hooked(path))
        client, upstream = exchange.client, exchange.upstream
        exchanges.by_id[exchange.id] = exchange
        exchanges.client.open_stream(client, exchange.id)
        if self.tapped:
            exchanges.events.append(StreamOpened(exchange.id, path, event.fields))
        client.headers_received = True
        client.content_remaining = length
        upstream.queued_headers.append(event.fields)
        upstream.held = exchange.hooked
        if event.end_stream:
            client.end_received = upstream.end_queued = upstream.end_on_headers = True
        if not exchange.hooked:
            exchanges.open_upstream(exchange)
        elif event.end_stream:
            self._hold(upstream)

    def _on_trailers(self, stream: Stream, event: HeadersReceived) -> None:
        """Forward the trailers of a request or a response."""
        if not event.end_stream:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "trailers without END_STREAM")
        self._validator.check_trailers(event.fields)
        if stream.content_remaining:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, _WRONG_LENGTH)
        target = opposite(stream)
        target.queued_trailers = event.fields
        if target is stream.exchange.client:
            stream.exchange.grpc_status = grpc_status_in(event.fields)
        self._forward(stream, target, end_stream=True)

    def _on_response(self, stream: Stream, event: HeadersReceived) -> None:
        """Forward a final or interim response."""
        exchange = stream.exchange
        client = exchange.client
        if self._validator.check_response(event.fields).startswith(b"1"):
            exchange.interim_responses += 1
            if event.end_stream or exchange.interim_responses > self._limits.max_interim_responses:
                raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "interim responses without a final one")
        else:
            stream.headers_received = True
        if event.end_stream:
            exchange.grpc_status = grpc_status_in(event.fields)
            client.end_on_headers = True
        client.queued_headers.append(event.fields)
        self._forward(stream, client, end_stream=event.end_stream)
        client.headers_sent = stream.headers_received and not client.held

    def _on_data(self, peer: Peer, event: DataReceived) -> None:
        stream, target, size = event.stream, opposite(event.stream), len(event.payload)
        if not stream.headers_received:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "DATA before HEADERS")
        if stream.content_remaining is not None:
            stream.content_remaining -= size
            if stream.content_remaining < 0 or (event.end_stream and stream.content_remaining):
                raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, _WRONG_LENGTH)
        if self.tapped and peer is Peer.CLIENT and not target.held:
            self._exchanges.events.append(RequestData(stream.exchange.id, bytes(event.payload)))
        if not target.closed:
            target.enqueue(event.payload)
        else:
            self._exchanges.credit(stream, size)
        if target.held:
            self._exchanges.hold(target, size)
        self._forward(stream, target, end_stream=event.end_stream)
        target.own_last_chunk()

    def _forward(self, stream: Stream, target: Stream, *, end_stream: bool) -> None:
        """Write what was enqueued on ``target``, or keep holding it."""
        if end_stream:
            stream.end_received = True
            target.end_queued = not target.closed
        if target.held:
            self._hold(target)
            if target.held:
                self._exchanges.credit_held(target)
        elif target.windows is not None and not target.closed:
            self._exchanges.flush(target)
        if end_stream:
            self._exchanges.close_if_complete(stream.exchange)

    def _hold(self, stream: Stream) -> None:
        """Emit the event of a held message once it is complete."""
        if stream is stream.exchange.client:
            self._hold_response(stream)
        elif not stream.is_waiting and self._has_memory(stream) and stream.end_queued:
            self._exchanges.events.append(held_event(stream))

    def _hold_response(self, stream: Stream) -> None:
        """Hold a response; forward one beyond the limit unread, since the runtime has done its work."""
        if stream.buffered_bytes <= self._limits.max_held_response:
            if stream.end_queued:
                self._exchanges.events.append(held_event(stream))
            return
        stream.held = False
        stream.headers_sent = True
        self._exchanges.flush(stream)

    def _has_memory(self, stream: Stream) -> bool:
        """Reserve memory for a request as soon as its size is known; return whether it is there."""
        exchanges, exchange = self._exchanges, stream.exchange
        size = stream.buffered_bytes
        if not stream.end_queued:
            size = max(size, body_bytes(stream.first_bytes(PREFIX_BYTES)))
        if size <= stream.reserved_bytes:
            return True
        if size > self._limits.max_held_body:
            stream.is_waiting = True
            exchanges.events.append(RequestTooLarge(exchange.id, exchange.path, stream.queued_headers[0]))
        elif exchanges.budget.reserve(size - stream.reserved_bytes):
            stream.reserved_bytes = size
            return True
        elif stream.reserved_bytes:
            # It is longer than it announced, which would be invalid in any case.
            exchanges.respond(exchange, RESOURCE_EXHAUSTED, "the message is longer than announced")
        else:
            stream.is_waiting = True
            exchanges.budget.wait(stream, size, partial(self._on_memory, stream, size))
        return False

    def _on_memory(self, stream: Stream, size: int) -> None:
        """Continue to hold a request for which memory is reserved now."""
        stream.is_waiting = False
        stream.reserved_bytes = size
        self._hold(stream)
        if stream.held:
            self._exchanges.credit_held(stream)
        self._granted()

    def _on_reset(self, peer: Peer, event: StreamReset) -> None:
        exchanges, stream = self._exchanges, event.stream
        if peer is Peer.CLIENT:
            self._count_reset()
            exchanges.abort(stream.exchange, Outcome.CANCELLED, upstream_code=event.code)
            return
        exchanges.close_upstream(stream.exchange)
        if stream.end_received:
            exchanges.close_if_complete(stream.exchange)
        else:
            exchanges.abort(stream.exchange, Outcome.RESET, client_code=event.code)

    def _count_reset(self) -> None:
        self._exchanges.resets += 1
        if self._exchanges.resets > self._limits.max_resets:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "too many streams are opened and reset")

    def _on_window_update(self, peer: Peer, event: WindowUpdated) -> None:
        if event.stream is not None:
            self._exchanges.flush(event.stream)
        else:
            self._exchanges.flush_blocked(peer)

    def _on_goaway(self, peer: Peer, event: GoawayReceived) -> None:
        if peer is Peer.CLIENT:
            self._exchanges.draining = True
        else:
            self._exchanges.drain_upstream(peer, event.last_stream_id)

    def _on_stream_error(self, connection: Connection, stream_id: int, error: Http2StreamError) -> None:
        """Reset the stream at the peer that caused the error; cancel or end it at the other one."""
        exchanges = self._exchanges
        stream = connection.streams.get(stream_id)
        if stream is None:
            connection.reset_stream(stream_id, error.code)
        elif connection is exchanges.client:
            exchanges.abort(stream.exchange, Outcome.CANCELLED, client_code=error.code)
        elif stream.end_received:
            exchanges.close_upstream(stream.exchange, error.code)
            exchanges.close_if_complete(stream.exchange)
        else:
            message = f"the runtime's response is malformed: {error.message}"
            exchanges.respond(stream.exchange, INTERNAL, message, code=error.code)

    def _on_disconnect(self, peer: Peer, reason: str) -> None:
        """Cancel a lost client's streams, or respond UNAVAILABLE to those of a lost upstream."""
        exchanges = self._exchanges
        if peer is not Peer.CLIENT:
            exchanges.fail_upstream(peer, reason)
            return
        exchanges.client.closed = exchanges.draining = True
        for exchange in list(exchanges.by_id.values()):
            exchanges.abort(exchange, Outcome.CANCELLED)

    _HANDLERS: ClassVar[dict[type[ConnectionEvent], Callable[["Relay", Peer, Any], None]]] = {
        HeadersReceived: _on_headers,
        DataReceived: _on_data,
        StreamReset: _on_reset,
        WindowUpdated: _on_window_update,
        GoawayReceived: _on_goaway,
    }


def _with_content_length(fields: Fields, length: int) -> Fields:
    """Return the fields with content-length, which gRPC clients do not send, replaced if it is present."""
    for index, (name, _) in enumerate(fields):
        if name == b"content-length":
            return [*fields[:index], (name, b"%d" % length), *_with_content_length(fields[index + 1 :], length)]
    return fields
