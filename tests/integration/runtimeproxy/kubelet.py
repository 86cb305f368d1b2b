"""A client of a runtime that behaves as kubelet does: it retries failed calls and re-creates lost pods."""

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
    """Runs pods of one container each; it keeps every second one and removes the others.

    containerd aborts the start of a container when the client's connection closes. It may then report the container as
    exited and refuse to remove it because it runs; ``mend`` repairs that as an operator would.
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
        self._stopped = asyncio.Event()
        self.calls = 0
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.errors: set[str] = set()
        self.kept: dict[str, str] = {}
        """Pods kept running, by container id."""

    @property
    def codes(self) -> set[str]:
        """Return all status codes of calls."""
        return {code for _, code in self.outcomes}

    @asynccontextmanager
    async def working(self, workers: int) -> AsyncIterator[None]:
        """Work on several pods concurrently within the context, then finish them."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(workers):
                tasks.create_task(self._work(f"w{number}"))
            try:
                yield
            finally:
                self._stopped.set()

    async def some_calls(self, rng: random.Random, most: int) -> None:
        """Wait until a random number of calls, at most ``most``, have ended."""
        target = self.calls + rng.randint(1, most)

        async def are_made() -> bool:
            return self.calls >= target

        await until(are_made)

    async def _work(self, name: str) -> None:
        number = 0
        while not self._stopped.is_set():
            number += 1
            await self._run_pod(f"{name}-{number}", is_kept=bool(number % 2))

    async def _run_pod(self, name: str, *, is_kept: bool) -> None:
        attempts = count()
        pod_id, container_id = await self._until(lambda: self._create(self._pod(f"{name}-{next(attempts)}"), name))
        if is_kept:
            self.kept[container_id] = pod_id
            return
        await self._retry("StopContainer", {"container_id": container_id})
        await self._retry("RemoveContainer", {"container_id": container_id})
        await self._retry("StopPodSandbox", {"pod_sandbox_id": pod_id})
        await self._retry("RemovePodSandbox", {"pod_sandbox_id": pod_id})

    async def _create(self, config: Json, name: str) -> tuple[str, str] | None:
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
        await self._retry("StopPodSandbox", {"pod_sandbox_id": pod_id})
        await self._retry("RemovePodSandbox", {"pod_sandbox_id": pod_id})
        return None

    async def _retry(self, method: str, request: Json) -> None:
        async def has_succeeded() -> bool:
            # A runtime that has lost its state has nothing to stop.
            return (await self._call(method, request)).code in ("OK", "NOT_FOUND")

        await self._until(has_succeeded)

    async def _until(self, attempt: Callable[[], Awaitable[Value | None]]) -> Value:
        """Retry until it succeeds, since a killed runtime needs an unknown time to recover."""
        try:
            result = await until(attempt)
        except TimeoutError as error:
            raise AssertionError(f"retries did not succeed: {self.errors}") from error
        assert result is not None
        return result

    async def _call(self, method: str, request: Json) -> Reply:
        reply = await self._client.call(method, request, wait_for_ready=True)
        self.calls += 1
        if self._mend is not None and (stuck := _STUCK.search(reply.message)):
            await self._mend(stuck[1])
            return reply
        self.outcomes[method, reply.code] += 1
        if reply.code != "OK":
            self.errors.add(f"{method}: {reply.code}: {reply.message}")
        return reply
