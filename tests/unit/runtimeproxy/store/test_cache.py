"""What is remembered of pods and containers when calls, and what the runtime tells, cross each other."""

import asyncio
from typing import cast

import pytest
from structlog.testing import capture_logs

from governor.errors import GovernorError, Kind
from governor.process.clock import VirtualClock
from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.store.cache import RecordCache
from governor.runtimeproxy.store.records import Container, Sandbox, created_container, started_sandbox
from governor.runtimeproxy.store.runtime import Runtime


class ToldRuntime:
    """Has the pods and containers that a test gives it, and tells of a container when ``may_tell`` is set."""

    def __init__(self) -> None:
        self.pods: dict[str, list[str]] = {}
        self.may_tell = asyncio.Event()
        self.may_tell.set()
        self.is_asked = asyncio.Event()
        self.is_away = False
        self.lists = 0

    async def sandboxes(self) -> list[cri_pb2.PodSandbox]:
        self.lists += 1
        if self.is_away:
            raise GovernorError(Kind.UNAVAILABLE, "unreachable", "the runtime is away")
        return [cri_pb2.PodSandbox(id=each) for each in self.pods]

    async def containers(self, container_id: str = "") -> list[cri_pb2.Container]:
        pairs = [(pod, each) for pod, containers in self.pods.items() for each in containers]
        return [cri_pb2.Container(id=each, pod_sandbox_id=pod) for pod, each in pairs if each.startswith(container_id)]

    async def sandbox(self, sandbox_id: str) -> Sandbox:
        if sandbox_id not in self.pods:
            raise GovernorError(Kind.NOT_FOUND, "grpc-status", "not found")
        return started_sandbox(cri_pb2.RunPodSandboxRequest(), sandbox_id)

    async def container(self, listed: cri_pb2.Container, _pod: Sandbox) -> Container:
        request = cri_pb2.CreateContainerRequest(pod_sandbox_id=listed.pod_sandbox_id)
        self.is_asked.set()
        await self.may_tell.wait()
        return created_container(request, listed.id)


@pytest.fixture
def runtime() -> ToldRuntime:
    return ToldRuntime()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(runtime: ToldRuntime, clock: VirtualClock) -> RecordCache:
    return RecordCache(cast("Runtime", runtime), clock)


async def test_what_goes_and_comes_behind_us_is_noticed(store: RecordCache, runtime: ToldRuntime) -> None:
    runtime.pods = {"p": ["a", "b"], "q": []}
    await store.resync()
    assert (store.sandbox_count, store.container_count) == (2, 2)

    runtime.pods = {"p": ["b", "c"]}
    await store.resync()

    assert [each.id for each in store.sandboxes()] == ["p"]
    assert sorted(each.id for each in store.containers_of("p")) == ["b", "c"]


@pytest.mark.parametrize(
    "removal",
    [cri_pb2.RemoveContainerRequest(container_id="a"), cri_pb2.RemovePodSandboxRequest(pod_sandbox_id="p")],
)
async def test_what_is_removed_while_the_runtime_tells_of_it_does_not_come_back(
    store: RecordCache, runtime: ToldRuntime, removal: cri_pb2.RemoveContainerRequest | cri_pb2.RemovePodSandboxRequest
) -> None:
    runtime.pods = {"p": ["a"]}
    runtime.may_tell.clear()
    resync = asyncio.create_task(store.resync())
    await runtime.is_asked.wait()

    store.record(removal, b"")
    runtime.may_tell.set()
    await resync

    assert store.container("a") is None


async def test_what_a_runtime_does_not_find_for_a_moment_can_be_learnt_later(
    store: RecordCache, runtime: ToldRuntime
) -> None:
    """As one that was restarted and has not looked yet at what it had."""
    runtime.pods = {"p": ["a"]}
    await store.resync()
    runtime.pods = {}
    await store.resync()
    store.confirm_absent(cri_pb2.RemoveContainerRequest(container_id="a"))
    assert store.container_count == 0

    runtime.pods = {"p": ["a"]}
    await store.fetch(cri_pb2.StartContainerRequest(container_id="a"))

    assert store.container("a") is not None


async def test_a_doubt_or_a_minute_leads_to_a_look_and_a_runtime_that_is_away_is_asked_again(
    store: RecordCache, runtime: ToldRuntime, clock: VirtualClock
) -> None:
    running = asyncio.create_task(store.run())
    try:
        await clock.advance(100)
        assert runtime.lists == 0
        store.set_needed(needed=True)
        await clock.advance(59)
        assert runtime.lists == 1
        await clock.advance(1)
        assert runtime.lists == 2
        store.mark_stale()
        await clock.advance(1)
        assert runtime.lists == 3
        runtime.is_away = True
        store.mark_stale()
        with capture_logs() as logged:
            await clock.advance(3.5)
        assert runtime.lists == 7
        assert [line["error"] for line in logged] == ["the runtime is away"]
        runtime.is_away = False
        await clock.advance(30)
        assert runtime.lists == 8
        store.set_needed(needed=False)
        store.set_needed(needed=True)
        await clock.advance(0.1)
        assert runtime.lists == 9
    finally:
        running.cancel()
