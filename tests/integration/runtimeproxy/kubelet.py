"""A client of a runtime that goes on as kubelet does: what fails is tried again, a pod that got lost is made anew."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import TypeVar

from testbed.cri.client import CriClient, Reply
from testbed.cri.control import Json
from testbed.waiting import until

Value = TypeVar("Value")
Mend = Callable[[str], Awaitable[object]]
_STUCK = re.compile(r"cannot delete running task (\w+)")


class Kubelet:
    """Runs pods of one container each; every second one it keeps, the others it removes.

    containerd breaks the start of a container off with the connection of who asked for it. It may say then that the
    container has exited, and never remove it because it runs; ``mend`` does what its operator would.
    """

    def __init__(
        self,
        client: CriClient,
        pod: Callable[[str], Json],
        container: Callable[[str], Json],
        mend: Mend | None = None,
    ) -> None:
        self._client = client
        self._mend = mend
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

        await until(are_made)

    async def _work(self, name: str) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            await self._live(f"{name}-{number}", is_kept=bool(number % 2))

    async def _live(self, name: str, *, is_kept: bool) -> None:
        attempts = count()
        pod_id, container_id = await self._until(lambda: self._make(self._pod(f"{name}-{next(attempts)}"), name))
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
        async def has_come_to_its_end() -> bool:
            # A runtime that has lost everything has nothing to stop.
            return (await self._call(method, request)).code in ("OK", "NOT_FOUND")

        await self._until(has_come_to_its_end)

    async def _until(self, attempt: Callable[[], Awaitable[Value | None]]) -> Value:
        """Try until it succeeds, however often: nobody knows how long a runtime needs that was killed."""
        try:
            made = await until(attempt)
        except TimeoutError as error:
            raise AssertionError(f"it did not succeed: {self.complaints}") from error
        assert made is not None
        return made

    async def _call(self, method: str, request: Json) -> Reply:
        reply = await self._client.call(method, request, wait_for_ready=True)
        self.calls += 1
        if self._mend is not None and (stuck := _STUCK.search(reply.message)):
            await self._mend(stuck[1])
            return reply
        self.ends[method, reply.code] += 1
        if reply.code != "OK":
            self.complaints.add(f"{method}: {reply.code}: {reply.message}")
        return reply
