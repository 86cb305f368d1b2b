"""Fixtures that start runtime proxies, or lend one that is running."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

import pytest

from testbed.cri.fixtures import MakeDirectory, StartCriClient, StartCriRuntime, StartFakeRuntime, StartHookPlugin
from testbed.cri.peers import FakeRuntime
from testbed.cri.runtime import CriRuntime
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.pytest_plugin import StartServer
from tests.integration.runtimeproxy.bed import Bed, RealBed, SharedProxy, StartProxy, StartRealBed, bed_of

FakeProxies = Iterator[SharedProxy[FakeRuntime]]
RealProxies = Callable[[str], SharedProxy[CriRuntime]]


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
async def own_bed(
    start_fake_runtime: StartFakeRuntime, start_proxy: StartProxy, start_cri_client: StartCriClient
) -> Bed:
    """Return a fake runtime, a proxy for it and a client, for a test that ends one of them or counts from zero."""
    return await bed_of(start_fake_runtime, start_proxy, start_cri_client)


@pytest.fixture(scope="session")
def shared_proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeProxies]:
    """Yield two proxies of fake runtimes in turn, for all tests of this process.

    A proxy notices deleted plugins after half a second; meanwhile the next test uses the other proxy.
    """
    directories = [tmp_path_factory.mktemp("cri") for _ in range(2)]
    proxies = [SharedProxy(each, FakeRuntime(each / "runtime")) for each in directories]
    with proxies[0].running(), proxies[1].running():
        yield cycle(proxies)


@pytest.fixture(scope="session")
def shared_real_proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealProxies]:
    """Yield a function that returns a proxy of a containerd by recipe, for all tests of this process."""
    proxies: dict[str, SharedProxy[CriRuntime]] = {}
    with ExitStack() as stack:

        def proxy_of(recipe: str) -> SharedProxy[CriRuntime]:
            if recipe not in proxies:
                directory = tmp_path_factory.mktemp("cri")
                shared = SharedProxy(directory, CriRuntime(directory / "runtime", recipe))
                proxies[recipe] = stack.enter_context(shared.running())
            return proxies[recipe]

        yield proxy_of


@pytest.fixture
def shared_real_proxy(recipe: str, shared_real_proxies: RealProxies) -> SharedProxy[CriRuntime]:
    """Return the shared proxy of a containerd; the test's parameter ``recipe`` chooses it."""
    return shared_real_proxies(recipe)


@pytest.fixture
async def bed(
    shared_proxies: FakeProxies, start_cri_client: StartCriClient, server_logs: list[Path]
) -> AsyncIterator[Bed]:
    """Yield a shared proxy of a fake runtime, and a client of the test's own."""
    shared = next(shared_proxies)
    server_logs.extend(server.log for server in shared.servers)
    await shared.clear()
    yield Bed(shared.runtime, shared.proxy, await start_cri_client(shared.proxy.socket))
    shared.remove_plugins()


@pytest.fixture
async def real_bed(
    shared_real_proxy: SharedProxy[CriRuntime], start_cri_client: StartCriClient, server_logs: list[Path]
) -> RealBed:
    """Return the shared proxy of a containerd, and a client of the test's own."""
    server_logs.extend(server.log for server in shared_real_proxy.servers)
    await shared_real_proxy.clear()
    proxy = shared_real_proxy.proxy
    return RealBed(shared_real_proxy.runtime, proxy, await start_cri_client(proxy.socket))


@pytest.fixture(params=["copied", "relayed"])
async def either_bed(request: pytest.FixtureRequest, bed: Bed, start_hook_plugin: StartHookPlugin) -> Bed:
    """Return a bed whose proxy copies bytes, and one whose proxy has a plugin and so relays streams."""
    if request.param == "relayed":
        plugin = await start_hook_plugin()
        plugin.register(bed.proxy.plugins, "p", ["PreRunPodSandbox"])
        await bed.proxy.wait_for_plugins(1)
    return bed
