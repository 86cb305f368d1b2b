"""Hooked calls of each relayed connection: stream events in, dispatch to plugins, commands to the relay out."""

from collections.abc import Callable
from functools import partial
from typing import Final

from governor.errors import Kind
from governor.process.telemetry import logging
from governor.runtimeproxy.cri.messages import CALLS
from governor.runtimeproxy.grpc import status_codes
from governor.runtimeproxy.grpc.deadlines import timeout_s
from governor.runtimeproxy.hooks.calls import Call
from governor.runtimeproxy.hooks.dispatch import Dispatcher
from governor.runtimeproxy.hooks.handlers import Handlers
from governor.runtimeproxy.hooks.held_call import Held, Rejected
from governor.runtimeproxy.http2.events import (
    RelayEvent,
    RequestData,
    RequestHeld,
    RequestTooLarge,
    ResponseHeld,
    StreamClosed,
    StreamOpened,
)
from governor.runtimeproxy.http2.exchanges import grpc_status_in
from governor.runtimeproxy.http2.header_blocks import Fields
from governor.runtimeproxy.http2.relay import Relay
from governor.runtimeproxy.http2.streams import Outcome
from governor.runtimeproxy.metrics import HookMetrics
from governor.runtimeproxy.ops.audit import AuditLog
from governor.runtimeproxy.ops.tap import ConnectionTap, Tap
from governor.runtimeproxy.store.records import Records
from governor.wire.hooks.points import Hook

_log = logging.get_logger(__name__)
_PATHS: Final = {path.encode(): call for path, call in CALLS.items()}
_TIMEOUT: Final = b"grpc-timeout"
_ENCODING: Final = b"grpc-encoding"
_TRACE_CONTEXT: Final = frozenset({b"traceparent", b"tracestate", b"baggage"})
"""Passed to plugins."""
_HEADERS: Final = _TRACE_CONTEXT | {_TIMEOUT, _ENCODING}
_OK: Final = b"%d" % status_codes.OK


class PluginHooks:
    """Holds hooked calls while plugins are registered, and reports all calls while a tap is open."""

    def __init__(
        self, handlers: Handlers, dispatcher: Dispatcher, metrics: HookMetrics, tap: Tap, records: Records
    ) -> None:
        self._handlers = handlers
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._tap = tap
        self._records = records
        self._connections: set[ConnectionHooks] = set()
        self.audit = AuditLog()
        self._notifying = 0
        self.notified: Callable[[], None] = lambda: None

    @property
    def has_plugins(self) -> bool:
        """Return whether there is any plugin or policy."""
        return bool(self._handlers.all)

    @property
    def active(self) -> bool:
        """Return whether connections must be relayed rather than copied."""
        return self.has_plugins or self._tap.is_open

    @property
    def is_notifying(self) -> bool:
        """Return whether plugins are being notified of what the runtime has done."""
        return self._notifying > 0

    def hooked(self, path: bytes) -> bool:
        """Return whether a call is held, for its hooks or for the records."""
        return path in _PATHS and self.has_plugins

    def handler_for(self, relay: Relay, pump: Callable[[], None]) -> "ConnectionHooks":
        """Return the handler of a relayed connection's held calls."""
        tap = ConnectionTap(self._tap, self._records)
        connection = ConnectionHooks(self, relay, pump, self._dispatcher, self._metrics, tap)
        self._connections.add(connection)
        relay.tapped = self._tap.is_open
        return connection

    def discard(self, connection: "ConnectionHooks") -> None:
        """Forget a closed connection."""
        self._connections.discard(connection)

    def count_notification(self, change: int) -> None:
        """Count the start or the end of a notification."""
        self._notifying += change
        if not self._notifying:
            self.notified()

    def tap_changed(self) -> None:
        """Start or stop reporting of calls after a tap was opened or closed."""
        for connection in self._connections:
            connection.relay.tapped = self._tap.is_open


class ConnectionHooks:
    """Held calls of one relayed connection."""

    def __init__(
        self,
        hooks: PluginHooks,
        relay: Relay,
        pump: Callable[[], None],
        dispatcher: Dispatcher,
        metrics: HookMetrics,
        tap: ConnectionTap,
    ) -> None:
        self._hooks = hooks
        self.relay = relay
        self._pump = pump
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._tap = tap
        self._held: dict[int, Held] = {}

    def handle(self, event: RelayEvent) -> None:
        """Handle an event of a stream."""
        match event:
            case RequestHeld():
                self._call_plugins(event)
            case ResponseHeld():
                self._responded(event, self._held[event.stream_id])
            case StreamClosed():
                self._end(event)
            case RequestTooLarge():
                held = self._held[event.stream_id] = held_call(_PATHS[event.path], event.fields)
                self._dispatcher.too_large(held, partial(self._passed_on, event.stream_id, held))
            case StreamOpened():
                self._tap.opened(event)
            case RequestData():
                self._tap.received(event)
            case _:
                return

    def close(self) -> None:
        """Cancel all work for the connection, except notifying plugins of what the runtime has done."""
        for held in self._held.values():
            if not held.succeeded:
                held.cancel()
        self._hooks.discard(self)

    def _call_plugins(self, event: RequestHeld) -> None:
        """Call the plugins of a request; a defect of the proxy must not leave the client waiting."""
        stream = event.stream_id
        held = self._held[stream] = held_call(_PATHS[event.path], event.fields)
        try:
            self._dispatcher.before(held, event.body, partial(self._dispatched, stream, held))
        except Exception as error:  # noqa: BLE001 - see above
            _log.error("held call failed in the proxy", exc_info=error)
            self._reject(stream, held, Kind.INTERNAL, "internal error of the runtime proxy; see its log")
            self._pump()

    def _reject(self, stream: int, held: Held, kind: Kind, message: str) -> None:
        held.rejection = message
        self.relay.refuse(stream, status_codes.CODE[kind], message)

    def _dispatched(self, stream: int, held: Held, rejected: Rejected | None) -> None:
        """Release or reject a request that plugins were called for."""
        held.work = None
        if rejected is not None:
            self._reject(stream, held, rejected.kind, rejected.message)
            self._pump()
            return
        is_released = self.relay.release(stream, held.body, hold_response=True)
        held.body = None
        self._pump()
        if is_released:
            self._hooks.audit.record(held)

    def _passed_on(self, stream: int, held: Held, rejected: Rejected | None) -> None:
        """Forward or reject a request that is too large to be held."""
        if rejected is not None:
            self._reject(stream, held, rejected.kind, rejected.message)
        else:
            self.relay.pass_on(stream)
        self._pump()

    def _responded(self, event: ResponseHeld, held: Held) -> None:
        held.is_response_read = True
        status = grpc_status_in(event.trailers) or grpc_status_in(event.fields)
        encoding = dict(event.fields).get(_ENCODING, b"").decode(errors="replace")
        error = _error(status)
        hook = self._dispatcher.post_hook(held, error)
        if hook is None:
            # Recorded when the response was written, in ``_finish``.
            held.unrecorded = error, event.body, encoding
            self.relay.release_response(event.stream_id)
        else:
            self._dispatcher.responded(held, error, event.body, encoding)
            self._notify(held, hook, partial(self._notified, event.stream_id, held))

    def _notify(self, held: Held, hook: Hook, done: Callable[[Rejected | None], None]) -> None:
        self._hooks.count_notification(1)

        def ended(rejected: Rejected | None) -> None:
            held.work = None
            self._hooks.count_notification(-1)
            done(rejected)

        self._dispatcher.after(held, hook, ended)

    def _notified(self, stream: int, held: Held, rejected: Rejected | None) -> None:
        if rejected is not None:
            self._reject(stream, held, rejected.kind, rejected.message)
        else:
            self.relay.release_response(stream)
        if stream in self._held:
            self._pump()
        else:
            # The client is gone; the call has ended now.
            self._dispatcher.finish(held)

    def _end(self, event: StreamClosed) -> None:
        if not event.hooked and self._tap.is_idle:
            return
        held = self._held.pop(event.stream_id, None)
        if held is not None and event.outcome is Outcome.COMPLETED and not held.is_response_read:
            self._passed_unread(event, held)
        if held is not None and not held.succeeded:
            held.cancel()
        self._finish(event, held)

    def _passed_unread(self, event: StreamClosed, held: Held) -> None:
        """Notify plugins of a call whose response was too large to be held."""
        hook = self._dispatcher.responded_unread(held, _error(event.grpc_status))
        if hook is not None:
            self._notify(held, hook, lambda _rejected: self._dispatcher.finish(held))

    def _finish(self, event: StreamClosed, held: Held | None) -> None:
        if event.hooked:
            self._metrics.count_call(str(_PATHS[event.path]), event.outcome.value)
        if held is not None and held.unrecorded is not None:
            self._dispatcher.responded(held, *held.unrecorded)
        if held is not None and held.work is None:
            self._dispatcher.finish(held)
        self._tap.ended(event, held)


def held_call(call: Call, fields: Fields) -> Held:
    """Return the state of a call with these header fields."""
    deadline_s, encoding, metadata = None, "", []
    for field in fields:
        name = field[0]
        if name not in _HEADERS:
            continue
        if name == _TIMEOUT:
            deadline_s = timeout_s(field[1].decode(errors="replace"))
        elif name == _ENCODING:
            encoding = field[1].decode(errors="replace")
        else:
            metadata.append(field)
    return Held(call, deadline_s, encoding, metadata)


def _error(status: bytes) -> Kind | None:
    """Return the kind of error that a status stands for, or None if it is OK."""
    return None if status == _OK else status_codes.kind_of(status_codes.parse(status or b"") or status_codes.INTERNAL)
