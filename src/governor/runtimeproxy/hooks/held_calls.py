"""The held calls of relayed connections, from the request to the answer that the client gets: a task asks plugins."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from governor.process.telemetry import logging
from governor.runtimeproxy.grpc import status_codes
from governor.runtimeproxy.hooks.calls import CALLS
from governor.runtimeproxy.hooks.dispatch import Dispatch, Refused
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
from governor.runtimeproxy.metrics import HookMetrics
from governor.runtimeproxy.ops import audit
from governor.runtimeproxy.ops.tap import Tap, Watch
from governor.runtimeproxy.plugins.plugin import Plugins
from governor.runtimeproxy.session import Pump, Spawn
from governor.runtimeproxy.store.records import Known
from governor.wire.hooks.points import Hook

_log = logging.get_logger(__name__)
_Step = Callable[[], Coroutine[Any, Any, Callable[[], None] | None]]
"""Work on a held call; what it returns is done when the peers have what it has for them."""
_PATHS = {path.encode(): call for path, call in CALLS.items()}


class PluginHooks:
    """Holds the calls that concern the proxy while there are plugins, and shows all calls while somebody looks."""

    def __init__(self, plugins: Plugins, dispatch: Dispatch, metrics: HookMetrics, tap: Tap, known: Known) -> None:
        self._plugins = plugins
        self._dispatch = dispatch
        self._metrics = metrics
        self._tap = tap
        self._known = known
        self._attended: set[HeldCalls] = set()

    @property
    def has_plugins(self) -> bool:
        """Whether there are plugins."""
        return bool(self._plugins.registrations.by_file)

    @property
    def active(self) -> bool:
        """Whether anybody needs to know what the bytes of a connection mean."""
        return self.has_plugins or self._tap.is_open

    def hooked(self, path: bytes) -> bool:
        """Whether a call is to be held, for plugins or to remember it."""
        return path in _PATHS and self.has_plugins

    def attend(self, relay: Relay, spawn: Spawn, pump: Pump) -> "HeldCalls":
        """Work on the held calls of a relayed connection."""
        watch = Watch(self._tap, self._known)
        calls = HeldCalls(relay, spawn, pump, self._dispatch, self._metrics, watch, self._attended.discard)
        self._attended.add(calls)
        relay.tapped = self._tap.is_open
        return calls

    def tap_changed(self) -> None:
        """Somebody looks, or nobody does any more."""
        for calls in self._attended:
            calls.relay.tapped = self._tap.is_open


class HeldCalls:
    """Those of one connection."""

    def __init__(
        self,
        relay: Relay,
        spawn: Spawn,
        pump: Pump,
        dispatch: Dispatch,
        metrics: HookMetrics,
        watch: Watch,
        closed: Callable[["HeldCalls"], None],
    ) -> None:
        self.relay = relay
        self._spawn = spawn
        self._pump = pump
        self._dispatch = dispatch
        self._metrics = metrics
        self._watch = watch
        self._closed = closed
        self._held: dict[int, Held] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def handle(self, event: RelayEvent) -> None:
        """Something happened to a stream."""
        match event:
            case RequestHeld():
                held = self._held[event.stream_id] = Held(_PATHS[event.path], event.fields)
                self._work(event.stream_id, held, partial(self._ask, event, held))
            case ResponseHeld():
                self._responded(event, self._held[event.stream_id])
            case StreamClosed():
                self._end(event)
            case StreamOpened():
                self._watch.opened(event)
            case RequestData():
                self._watch.said(event)
            case _:
                return

    def close(self) -> None:
        """The connection is over: so is all work for it."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        self._closed(self)

    def _work(self, stream: int, held: Held, work: _Step) -> None:
        self._tasks[stream] = self._spawn(partial(self._answered, stream, held, work))

    async def _answered(self, stream: int, held: Held, work: _Step) -> None:
        """Whatever happens at work, the client hears of its call."""
        then: Callable[[], None] | None = None
        try:
            then = await work()
        except Refused as refusal:
            self._refuse(stream, held, refusal.code, refusal.message)
        except Exception as error:  # noqa: BLE001 - a defect of ours is no reason to let the client wait
            _log.error("a held call failed here", exc_info=error)
            self._refuse(stream, held, status_codes.INTERNAL, "the runtime proxy failed; see its log")
        finally:
            self._tasks.pop(stream, None)
            self._pump(then)

    def _refuse(self, stream: int, held: Held, code: int, message: str) -> None:
        held.refusal = message
        self.relay.refuse(stream, code, message)

    async def _ask(self, requested: RequestHeld, held: Held) -> Callable[[], None] | None:
        await self._dispatch.before(held, requested.body)
        is_released = self.relay.release(requested.stream_id, held.body, hold_response=True)
        # So the runtime does not wait for the log, nor the log for the runtime.
        return partial(audit.record, held.consultation) if is_released and held.consultation is not None else None

    def _responded(self, event: ResponseHeld, held: Held) -> None:
        hook = self._dispatch.done(held, event.fields, event.body, event.trailers)
        if hook is None:
            self.relay.release_response(event.stream_id)
        else:
            self._work(event.stream_id, held, partial(self._tell, event.stream_id, held, hook))

    async def _tell(self, stream: int, held: Held, hook: Hook) -> None:
        await self._dispatch.after(held, hook)
        self.relay.release_response(stream)

    def _end(self, event: StreamClosed) -> None:
        held = self._held.pop(event.stream_id, None)
        task = self._tasks.pop(event.stream_id, None)
        if task is not None:
            task.cancel()
            # Until then plugins may still be asked.
            task.add_done_callback(lambda _task: self._over(event, held))
        else:
            # Only then, so that the client does not wait for it.
            asyncio.get_running_loop().call_soon(self._over, event, held)
        if event.hooked:
            self._metrics.calls.labels(str(_PATHS[event.path]), event.outcome.value).inc()

    def _over(self, event: StreamClosed, held: Held | None) -> None:
        if held is not None:
            self._dispatch.over(held)
        self._watch.ended(event, held)
