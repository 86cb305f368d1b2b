"""A runtime with all routes to it, each with a caller of its own, and what is done there."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from bench.proxy.acts import LIFE, Act, Listing, Living, Ready, asking_version, creating
from bench.proxy.processes import Memory
from bench.proxy.routes import DIRECT, OURS, PLUGIN_SETS, Route, Runtime
from bench.proxy.sample import MARK, pod, workload
from testbed.cri.client import CriClient
from testbed.cri.peers import FakeRuntime
from testbed.cri.pods import Pod
from testbed.cri.runtime import CriRuntime
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.waiting import until

AT_ONCE: Final = 16
PEERS_WITHIN_S: Final = 120.0


class Sizes(msgspec.Struct, frozen=True):
    """How many acts there are in one turn, one at a time; of calls four times as many are made at once."""

    calls: int = 150
    lives: int = 2


class Stage:
    """One runtime with its routes."""

    def __init__(self, clients: Mapping[Route, CriClient], cgroup: str) -> None:
        self.clients = clients
        self.idle = {route: Memory.of(route.pid) for route in clients if route.pid is not None}
        self._cgroup = cgroup

    @property
    def direct(self) -> CriClient:
        """The caller without a proxy."""
        return next(client for route, client in self.clients.items() if route.proxy == DIRECT)

    def memory(self) -> dict[str, tuple[Memory, Memory]]:
        """Of each proxy when it had answered one call, and now."""
        return {route.name: (idle, Memory.of(route.pid)) for route, idle in self.idle.items() if route.pid is not None}

    async def acts(self, runtime: Runtime, sizes: Sizes) -> list[Act]:
        """What is measured here."""
        listing = await Listing.of_new_pod(self.direct, self._cgroup)
        calls: dict[str, Ready] = {"Version": asking_version, "ListContainers(100)": listing}
        if runtime == "fake":
            calls["CreateContainer"] = creating
        acts = [
            Act(title, ready, at_once, sizes.calls * (1 if at_once == 1 else 4))
            for title, ready in calls.items()
            for at_once in (1, AT_ONCE)
        ]
        if runtime == "containerd":
            acts.append(Act(LIFE, Living(self._cgroup), 1, sizes.lives))
            acts.append(Act(LIFE, Living(self._cgroup), AT_ONCE, AT_ONCE))
        return acts

    async def see_plugins(self) -> None:
        """A proxy whose plugins are not asked would be measured as a fast one."""
        for route, client in self.clients.items():
            seen = await self._asked(client)
            wanted = PLUGIN_SETS[route.plugins]
            if seen != wanted:
                raise RuntimeError(f"{seen} plugins changed a container on the route {route.name} and not {wanted}")

    async def _asked(self, client: CriClient) -> int:
        seen = await Pod.run(client, pod("seen", self._cgroup))
        container_id = await seen.create(workload("seen"))
        status = (await self.direct.answer("ContainerStatus", {"container_id": container_id}))["status"]
        await seen.end()
        return sum(MARK.format(number) in status["annotations"] for number in range(3))


@asynccontextmanager
async def fake_runtime(directory: Path) -> AsyncIterator[tuple[Path, str]]:
    """The socket and the cgroup of pods."""
    async with FakeRuntime(directory / "fake") as runtime:
        yield runtime.socket, "bench"


@asynccontextmanager
async def containerd(directory: Path) -> AsyncIterator[tuple[Path, str]]:
    """The socket and the cgroup of pods."""
    async with CriRuntime(directory / "containerd", "containerd-2") as runtime:
        yield runtime.socket, runtime.cgroup


@asynccontextmanager
async def stage(
    directory: Path, socket: Path, cgroup: str, hooks: Mapping[str, Path], peers: Sequence[Route]
) -> AsyncIterator[Stage]:
    """Ours with every set of plugins, and the peers, before a runtime that runs."""
    async with AsyncExitStack() as running:
        routes = [Route(DIRECT, socket)]
        for plugins in PLUGIN_SETS:
            proxy = RuntimeProxy(directory / f"{OURS}-{plugins or 'none'}", socket)
            proxy.plugins = hooks[plugins]
            await running.enter_async_context(proxy)
            routes.append(Route(OURS, proxy.socket, proxy.pid, plugins))
        clients = {}
        for route in (*routes, *peers):
            caller = CriClient(directory / f"caller-{route.name}", route.socket)
            clients[route] = await running.enter_async_context(caller)
            await until(partial(answers, caller), within_s=PEERS_WITHIN_S)
        yield Stage(clients, cgroup)


async def answers(client: CriClient) -> bool:
    """Whether somebody serves there; a peer waits for its runtime first."""
    reply = await client.call("Version", {}, deadline_s=1)
    if reply.code != "OK":
        await asyncio.sleep(0.1)
    return reply.code == "OK"
