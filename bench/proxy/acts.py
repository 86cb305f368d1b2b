"""What is measured: calls that a caller repeats on one route, and the whole life of a pod."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, TypeAlias

import msgspec

from bench.proxy.sample import LISTED, pod, workload
from bench.turns import in_turn
from testbed.cri.client import CriClient, Repetition
from testbed.cri.control import Json
from testbed.cri.pods import Pod

LIFE: Final = "a pod's life"


class Times(msgspec.Struct, frozen=True):
    """How long one act took, in most cases and in the slowest ones."""

    median_s: float
    p99_s: float


Repeat: TypeAlias = Callable[[int, int], Awaitable[Times]]
"""Do it so many times, so many at once."""
Ready: TypeAlias = Callable[[CriClient], AbstractAsyncContextManager[Repeat]]
"""What an act needs is there on its route; afterwards it is gone."""


class Act(msgspec.Struct, frozen=True):
    """One row: an act, so many of them at once, so many in one turn."""

    title: str
    ready: Ready
    at_once: int
    count: int

    @property
    def name(self) -> str:
        """Under which its figures are kept."""
        return f"{self.title}, {self.at_once} at once"


@asynccontextmanager
async def asking_version(client: CriClient) -> AsyncIterator[Repeat]:
    """The smallest call there is."""
    yield partial(_repeat, client, "Version", {})


class Listing:
    """Lists of the containers of one pod, which is made once and directly."""

    def __init__(self, pod_id: str) -> None:
        self._request = {"filter": {"pod_sandbox_id": pod_id}}

    @classmethod
    async def of_new_pod(cls, direct: CriClient, cgroup: str) -> "Listing":
        """Make the pod and its containers; none is started."""
        listed = await Pod.run(direct, pod("listed", cgroup))
        for number in range(LISTED):
            await listed.create(workload(f"listed-{number}"))
        return cls(listed.id)

    @asynccontextmanager
    async def __call__(self, client: CriClient) -> AsyncIterator[Repeat]:
        """List them on a route."""
        answer = await client.answer("ListContainers", self._request)
        if len(answer["containers"]) != LISTED:
            raise RuntimeError(f"{len(answer['containers'])} containers are listed and not {LISTED}")
        yield partial(_repeat, client, "ListContainers", self._request)


@asynccontextmanager
async def creating(client: CriClient) -> AsyncIterator[Repeat]:
    """Creates in a pod of this turn, which is removed on the same route, so that all records of it go."""
    created = await Pod.run(client, pod("created", "bench"))
    request = {"pod_sandbox_id": created.id, "config": workload("c-{n}"), "sandbox_config": created.config}
    try:
        yield partial(_repeat, client, "CreateContainer", request)
    finally:
        await created.end()


class Living:
    """Pods with one container from their start to their removal, as kubelet's calls."""

    def __init__(self, cgroup: str) -> None:
        self._cgroup = cgroup

    @asynccontextmanager
    async def __call__(self, client: CriClient) -> AsyncIterator[Repeat]:
        """Nothing is needed beforehand."""
        yield partial(self._repeat, client)

    async def _repeat(self, client: CriClient, count: int, at_once: int) -> Times:
        took: list[float] = []

        async def live(_: int) -> None:
            took.append(await self._live(client))

        await in_turn(live, range(count), at_once)
        took.sort()
        return Times(took[len(took) // 2], took[-1])

    async def _live(self, client: CriClient) -> float:
        """The sum of what the caller waited in its calls; what it does between them is not in it."""
        config, took = pod("life", self._cgroup), 0.0

        async def call(method: str, request: Json) -> Json:
            nonlocal took
            reply = await client.call(method, request)
            _insist(method, {reply.code: 1})
            took += reply.took_s
            return reply.answer

        pod_id = (await call("RunPodSandbox", {"config": config}))["pod_sandbox_id"]
        create = {"pod_sandbox_id": pod_id, "config": workload("c"), "sandbox_config": config}
        container_id = (await call("CreateContainer", create))["container_id"]
        for method in ("StartContainer", "ContainerStatus", "StopContainer", "RemoveContainer"):
            await call(method, {"container_id": container_id})
        for method in ("StopPodSandbox", "RemovePodSandbox"):
            await call(method, {"pod_sandbox_id": pod_id})
        return took


async def _repeat(client: CriClient, method: str, request: Json, count: int, at_once: int) -> Times:
    seen: Repetition = await client.repeat(method, request, count=count, at_once=at_once)
    _insist(method, seen.statuses)
    return Times(seen.p50_s, seen.p99_s)


def _insist(method: str, statuses: dict[str, int]) -> None:
    if statuses.keys() != {"OK"}:
        raise RuntimeError(f"{method} must succeed, and ended with {statuses}")
