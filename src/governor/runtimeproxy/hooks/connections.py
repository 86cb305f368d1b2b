"""Hooked calls of each relayed connection: stream events in, dispatch in a task per call, commands to the relay out."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from governor.process.telemetry import logging
from governor.runtimeproxy.grpc import status_codes
from governor.runtimeproxy.hooks.calls import CALLS
from governor.runtimeproxy.hooks.dispatch import Dispatcher, Rejected
from governor.runtimeproxy.hooks.held_call import Held
from governor.runtimeproxy.http2.events import (
    RelayEvent,
    RequestData,
    RequestHeld,
    ResponseHeld,
    StreamClosed,
    StreamOpened,
)
from governor.runtimeproxy.http2.relay import Relay
from governor.runtimeproxy.http2.streams import Outcome
from governor.runtimeproxy.metrics import HookMetrics
from governor.runtimeproxy.ops import audit
from governor.runtimeproxy.ops.tap import ConnectionTap, Tap
from governor.runtimeproxy.plugins.client import Plugins
from governor.runtimeproxy.session import Pump, Spawn
from governor.runtimeproxy.store.records import Records
from governor.wire.hooks.points import Hook

_log = logging.get_logger(__name__)
_Step = Callable[[], Coroutine[Any, Any, Callable[[], None] | None]]
"""Work on a held call; the callback that it returns runs after the peers' bytes are written."""
_PATHS = {path.encode(): call for path, call in CALLS.items()}


class PluginHooks:
    """Holds hooked calls while plugins are registered, and reports all calls while a tap is open."""

    def __init__(
        self, plugins: Plugins, dispatcher: Dispatcher, metrics: HookMetrics, tap: Tap, records: Records
    ) -> None:
        self._plugins = plugins
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._tap = tap
        self._records = records
        self._connections: set[ConnectionHooks] = set()

    @property
    def has_plugins(self) -> bool:
        """Return whether any plugin is registered."""
        return bool(self._plugins.registrations.by_file)

    @property
    def active(self) -> bool:
        """Return whether connections must be relayed rather than copied."""
        return self.has_plugins or self._tap.is_open

    def hooked(self, path: bytes) -> bool:
        """Return whether a call is held, for its hooks or for the records."""
        return path in _PATHS and self.has_plugins

    def handler_for(self, relay: Relay, spawn: Spawn, pump: Pump) -> "ConnectionHooks":
        """Return the handler of a relayed connection's held calls."""
        tap = ConnectionTap(self._tap, self._records)
        connection = ConnectionHooks(
            relay, spawn, pump, self._dispatcher, self._metrics, tap, self._connections.discard
        )
        self._connections.add(connection)
        relay.tapped = self._tap.is_open
        return connection

    def tap_changed(self) -> None:
        """Start or stop reporting of calls after a tap was opened or closed."""
        for connection in self._connections:
            connection.relay.tapped = self._tap.is_open


class ConnectionHooks:
    """Held calls of one relayed connection."""

    def __init__(
        self,
        relay: Relay,
        spawn: Spawn,
        pump: Pump,
        dispatcher: Dispatcher,
        metrics: HookMetrics,
        tap: ConnectionTap,
        closed: Callable[["ConnectionHooks"], None],
    ) -> None:
        self.relay = relay
        self._spawn = spawn
        self._pump = pump
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._tap = tap
        self._closed = closed
        self._held: dict[int, Held] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def handle(self, event: RelayEvent) -> None:
        """Handle an event of a stream."""
        match event:
            case RequestHeld():
                held = self._held[event.stream_id] = Held(_PATHS[event.path], event.fields)
                self._start(event.stream_id, held, partial(self._before, event, held))
            case ResponseHeld():
                self._responded(event, self._held[event.stream_id])
            case StreamClosed():
                self._end(event)
            case StreamOpened():
                self._tap.opened(event)
            case RequestData():
                self._tap.received(event)
            case _:
                return

    def close(self) -> None:
        """Cancel all work for the connection, except notifying plugins of what the runtime has done."""
        for stream, task in self._tasks.items():
            if not self._held[stream].succeeded:
                task.cancel()
        self._tasks.clear()
        self._closed(self)

    def _start(self, stream: int, held: Held, step: _Step) -> None:
        self._tasks[stream] = self._spawn(partial(self._run, stream, held, step))

    async def _run(self, stream: int, held: Held, step: _Step) -> None:
        """Run a step; whatever it raises becomes the client's response."""
        then: Callable[[], None] | None = None
        try:
            then = await step()
        except Rejected as rejected:
            self._reject(stream, held, rejected.code, rejected.message)
        except Exception as error:  # noqa: BLE001 - a defect of the proxy must not leave the client waiting
            _log.error("held call failed in the proxy", exc_info=error)
            self._reject(stream, held, status_codes.INTERNAL, "internal error of the runtime proxy; see its log")
        finally:
            self._tasks.pop(stream, None)
            self._pump(then)

    def _reject(self, stream: int, held: Held, code: int, message: str) -> None:
        held.rejection = message
        self.relay.refuse(stream, code, message)

    async def _before(self, requested: RequestHeld, held: Held) -> Callable[[], None] | None:
        await self._dispatcher.before(held, requested.body)
        is_released = self.relay.release(requested.stream_id, held.body, hold_response=True)
        # Logged after the request is written, so that the runtime does not wait for the log.
        return partial(audit.record, held.merged) if is_released and held.merged is not None else None

    def _responded(self, event: ResponseHeld, held: Held) -> None:
        held.is_response_read = True
        hook = self._dispatcher.responded(held, event.fields, event.body, event.trailers)
        if hook is None:
            self.relay.release_response(event.stream_id)
        else:
            self._start(event.stream_id, held, partial(self._after, event.stream_id, held, hook))

    async def _after(self, stream: int, held: Held, hook: Hook) -> None:
        await self._dispatcher.after(held, hook)
        self.relay.release_response(stream)

    def _end(self, event: StreamClosed) -> None:
        held = self._held.pop(event.stream_id, None)
        task = self._tasks.pop(event.stream_id, None)
        if held is not None and event.outcome is Outcome.COMPLETED and not held.is_response_read:
            task = self._passed_unread(event, held)
        if task is not None:
            if held is None or not held.succeeded:
                task.cancel()
            # A plugin call may be running until the task has ended.
            task.add_done_callback(lambda _task: self._finish(event, held))
        else:
            # Deferred, so that the client does not wait for it.
            asyncio.get_running_loop().call_soon(self._finish, event, held)
        if event.hooked:
            self._metrics.calls.labels(str(_PATHS[event.path]), event.outcome.value).inc()

    def _passed_unread(self, event: StreamClosed, held: Held) -> "asyncio.Task[None] | None":
        """Notify plugins of a call whose response was too large to be held."""
        hook = self._dispatcher.responded_unread(held, event.grpc_status)
        if hook is None:
            return None
        step = partial(self._after, event.stream_id, held, hook)
        return self._spawn(partial(self._run, event.stream_id, held, step))

    def _finish(self, event: StreamClosed, held: Held | None) -> None:
        if held is not None:
            self._dispatcher.finish(held)
        self._tap.ended(event, held)
