"""Fixtures that start runtime proxies."""

from pathlib import Path

import pytest

from testbed.cri.fixtures import MakeDirectory, StartCriClient, StartCriRuntime, StartFakeRuntime, StartHookPlugin
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.pytest_plugin import StartServer
from tests.integration.runtimeproxy.bed import Bed, RealBed, StartProxy, StartRealBed, bed_of


@pytest.fixture
def start_proxy(peer_directory: MakeDirectory, start_server: StartServer) -> StartProxy:
    """Return a function that starts a runtime proxy for the runtime at a socket."""

    async def start(runtime: Path, *arguments: str) -> RuntimeProxy:
        return await start_server(RuntimeProxy(peer_directory(), runtime, *arguments))

    return start


@pytest.fixture
def start_real_bed(
    start_cri_runtime: StartCriRuntime, start_proxy: StartProxy, start_cri_client: StartCriClient
) -> StartRealBed:
    """Return a function that starts a containerd by recipe, a proxy for it and a client, without plugins."""

    async def start(recipe: str) -> RealBed:
        runtime = await start_cri_runtime(recipe)
        proxy = await start_proxy(runtime.socket)
        return RealBed(runtime, proxy, await start_cri_client(proxy.socket))

    return start


@pytest.fixture
async def bed(start_fake_runtime: StartFakeRuntime, start_proxy: StartProxy, start_cri_client: StartCriClient) -> Bed:
    """Return a fake runtime, a proxy for it and a client."""
    return await bed_of(start_fake_runtime, start_proxy, start_cri_client)


@pytest.fixture(params=["copied", "relayed"])
async def either_bed(request: pytest.FixtureRequest, bed: Bed, start_hook_plugin: StartHookPlugin) -> Bed:
    """Return a bed whose proxy copies bytes, and one whose proxy has a plugin and so relays streams."""
    if request.param == "relayed":
        plugin = await start_hook_plugin()
        plugin.register(bed.proxy.plugins, "p", ["PreRunPodSandbox"])
        await bed.proxy.wait_for_plugins(1)
    return bed
