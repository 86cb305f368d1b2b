"""Kubelet's side in one protocol: the port by which ``main`` knows it. ``cri`` and ``docker`` implement it."""

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Protocol

import msgspec

from governor.process.telemetry.instruments import Registry
from governor.runtimeproxy.endpoint import Endpoint
from governor.runtimeproxy.handover import Retiring
from governor.runtimeproxy.hooks.dispatch import Dispatcher
from governor.runtimeproxy.hooks.handlers import Handlers
from governor.runtimeproxy.hooks.requests import Codec
from governor.runtimeproxy.http2.held_budget import HeldBudget
from governor.runtimeproxy.metrics import HookMetrics
from governor.runtimeproxy.ops.audit import AuditLog
from governor.runtimeproxy.ops.tap import Tap
from governor.runtimeproxy.store.cache import RecordCache, Runtime
from governor.runtimeproxy.upstream import Upstreams


class RuntimeClient(Runtime, Protocol):
    """Client of the runtime for the proxy's own calls."""

    async def stop_container(self, container_id: str) -> None:
        """Kill a container; it stays listed as exited."""

    def close(self) -> None:
        """Close the connection."""


class Server(Retiring, Protocol):
    """The server of kubelet's socket."""

    budget: HeldBudget

    async def run(self) -> None:
        """Serve until cancelled, then drain all connections and remove the socket."""

    def count(self, *, copied: bool) -> int:
        """Return how many open connections are copied, or relayed."""

    def held_bytes(self) -> int:
        """Return the size of all held messages."""

    def streams(self) -> int:
        """Return the number of calls in progress."""

    def hooks_changed(self) -> int:
        """Drain the connections that cannot be used since the handlers changed; return how many."""


class Parts(msgspec.Struct, frozen=True):
    """What a server is connected to."""

    endpoint: Endpoint
    upstreams: Upstreams
    handlers: Handlers
    dispatcher: Dispatcher
    metrics: HookMetrics
    tap: Tap
    records: RecordCache
    registry: Registry
    thread: Executor
    """Processes large messages, one at a time."""


class Serving(msgspec.Struct, frozen=True):
    """A server and its hooks."""

    server: Server
    audit: AuditLog
    tap_changed: Callable[[], None]
    """To be called after a tap was opened or closed."""


class Front(msgspec.Struct, frozen=True):
    """What differs between the protocols."""

    runtime: RuntimeClient
    codec: Codec
    serve: Callable[[Parts], Serving]
    """Returns a server that does not run yet."""
    probe: Callable[[Endpoint], Awaitable[str]]
    """Returns why a new client would not be served, or ``""``."""
