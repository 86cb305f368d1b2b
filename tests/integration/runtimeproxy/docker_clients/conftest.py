"""Fixtures: one dockerd and one proxy for all tests of a process, or new ones for a test that ends them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.docker.dockerd import Dockerd
from testbed.docker.fixtures import StartDockerd
from tests.integration.runtimeproxy.bed import StartProxy
from tests.integration.runtimeproxy.docker_clients.bed import DOCKER_MODE, DockerBed, ProxiedBed

StartProxiedBed = Callable[..., Awaitable[ProxiedBed]]
SharedBeds = Callable[[str], DockerBed]


@pytest.fixture(scope="session")
def shared_beds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedBeds]:
    """Yield a function that returns the bed of a route; its servers run in a loop of their own."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        stack = AsyncExitStack()
        beds: dict[str, DockerBed] = {}

        def bed_of(route: str) -> DockerBed:
            if not beds:
                dockerd = Dockerd(tmp_path_factory.mktemp("docker"))
                runner.run(stack.enter_async_context(dockerd))
                beds["direct"] = DockerBed(dockerd, dockerd.socket)
            if route not in beds:
                dockerd = beds["direct"].dockerd
                proxy = RuntimeProxy(tmp_path_factory.mktemp("proxy"), dockerd.socket, DOCKER_MODE)
                beds[route] = ProxiedBed(dockerd, runner.run(stack.enter_async_context(proxy)))
            return beds[route]

        try:
            yield bed_of
        finally:
            runner.run(stack.aclose())


@pytest.fixture(params=["direct", "proxied"])
def shared_bed(request: pytest.FixtureRequest, shared_beds: SharedBeds) -> DockerBed:
    """Return the shared dockerd, reached directly and through a proxy."""
    return shared_beds(request.param)


@pytest.fixture
def shared_proxied_bed(shared_beds: SharedBeds) -> ProxiedBed:
    """Return the shared dockerd, reached through a proxy."""
    bed = shared_beds("proxied")
    assert isinstance(bed, ProxiedBed)
    return bed


@pytest.fixture
async def bed(shared_bed: DockerBed, server_logs: list[Path]) -> AsyncIterator[DockerBed]:
    """Yield the shared bed, which has no containers."""
    server_logs.extend(shared_bed.logs)
    yield shared_bed
    await shared_bed.clear()


@pytest.fixture
async def proxied(shared_proxied_bed: ProxiedBed, server_logs: list[Path]) -> AsyncIterator[ProxiedBed]:
    """Yield the shared bed with a proxy, which has no containers."""
    server_logs.extend(shared_proxied_bed.logs)
    yield shared_proxied_bed
    await shared_proxied_bed.clear()


@pytest.fixture
def start_proxied_bed(start_dockerd: StartDockerd, start_proxy: StartProxy) -> StartProxiedBed:
    """Return a function that starts a dockerd and a proxy of the test's own."""

    async def start(*arguments: str) -> ProxiedBed:
        dockerd = await start_dockerd(*arguments)
        return ProxiedBed(dockerd, await start_proxy(dockerd.socket, DOCKER_MODE))

    return start
