"""The measured operations: single calls, repeated on one route, and the whole lifecycle of a pod."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from bench.concurrency import run_bounded
from bench.proxy.requests import LISTED_CONTAINERS, pod, workload
from testbed.cri.client import CriClient, Repetition
from testbed.cri.control import Json
from testbed.cri.pods import Pod

VERSION: Final = "Version"
LIST: Final = "ListContainers(100)"
CREATE: Final = "CreateContainer"
POD_LIFECYCLE: Final = "a pod's life"
SINGLE: Final = ", 1 at once"
"""How the names of operations end that are called one after another."""


class Latency(msgspec.Struct, frozen=True):
    """Latency of one operation over its repetitions."""

    median_s: float
    p99_s: float


Repeat: TypeAlias = Callable[[int, int], Awaitable[Latency]]
"""Repeats an operation: takes the count and the concurrency."""
Client = TypeVar("Client")
Prepare: TypeAlias = Callable[[Client], AbstractAsyncContextManager[Repeat]]
"""Creates what an operation needs on its route, and removes it afterwards."""


class Operation(msgspec.Struct, Generic[Client], frozen=True):
    """One row of the tables: an operation with its concurrency and its repetitions per round."""

    title: str
    prepare: Prepare[Client]
    at_once: int
    count: int

    @property
    def name(self) -> str:
        """Key of its samples."""
        return operation_name(self.title, self.at_once)


def operation_name(title: str, at_once: int) -> str:
    """Return the key of an operation's samples."""
    return f"{title}, {at_once} at once"


@asynccontextmanager
async def prepare_version(client: CriClient) -> AsyncIterator[Repeat]:
    """Prepare Version, the smallest call."""
    yield partial(_repeat, client, "Version", {})


class ListContainers:
    """Lists of the containers of one pod, which is created once without a proxy."""

    def __init__(self, pod_id: str) -> None:
        self._request = {"filter": {"pod_sandbox_id": pod_id}}

    @classmethod
    async def of_new_pod(cls, direct: CriClient, cgroup: str) -> "ListContainers":
        """Create the pod and its containers without starting them."""
        listed = await Pod.run(direct, pod("listed", cgroup))
        for number in range(LISTED_CONTAINERS):
            await listed.create(workload(f"listed-{number}"))
        return cls(listed.id)

    @asynccontextmanager
    async def __call__(self, client: CriClient) -> AsyncIterator[Repeat]:
        """Check the list on a route and prepare listing."""
        answer = await client.answer("ListContainers", self._request)
        if len(answer["containers"]) != LISTED_CONTAINERS:
            raise RuntimeError(f"{len(answer['containers'])} containers are listed, expected {LISTED_CONTAINERS}")
        yield partial(_repeat, client, "ListContainers", self._request)


@asynccontextmanager
async def prepare_create(client: CriClient) -> AsyncIterator[Repeat]:
    """Prepare CreateContainer in a new pod, which is removed on the same route, so that its records are pruned."""
    created = await Pod.run(client, pod("created", "bench"))
    request = {"pod_sandbox_id": created.id, "config": workload("c-{n}"), "sandbox_config": created.config}
    try:
        yield partial(_repeat, client, "CreateContainer", request)
    finally:
        await created.end()


class PodLifecycle:
    """Pods with one container from start to removal, with kubelet's calls."""

    def __init__(self, cgroup: str) -> None:
        self._cgroup = cgroup

    @asynccontextmanager
    async def __call__(self, client: CriClient) -> AsyncIterator[Repeat]:
        """Prepare nothing."""
        yield partial(self._repeat, client)

    async def _repeat(self, client: CriClient, count: int, at_once: int) -> Latency:
        took: list[float] = []

        async def run_pod(_: int) -> None:
            took.append(await self._run_pod(client))

        await run_bounded(run_pod, range(count), at_once)
        took.sort()
        return Latency(took[len(took) // 2], took[-1])

    async def _run_pod(self, client: CriClient) -> float:
        """Run one pod and return the sum of the calls' latencies, excluding the time between calls."""
        config, took = pod("life", self._cgroup), 0.0

        async def call(method: str, request: Json) -> Json:
            nonlocal took
            reply = await client.call(method, request)
            _require_ok(method, {reply.code: 1})
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


async def _repeat(client: CriClient, method: str, request: Json, count: int, at_once: int) -> Latency:
    seen: Repetition = await client.repeat(method, request, count=count, at_once=at_once)
    _require_ok(method, seen.statuses)
    return Latency(seen.p50_s, seen.p99_s)


def _require_ok(method: str, statuses: dict[str, int]) -> None:
    if statuses.keys() != {"OK"}:
        raise RuntimeError(f"{method} ended with {statuses}, expected OK")
