"""The record cache, with calls and fetches that overlap."""

import asyncio

import pytest
from structlog.testing import capture_logs

from governor.errors import GovernorError, Kind
from governor.process.clock import VirtualClock
from governor.runtimeproxy.environment import NO_VARIABLES
from governor.runtimeproxy.hooks.calls import Call
from governor.runtimeproxy.hooks.requests import Request
from governor.runtimeproxy.store.cache import RecordCache
from governor.runtimeproxy.store.records import ContainerRecord, ListedContainer, ListedSandbox, Sandbox, new_container
from governor.wire.hooks.workload import Container, Pod, Resources


class FakeRuntime:
    """Runtime with given pods and containers; the status of a container waits for ``may_respond``."""

    def __init__(self) -> None:
        self.pods: dict[str, list[str]] = {}
        self.may_respond = asyncio.Event()
        self.may_respond.set()
        self.is_queried = asyncio.Event()
        self.is_unavailable = False
        self.lists = 0
        self.cpu_shares = 0

    async def sandboxes(self) -> list[ListedSandbox]:
        self.lists += 1
        if self.is_unavailable:
            raise GovernorError(Kind.UNAVAILABLE, "unreachable", "the runtime is unavailable")
        return [ListedSandbox(each) for each in self.pods]

    async def containers(self, container_id: str = "") -> list[ListedContainer]:
        pairs = [(pod, each) for pod, containers in self.pods.items() for each in containers]
        return [ListedContainer(each, pod) for pod, each in pairs if each.startswith(container_id)]

    async def sandbox(self, sandbox_id: str) -> Sandbox:
        if sandbox_id not in self.pods:
            raise GovernorError(Kind.NOT_FOUND, "grpc-status", "not found")
        return Sandbox(sandbox_id, Pod())

    async def resources(self, _container_id: str) -> Resources | None:
        reported = Resources(cpu_shares=self.cpu_shares)
        self.is_queried.set()
        await self.may_respond.wait()
        return reported

    async def container(
        self, listed: ListedContainer, _pod: Sandbox, *, with_environment: bool = False
    ) -> ContainerRecord:
        self.is_queried.set()
        await self.may_respond.wait()
        return new_container(listed.sandbox_id, Container(listed.id), NO_VARIABLES, with_environment=with_environment)


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def cache(runtime: FakeRuntime, clock: VirtualClock) -> RecordCache:
    return RecordCache(runtime, clock)


async def test_resync_adds_and_deletes_records(cache: RecordCache, runtime: FakeRuntime) -> None:
    runtime.pods = {"p": ["a", "b"], "q": []}
    await cache.resync()
    assert (cache.sandbox_count, cache.container_count) == (2, 2)

    runtime.pods = {"p": ["b", "c"]}
    await cache.resync()

    assert [each.id for each in cache.sandboxes()] == ["p"]
    assert sorted(each.id for each in cache.containers_of("p")) == ["b", "c"]


def shares(cache: RecordCache, container_id: str) -> int:
    container = cache.container(container_id)
    assert container is not None
    return container.container.resources.cpu_shares if container.container.resources else 0


async def test_resync_refreshes_the_resources_of_known_containers(cache: RecordCache, runtime: FakeRuntime) -> None:
    """They may have been updated around the proxy."""
    runtime.pods = {"p": ["a"]}
    await cache.resync()
    runtime.cpu_shares = 512

    await cache.resync()

    assert shares(cache, "a") == 512


async def test_an_update_during_a_refresh_is_not_reverted(cache: RecordCache, runtime: FakeRuntime) -> None:
    runtime.pods = {"p": ["a"]}
    await cache.resync()
    runtime.is_queried.clear()
    runtime.may_respond.clear()
    runtime.cpu_shares = 2
    resync = asyncio.create_task(cache.resync())
    await runtime.is_queried.wait()

    cache.record(Request(Call.UPDATE_CONTAINER_RESOURCES, "", "a", resources=Resources(cpu_shares=512)))
    runtime.may_respond.set()
    await resync

    assert shares(cache, "a") == 512


@pytest.mark.parametrize(
    "removal",
    [Request(Call.REMOVE_CONTAINER, container_id="a"), Request(Call.REMOVE_POD_SANDBOX, "p")],
)
async def test_a_container_removed_during_a_fetch_is_not_recorded(
    cache: RecordCache, runtime: FakeRuntime, removal: Request
) -> None:
    runtime.pods = {"p": ["a"]}
    runtime.may_respond.clear()
    resync = asyncio.create_task(cache.resync())
    await runtime.is_queried.wait()

    cache.record(removal)
    runtime.may_respond.set()
    await resync

    assert cache.container("a") is None


async def test_a_container_that_was_not_found_can_be_fetched_later(cache: RecordCache, runtime: FakeRuntime) -> None:
    """A restarted runtime does not find its containers until it has loaded them."""
    runtime.pods = {"p": ["a"]}
    await cache.resync()
    runtime.pods = {}
    await cache.resync()
    cache.confirm_absent(Request(Call.REMOVE_CONTAINER, container_id="a"))
    assert cache.container_count == 0

    runtime.pods = {"p": ["a"]}
    await cache.fetch(Request(Call.START_CONTAINER, container_id="a"))

    assert cache.container("a") is not None


async def test_resyncs_run_every_minute_when_stale_and_after_errors(
    cache: RecordCache, runtime: FakeRuntime, clock: VirtualClock
) -> None:
    running = asyncio.create_task(cache.run())
    try:
        await clock.advance(100)
        assert runtime.lists == 0
        cache.set_needed(needed=True)
        await clock.advance(59)
        assert runtime.lists == 1
        await clock.advance(1)
        assert runtime.lists == 2
        cache.mark_stale()
        await clock.advance(1)
        assert runtime.lists == 3
        runtime.is_unavailable = True
        cache.mark_stale()
        with capture_logs() as logged:
            await clock.advance(3.5)
        assert runtime.lists == 7
        assert [line["error"] for line in logged] == ["the runtime is unavailable"]
        runtime.is_unavailable = False
        await clock.advance(30)
        assert runtime.lists == 8
        cache.set_needed(needed=False)
        cache.set_needed(needed=True)
        await clock.advance(0.1)
        assert runtime.lists == 9
    finally:
        running.cancel()
