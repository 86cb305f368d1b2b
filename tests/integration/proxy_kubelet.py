"""A client of a runtime that goes on as kubelet does: what fails is tried again, a pod that got lost is made anew."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from testbed.cri_client import CriClient, Reply
from testbed.cri_control import Json
from testbed.waiting import until

_TRIES = 200


class Kubelet:
    """Runs pods of one container each; every second one it keeps, the others it removes."""

    def __init__(self, client: CriClient, pod: Callable[[str], Json], container: Callable[[str], Json]) -> None:
        self._client = client
        self._pod = pod
        self._container = container
        self._over = asyncio.Event()
        self.calls = 0
        self.ends: Counter[tuple[str, str]] = Counter()
        self.complaints: set[str] = set()
        self.kept: dict[str, str] = {}
        """The pods that it runs, by the ids of their containers."""

    @property
    def codes(self) -> set[str]:
        """All ways in which calls ended."""
        return {code for _, code in self.ends}

    @asynccontextmanager
    async def working(self, workers: int) -> AsyncIterator[None]:
        """Work meanwhile, at several pods at a time; afterwards each is brought to its end."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(workers):
                tasks.create_task(self._work(f"w{number}"))
            try:
                yield
            finally:
                self._over.set()

    async def some_calls(self, chance: random.Random, most: int) -> None:
        """Wait until so many calls, or fewer, have come to their end."""
        wanted = self.calls + chance.randint(1, most)

        async def are_made() -> bool:
            return self.calls >= wanted

        await until(are_made, within_s=60)

    async def _work(self, name: str) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            await self._live(f"{name}-{number}", is_kept=bool(number % 2))

    async def _live(self, name: str, *, is_kept: bool) -> None:
        for attempt in range(_TRIES):
            config = self._pod(f"{name}-{attempt}")
            made = await self._make(config, name)
            if made is not None:
                break
        else:
            raise AssertionError(f"{name} could not be made: {self.complaints}")
        pod_id, container_id = made
        if is_kept:
            self.kept[container_id] = pod_id
            return
        await self._insist("StopContainer", {"container_id": container_id})
        await self._insist("RemoveContainer", {"container_id": container_id})
        await self._insist("StopPodSandbox", {"pod_sandbox_id": pod_id})
        await self._insist("RemovePodSandbox", {"pod_sandbox_id": pod_id})

    async def _make(self, config: Json, name: str) -> tuple[str, str] | None:
        ran = await self._call("RunPodSandbox", {"config": config})
        if ran.code != "OK":
            return None
        pod_id = ran.answer["pod_sandbox_id"]
        request = {"pod_sandbox_id": pod_id, "config": self._container(name), "sandbox_config": config}
        created = await self._call("CreateContainer", request)
        if created.code == "OK":
            container_id = created.answer["container_id"]
            if (await self._call("StartContainer", {"container_id": container_id})).code == "OK":
                return pod_id, container_id
        await self._insist("StopPodSandbox", {"pod_sandbox_id": pod_id})
        await self._insist("RemovePodSandbox", {"pod_sandbox_id": pod_id})
        return None

    async def _insist(self, method: str, request: Json) -> None:
        for _ in range(_TRIES):
            # A runtime that has lost everything has nothing to stop.
            if (await self._call(method, request)).code in ("OK", "NOT_FOUND"):
                return
        raise AssertionError(f"{method} does not come to its end: {self.complaints}")

    async def _call(self, method: str, request: Json) -> Reply:
        reply = await self._client.call(method, request, wait_for_ready=True)
        self.calls += 1
        self.ends[method, reply.code] += 1
        if reply.code != "OK":
            self.complaints.add(f"{method}: {reply.code}: {reply.message}")
        return reply
