"""A runtime with all routes to it, one client per route, and the operations measured there."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from bench.proxy.operations import (
    CREATE,
    LIST,
    POD_LIFECYCLE,
    VERSION,
    ListContainers,
    Operation,
    PodLifecycle,
    Prepare,
    prepare_create,
    prepare_version,
)
from bench.proxy.plugins import write_policy
from bench.proxy.processes import Memory
from bench.proxy.requests import ANNOTATION, pod, workload
from bench.proxy.routes import DIRECT, OURS, PLUGIN_SETS, POLICY, Route, Runtime
from testbed.cri.client import CriClient
from testbed.cri.peers import FakeRuntime
from testbed.cri.pods import Pod
from testbed.cri.runtime import CriRuntime
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.waiting import until

CONCURRENCY: Final = 16
PEER_TIMEOUT_S: Final = 120.0


class Sizes(msgspec.Struct, frozen=True):
    """Repetitions of one operation in a round; calls at higher concurrency are repeated four times as often."""

    calls: int = 150
    lifecycles: int = 2


class Environment:
    """One runtime and its routes."""

    def __init__(self, clients: Mapping[Route, CriClient], cgroup: str) -> None:
        self.clients = clients
        self.idle = {route: Memory.of(route.pid) for route in clients if route.pid is not None}
        self._cgroup = cgroup

    @property
    def direct(self) -> CriClient:
        """The client of the direct route."""
        return next(client for route, client in self.clients.items() if route.proxy == DIRECT)

    def memory(self) -> dict[str, tuple[Memory, Memory]]:
        """Return each proxy's memory after its first call and now."""
        return {route.name: (idle, Memory.of(route.pid)) for route, idle in self.idle.items() if route.pid is not None}

    async def operations(self, runtime: Runtime, sizes: Sizes) -> list[Operation[CriClient]]:
        """Create what the operations need and return them."""
        listing = await ListContainers.of_new_pod(self.direct, self._cgroup)
        calls: dict[str, Prepare[CriClient]] = {VERSION: prepare_version, LIST: listing}
        if runtime == "fake":
            calls[CREATE] = prepare_create
        operations = [
            Operation(title, prepare, at_once, sizes.calls * (1 if at_once == 1 else 4))
            for title, prepare in calls.items()
            for at_once in (1, CONCURRENCY)
        ]
        if runtime == "containerd":
            operations.append(Operation(POD_LIFECYCLE, PodLifecycle(self._cgroup), 1, sizes.lifecycles))
            operations.append(Operation(POD_LIFECYCLE, PodLifecycle(self._cgroup), CONCURRENCY, CONCURRENCY))
        return operations

    async def check_plugins(self) -> None:
        """Raise unless every route calls its plugins: a proxy that skips them would look fast."""
        for route, client in self.clients.items():
            called = await self._called_plugins(client)
            expected = PLUGIN_SETS[route.plugins]
            if called != expected:
                message = f"{called} plugins changed a container on the route {route.name}, expected {expected}"
                raise RuntimeError(message)

    async def _called_plugins(self, client: CriClient) -> int:
        probe = await Pod.run(client, pod("probe", self._cgroup))
        container_id = await probe.create(workload("probe"))
        status = (await self.direct.answer("ContainerStatus", {"container_id": container_id}))["status"]
        await probe.end()
        return sum(ANNOTATION.format(number) in status["annotations"] for number in range(3))


@asynccontextmanager
async def fake_runtime(directory: Path) -> AsyncIterator[tuple[Path, str]]:
    """Run the fake runtime; yield its socket and the cgroup of pods."""
    async with FakeRuntime(directory / "fake") as runtime:
        yield runtime.socket, "bench"


@asynccontextmanager
async def containerd(directory: Path) -> AsyncIterator[tuple[Path, str]]:
    """Run containerd; yield its socket and the cgroup of pods."""
    async with CriRuntime(directory / "containerd", "containerd-2") as runtime:
        yield runtime.socket, runtime.cgroup


@asynccontextmanager
async def environment(
    directory: Path, socket: Path, cgroup: str, hooks: Mapping[str, Path], peers: Sequence[Route]
) -> AsyncIterator[Environment]:
    """Start our proxy with every set of plugins and connect a client to each route, including peers."""
    async with AsyncExitStack() as running:
        routes = [Route(DIRECT, socket)]
        for plugins in PLUGIN_SETS:
            proxy = RuntimeProxy(directory / f"{OURS}-{plugins or 'none'}", socket)
            proxy.plugins = hooks[plugins]
            if plugins == POLICY:
                write_policy(proxy.policies)
            await running.enter_async_context(proxy)
            routes.append(Route(OURS, proxy.socket, proxy.pid, plugins))
        clients = {}
        for route in (*routes, *peers):
            client = CriClient(directory / f"client-{route.name}", route.socket)
            clients[route] = await running.enter_async_context(client)
            await until(partial(is_serving, client), within_s=PEER_TIMEOUT_S)
        yield Environment(clients, cgroup)


async def is_serving(client: CriClient) -> bool:
    """Return whether the route responds; a peer may still wait for its runtime."""
    reply = await client.call("Version", {}, deadline_s=1)
    if reply.code != "OK":
        await asyncio.sleep(0.1)
    return reply.code == "OK"
