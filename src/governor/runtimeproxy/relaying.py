"""The held calls of relayed connections: one task for each, from its request to the answer that the client gets."""

import asyncio
from collections.abc import Callable

from governor.process import logging
from governor.runtimeproxy import grpcstatus
from governor.runtimeproxy.calls import CALLS
from governor.runtimeproxy.dispatch import Dispatch, Refused
from governor.runtimeproxy.http2.events import Ended, Event, Requested, Responded
from governor.runtimeproxy.http2.relay import Relay
from governor.runtimeproxy.metrics import HookMetrics
from governor.runtimeproxy.plugins import Plugins
from governor.runtimeproxy.splice import Spawn

_log = logging.get_logger(__name__)
_PATHS = {path.encode(): call for path, call in CALLS.items()}


class PluginHooks:
    """Holds the calls that concern the proxy while there are plugins."""

    def __init__(self, plugins: Plugins, dispatch: Dispatch, metrics: HookMetrics) -> None:
        self._plugins = plugins
        self._dispatch = dispatch
        self._metrics = metrics

    @property
    def active(self) -> bool:
        """Whether there are plugins."""
        return bool(self._plugins.registrations.by_file)

    def hooked(self, path: bytes) -> bool:
        """Whether a call is to be held, for plugins or to remember it."""
        return path in _PATHS and self.active

    def attend(self, relay: Relay, spawn: Spawn, pump: Callable[[], None]) -> "HeldCalls":
        """Work on the held calls of a relayed connection."""
        return HeldCalls(relay, spawn, pump, self._dispatch, self._metrics)


class HeldCalls:
    """Those of one connection."""

    def __init__(
        self, relay: Relay, spawn: Spawn, pump: Callable[[], None], dispatch: Dispatch, metrics: HookMetrics
    ) -> None:
        self._relay = relay
        self._spawn = spawn
        self._pump = pump
        self._dispatch = dispatch
        self._metrics = metrics
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._responses: dict[int, asyncio.Future[Responded]] = {}

    def handle(self, event: Event) -> None:
        """Something happened to a stream."""
        match event:
            case Requested():
                self._responses[event.stream] = asyncio.get_running_loop().create_future()
                self._tasks[event.stream] = self._spawn(self._serve(event))
            case Responded():
                response = self._responses.get(event.stream)
                if response is not None and not response.done():
                    response.set_result(event)
            case Ended():
                self._end(event)
            case _:
                return

    def close(self) -> None:
        """The connection is over: so is all work for it."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        self._responses.clear()

    def _end(self, event: Ended) -> None:
        self._responses.pop(event.stream, None)
        task = self._tasks.pop(event.stream, None)
        if task is not None:
            task.cancel()
        if call := _PATHS.get(event.path):
            self._metrics.calls.labels(str(call), event.outcome.value).inc()

    async def _serve(self, requested: Requested) -> None:
        stream, response = requested.stream, self._responses[requested.stream]
        try:
            held = await self._dispatch.before(_PATHS[requested.path], requested.fields, requested.body)
            if not self._relay.release(stream, held.body, hold_response=True):
                return
            self._pump()
            responded = await response
            await self._dispatch.after(held, responded.fields, responded.body, responded.trailers)
            self._relay.release_response(stream)
        except Refused as refusal:
            self._relay.refuse(stream, refusal.code, refusal.message)
        except Exception as error:  # noqa: BLE001 - whatever happens, the client must hear of its call
            _log.error("a held call failed here", exc_info=error)
            self._relay.refuse(stream, grpcstatus.INTERNAL, "the runtime proxy failed; see its log")
        finally:
            self._tasks.pop(stream, None)
            self._pump()
