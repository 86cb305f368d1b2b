"""The exchanges of one relay: opens, writes and closes their streams at both connections, and queues events.

``relay`` decides what received frames and the caller's commands mean.
"""

import base64
import re
from typing import Final

from governor.runtimeproxy.http2.connection import Connection, Limits
from governor.runtimeproxy.http2.errors import ErrorCode
from governor.runtimeproxy.http2.events import RelayEvent, RequestHeld, ResponseHeld, StreamClosed, UpstreamNeeded
from governor.runtimeproxy.http2.frames import MAX_STREAM_ID
from governor.runtimeproxy.http2.header_blocks import Fields
from governor.runtimeproxy.http2.held_budget import HeldBudget
from governor.runtimeproxy.http2.streams import Exchange, Outcome, Peer, Stream

RESOURCE_EXHAUSTED: Final = 8
INTERNAL: Final = 13
UNAVAILABLE: Final = 14

_PERCENT_ENCODED: Final = re.compile(rb"[^ -$&-~]")
_NAMES: Final = {Peer.RUNTIME: "runtime", Peer.IMAGES: "image service"}


class ExchangeTable:
    """The open exchanges of one client, and the connections between which they are relayed."""

    def __init__(self, limits: Limits, budget: HeldBudget) -> None:
        self.client = Connection(limits, server_side=True)
        self.connections = {Peer.CLIENT: self.client}
        """The client's, and those of attached upstreams."""
        self.by_id: dict[int, Exchange] = {}
        self.events: list[RelayEvent] = []
        self.draining = False
        """New streams of the client are refused."""
        self.held_bytes = 0
        """Size of held messages until they are written or dropped."""
        self.resets = 0
        """Streams that the client reset, less those that completed."""
        self._limits = limits
        self.budget = budget
        self._unavailable: dict[Peer, str] = {}
        self._going_away: set[Peer] = set()
        self._queues: dict[Peer, dict[int, Exchange]] = {}
        self._removed: list[Exchange] = []

    def take_events(self) -> list[RelayEvent]:
        """Return and remove the events so far; called after each step, when no exchange is being worked on."""
        for exchange in self._removed:
            # Each refers to the other: without this, only the garbage collector would free them.
            del exchange.client, exchange.upstream
        self._removed.clear()
        events, self.events = self.events, []
        return events

    def attach(self, peer: Peer) -> None:
        """Add a connected upstream and open the streams queued for it."""
        self.connections[peer] = Connection(self._limits, server_side=False)
        self._open_queued(peer)

    def drain(self) -> None:
        """Send GOAWAY to the client, once."""
        if not self.draining:
            self.draining = True
            self.client.goaway()

    def fail_upstream(self, peer: Peer, reason: str) -> None:
        """Respond UNAVAILABLE to the exchanges of a lost upstream, and make the client reconnect."""
        self._unavailable[peer] = f"the {_NAMES[peer]} is not available: {reason}"
        for exchange in self._open_at(peer):
            if exchange.upstream.end_received:
                self.close_upstream(exchange)
                self.close_if_complete(exchange)
            else:
                self.respond(exchange, UNAVAILABLE, self._unavailable[peer])
        self.drain()

    def drain_upstream(self, peer: Peer, last_stream_id: int) -> None:
        """Refuse the streams that an upstream did not process before its GOAWAY: the client can retry them."""
        self._going_away.add(peer)
        for exchange in self._open_at(peer):
            if exchange.upstream.id > last_stream_id or exchange.id in self._queues.get(peer, ()):
                self.close_upstream(exchange)
                self.abort(exchange, Outcome.RESET, client_code=ErrorCode.REFUSED_STREAM)
        self.drain()

    def _open_at(self, peer: Peer) -> list[Exchange]:
        """Return the exchanges whose upstream stream is not closed."""
        return [
            exchange
            for exchange in self.by_id.values()
            if exchange.upstream_peer is peer and not exchange.upstream.closed
        ]

    def open_upstream(self, exchange: Exchange) -> None:
        """Open an exchange's upstream stream, or queue it until the upstream allows another stream."""
        peer = exchange.upstream_peer
        upstream = self.connections.get(peer)
        if peer in self._unavailable:
            self.respond(exchange, UNAVAILABLE, self._unavailable[peer])
        elif peer in self._going_away:
            self.abort(exchange, Outcome.RESET, client_code=ErrorCode.REFUSED_STREAM)
        elif upstream is None or not upstream.can_open_stream:
            self._enqueue(exchange, connected=upstream is not None)
        elif upstream.writer.backlog > self._limits.max_backlog:
            self.respond(exchange, UNAVAILABLE, f"the {_NAMES[peer]} does not read")
        else:
            upstream.open_stream(exchange.upstream, upstream.last_stream_id + 2)
            if upstream.last_stream_id + 2 > MAX_STREAM_ID:
                self._going_away.add(peer)
                self.drain()
            self.flush(exchange.upstream)

    def _enqueue(self, exchange: Exchange, *, connected: bool) -> None:
        if not connected and exchange.upstream_peer not in self._queues:
            self.events.append(UpstreamNeeded(exchange.upstream_peer))
        self._queues.setdefault(exchange.upstream_peer, {})[exchange.id] = exchange

    def _open_queued(self, peer: Peer) -> None:
        queue = self._queues.get(peer)
        upstream = self.connections[peer]
        while queue and upstream.can_open_stream:
            self.open_upstream(queue.pop(next(iter(queue))))

    def flush_blocked(self, peer: Peer) -> None:
        """Write blocked streams and open queued ones after a peer updated its window or settings."""
        connection = self.connections.get(peer)
        for stream, written in connection.writer.flush_blocked() if connection is not None else ():
            self._data_written(stream, written)
        if peer is not Peer.CLIENT:
            self._open_queued(peer)

    def flush(self, stream: Stream) -> None:
        """Write what is queued on a stream as far as windows allow."""
        self._data_written(stream, self._connection_of(stream).writer.flush(stream))

    def credit(self, stream: Stream, size: int) -> None:
        """Credit the sender for bytes of a stream that are no longer buffered."""
        self._connection_of(stream).credit(stream, size)

    def _connection_of(self, stream: Stream) -> Connection:
        exchange = stream.exchange
        return self.client if stream is exchange.client else self.connections[exchange.upstream_peer]

    def _data_written(self, stream: Stream, written: int) -> None:
        """Credit the sender of DATA that was written to ``stream``, unless it got its credit while held."""
        if stream.held_bytes:
            self._count_held(stream, -min(written, stream.held_bytes))
        if stream.reserved_bytes and not stream.buffered_bytes:
            self.release_memory(stream)
        credited = min(written, stream.credited_bytes)
        stream.credited_bytes -= credited
        if written > credited:
            self.credit(opposite(stream), written - credited)
        if stream.end_sent:
            self.close_if_complete(stream.exchange)

    def close_if_complete(self, exchange: Exchange) -> None:
        """Close the streams whose two directions are both closed."""
        client, upstream = exchange.client, exchange.upstream
        if upstream.end_sent and upstream.end_received:
            self.close_upstream(exchange)
        if client.end_sent and (client.end_received or upstream.closed):
            self._close_client(exchange, None if client.end_received else ErrorCode.NO_ERROR)
        if client.closed and upstream.closed:
            self._remove(exchange)

    def respond(
        self, exchange: Exchange, status: int, message: str, details: bytes = b"", *, code: int = ErrorCode.CANCEL
    ) -> None:
        """End the response with our own gRPC status, after what was already forwarded, and reset the upstream."""
        client = exchange.client
        exchange.outcome = Outcome.REFUSED
        exchange.grpc_status = b"%d" % status
        self.close_upstream(exchange, code)
        if client.held:
            self._drop_queued(client)
        if client.headers_sent:
            client.queued_trailers = trailers(status, message, details)
        else:
            client.queued_headers.append(trailers_only(status, message, details))
            client.end_on_headers = True
        client.end_queued = True
        self.flush(client)

    def abort(
        self,
        exchange: Exchange,
        outcome: Outcome,
        *,
        client_code: int | None = None,
        upstream_code: int = ErrorCode.CANCEL,
    ) -> None:
        """Close both streams at once; without ``client_code`` the client is not sent RST_STREAM."""
        exchange.outcome = outcome
        self.close_upstream(exchange, upstream_code)
        self._close_client(exchange, client_code)
        self._remove(exchange)

    def _close_client(self, exchange: Exchange, code: int | None) -> None:
        stream = exchange.client
        if stream.closed:
            return
        if code is not None:
            self.client.reset_stream(stream.id, code)
        self._drop_queued(stream)
        self.client.close_stream(stream)

    def close_upstream(self, exchange: Exchange, code: int | None = None) -> None:
        """Close an exchange's upstream stream; send RST_STREAM if it was opened and ``code`` is given."""
        stream = exchange.upstream
        if stream.closed:
            return
        self._drop_queued(stream)
        stream.closed = True
        self._queues.get(exchange.upstream_peer, {}).pop(exchange.id, None)
        if stream.windows is None:
            return
        upstream = self.connections[exchange.upstream_peer]
        if code is not None and not upstream.closed:
            upstream.reset_stream(stream.id, code)
        upstream.close_stream(stream)
        if not upstream.closed:
            self._open_queued(exchange.upstream_peer)

    def _count_held(self, stream: Stream, change: int) -> None:
        stream.held_bytes += change
        self.held_bytes += change

    def hold(self, stream: Stream, size: int) -> None:
        """Count queued DATA of a stream as held."""
        self._count_held(stream, size)

    def credit_held(self, stream: Stream) -> None:
        """Credit the sender of DATA that is held, unless it waits for memory."""
        due = stream.buffered_bytes - stream.credited_bytes
        if due > 0 and not stream.is_waiting:
            stream.credited_bytes += due
            self.credit(opposite(stream), due)

    def replace_body(self, stream: Stream, body: bytes) -> None:
        """Replace the DATA of a held stream."""
        self._count_held(stream, len(body) - stream.held_bytes)
        stream.replace_body(body)
        stream.credited_bytes = len(body)

    def release_memory(self, stream: Stream) -> None:
        """Give back the memory that is reserved for a stream, or wait for none any longer."""
        size, stream.reserved_bytes = stream.reserved_bytes, 0
        if stream.is_waiting:
            stream.is_waiting = False
            self.budget.leave(stream)
        if size:
            self.budget.release(size)

    def _drop_queued(self, stream: Stream) -> None:
        self._count_held(stream, -stream.held_bytes)
        stream.credited_bytes = 0
        stream.clear()
        self.release_memory(stream)

    def _remove(self, exchange: Exchange) -> None:
        if self.by_id.pop(exchange.id, None) is None:
            return
        self._removed.append(exchange)
        if exchange.outcome is Outcome.COMPLETED:
            self.resets = max(0, self.resets - 1)
        self.events.append(
            StreamClosed(exchange.id, exchange.path, exchange.hooked, exchange.outcome, exchange.grpc_status)
        )


def held_event(stream: Stream) -> RelayEvent:
    """Return the event of a complete held message."""
    exchange = stream.exchange
    if stream is exchange.upstream:
        return RequestHeld(exchange.id, exchange.path, stream.queued_headers[0], stream.queued_body())
    return ResponseHeld(
        exchange.id, exchange.path, stream.queued_headers[-1], stream.queued_body(), stream.queued_trailers or []
    )


def opposite(stream: Stream) -> Stream:
    """Return the other stream of the same exchange."""
    exchange = stream.exchange
    return exchange.upstream if stream is exchange.client else exchange.client


def trailers(status: int, message: str, details: bytes = b"") -> Fields:
    """Return gRPC trailers with a percent-encoded message."""
    text = _PERCENT_ENCODED.sub(lambda found: b"%%%02X" % found[0][0], message.encode(errors="replace"))
    fields = [(b"grpc-status", b"%d" % status), (b"grpc-message", text)]
    if details:
        fields.append((b"grpc-status-details-bin", base64.b64encode(details).rstrip(b"=")))
    return fields


def trailers_only(status: int, message: str, details: bytes = b"") -> Fields:
    """Return the fields of a Trailers-Only response."""
    return [(b":status", b"200"), (b"content-type", b"application/grpc"), *trailers(status, message, details)]


def grpc_status_in(fields: Fields) -> bytes:
    """Return the value of grpc-status, or empty bytes if absent."""
    for name, value in fields:
        if name == b"grpc-status":
            return value
    return b""
