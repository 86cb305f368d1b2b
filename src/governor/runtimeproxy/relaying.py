"""The held calls of relayed connections: one task for each, from its request to the answer that the client gets."""

import asyncio
from collections.abc import Callable

from governor.process import logging
from governor.runtimeproxy import audit, grpcstatus
from governor.runtimeproxy.calls import CALLS
from governor.runtimeproxy.dispatch import Dispatch, Refused
from governor.runtimeproxy.held import Held
from governor.runtimeproxy.http2.events import Ended, Event, Opened, Requested, Responded, Said
from governor.runtimeproxy.http2.relay import Relay
from governor.runtimeproxy.metrics import HookMetrics
from governor.runtimeproxy.plugins import Plugins
from governor.runtimeproxy.records import Known
from governor.runtimeproxy.splice import Spawn
from governor.runtimeproxy.tap import Tap, Watch

_log = logging.get_logger(__name__)
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

    def attend(self, relay: Relay, spawn: Spawn, pump: Callable[[], None]) -> "HeldCalls":
        """Work on the held calls of a relayed connection."""
        watch = Watch(self._tap, self._known)
        calls = HeldCalls(relay, spawn, pump, self._dispatch, self._metrics, watch, self._attended.discard)
        self._attended.add(calls)
        relay.watched = self._tap.is_open
        return calls

    def tap_changed(self) -> None:
        """Somebody looks, or nobody does any more."""
        for calls in self._attended:
            calls.relay.watched = self._tap.is_open


class HeldCalls:
    """Those of one connection."""

    def __init__(
        self,
        relay: Relay,
        spawn: Spawn,
        pump: Callable[[], None],
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
        self._responses: dict[int, asyncio.Future[Responded]] = {}

    def handle(self, event: Event) -> None:
        """Something happened to a stream."""
        match event:
            case Requested():
                held = self._held[event.stream] = Held(_PATHS[event.path], event.fields)
                self._responses[event.stream] = asyncio.get_running_loop().create_future()
                self._tasks[event.stream] = self._spawn(self._serve(event, held))
            case Responded():
                response = self._responses.get(event.stream)
                if response is not None and not response.done():
                    response.set_result(event)
            case Ended():
                self._end(event)
            case Opened():
                self._watch.opened(event)
            case Said():
                self._watch.said(event)
            case _:
                return

    def close(self) -> None:
        """The connection is over: so is all work for it."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        self._responses.clear()
        self._closed(self)

    def _end(self, event: Ended) -> None:
        self._responses.pop(event.stream, None)
        held = self._held.pop(event.stream, None)
        task = self._tasks.pop(event.stream, None)
        if task is not None:
            task.cancel()
            # Until then plugins may still be asked.
            task.add_done_callback(lambda _task: self._watch.ended(event, held))
        else:
            self._watch.ended(event, held)
        if call := _PATHS.get(event.path):
            self._metrics.calls.labels(str(call), event.outcome.value).inc()

    async def _serve(self, requested: Requested, held: Held) -> None:
        stream, response = requested.stream, self._responses[requested.stream]
        try:
            await self._dispatch.before(held, requested.body)
            if not self.relay.release(stream, held.body, hold_response=True):
                return
            self._pump()
            if held.consultation is not None:
                # Only now, so that the runtime does not wait for the log.
                audit.record(held.consultation)
            responded = await response
            await self._dispatch.after(held, responded.fields, responded.body, responded.trailers)
            self.relay.release_response(stream)
        except Refused as refusal:
            held.refusal = refusal.message
            self.relay.refuse(stream, refusal.code, refusal.message)
        except Exception as error:  # noqa: BLE001 - whatever happens, the client must hear of its call
            _log.error("a held call failed here", exc_info=error)
            held.refusal = "the runtime proxy failed; see its log"
            self.relay.refuse(stream, grpcstatus.INTERNAL, held.refusal)
        finally:
            self._tasks.pop(stream, None)
            self._pump()
            # Only now, so that the client does not wait for it.
            self._dispatch.over(held)
