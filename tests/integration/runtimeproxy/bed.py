"""A runtime proxy between a client and a runtime of the test bed.

Starting a proxy costs most of the time of a short test. So proxies are shared: a test that does not end the proxy or
its runtime gets one that other tests have used, with the state of a new one except for counters and history.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from testbed.cri.client import CriClient
from testbed.cri.control import Json
from testbed.cri.fixtures import StartCriClient, StartFakeRuntime
from testbed.cri.peers import FakeRuntime
from testbed.cri.runtime import CriRuntime
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.server import Server
from testbed.waiting import until

AnyRuntime = TypeVar("AnyRuntime", FakeRuntime, CriRuntime)
StartProxy = Callable[..., Awaitable[RuntimeProxy]]


class RealBed:
    """A containerd, a proxy and a client."""

    def __init__(self, runtime: CriRuntime, proxy: RuntimeProxy, client: CriClient) -> None:
        self.runtime = runtime
        self.proxy = proxy
        self.client = client


StartRealBed = Callable[[str], Awaitable[RealBed]]


class Bed:
    """A fake runtime, a proxy and a client."""

    def __init__(self, runtime: FakeRuntime, proxy: RuntimeProxy, client: CriClient) -> None:
        self.runtime = runtime
        self.proxy = proxy
        self.client = client


async def bed_of(
    start_fake_runtime: StartFakeRuntime, start_proxy: StartProxy, start_cri_client: StartCriClient, **more: Any
) -> Bed:
    """Start all three, without plugins."""
    runtime = await start_fake_runtime(**more)
    proxy = await start_proxy(runtime.socket)
    return Bed(runtime, proxy, await start_cri_client(proxy.socket))


_IN_USE = (
    "governor_proxy_plugins",
    "governor_proxy_plugin_file_errors",
    "governor_proxy_policies",
    "governor_proxy_policy_file_errors",
    "governor_proxy_streams",
    "governor_proxy_held_bytes",
    "governor_proxy_taps",
    'governor_proxy_connections{mode="copied"}',
    'governor_proxy_connections{mode="relayed"}',
)
"""Metrics that are zero while nothing uses a proxy."""


class SharedProxy(Generic[AnyRuntime]):
    """A runtime and a proxy for it that tests use one after another."""

    def __init__(self, directory: Path, runtime: AnyRuntime) -> None:
        self.runtime: AnyRuntime = runtime
        self.proxy = RuntimeProxy(directory / "proxy", runtime.socket)
        self._direct = CriClient(directory / "direct", runtime.socket)

    @property
    def servers(self) -> list[Server]:
        """All servers, in the order of their start."""
        return [self.runtime, self.proxy, self._direct]

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Run the servers in a loop of their own, since each test has another one."""
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            stack = AsyncExitStack()
            try:
                for server in self.servers:
                    runner.run(stack.enter_async_context(server))
                yield self
            finally:
                runner.run(stack.aclose())

    def remove_plugins(self) -> None:
        """Remove all plugins and policies; the proxy notices it later."""
        shutil.rmtree(self.proxy.plugins, ignore_errors=True)
        shutil.rmtree(self.proxy.policies, ignore_errors=True)

    async def clear(self) -> None:
        """Remove all plugins, policies and pods, and return once nothing uses the proxy."""
        self.remove_plugins()
        if isinstance(self.runtime, FakeRuntime):
            await self.runtime.set()
        await until(self._is_unused, every_s=0.05)
        for pod in (await self._direct.answer("ListPodSandbox")).get("items", []):
            await self._remove(pod)
        if isinstance(self.runtime, FakeRuntime):
            await self.runtime.forget()
        self.proxy.forget_log()

    async def _is_unused(self) -> bool:
        metrics = await self.proxy.metrics()
        return not any(metrics.get(name) for name in _IN_USE)

    async def _remove(self, pod: Json) -> None:
        for method in ("StopPodSandbox", "RemovePodSandbox"):
            await self._direct.answer(method, {"pod_sandbox_id": pod["id"]})
