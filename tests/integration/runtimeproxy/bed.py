"""A runtime proxy between a client and a runtime of the test bed."""

from collections.abc import Awaitable, Callable
from typing import Any

from testbed.cri.client import CriClient
from testbed.cri.fixtures import StartCriClient, StartFakeRuntime
from testbed.cri.peers import FakeRuntime
from testbed.cri.runtime import CriRuntime
from testbed.cri.runtime_proxy import RuntimeProxy

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
