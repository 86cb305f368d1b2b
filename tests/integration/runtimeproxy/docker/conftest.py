"""Fixtures that put a runtime proxy in front of a real dockerd."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.docker.dockerd import Dockerd
from tests.integration.runtimeproxy.docker.bed import DOCKER_MODE, DockerBed


@pytest.fixture(scope="session")
def shared_dockerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dockerd]:
    """Yield a dockerd for all tests of this process, in a loop of its own."""
    dockerd = Dockerd(tmp_path_factory.mktemp("dockerd"))
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        stack = AsyncExitStack()
        try:
            runner.run(stack.enter_async_context(dockerd))
            yield dockerd
        finally:
            runner.run(stack.aclose())


@pytest.fixture
async def docker_bed(
    shared_dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory, server_logs: list[Path]
) -> AsyncIterator[DockerBed]:
    """Yield a proxy of the shared dockerd; containers that the test leaves are removed."""
    server_logs.append(shared_dockerd.log)
    proxy = RuntimeProxy(tmp_path_factory.mktemp("proxy"), shared_dockerd.socket, DOCKER_MODE)
    async with proxy:
        server_logs.append(proxy.log)
        bed = DockerBed(shared_dockerd, proxy)
        try:
            yield bed
        finally:
            await bed.remove_containers()
