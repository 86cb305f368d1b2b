"""What is known of sandboxes and containers, by id: from the calls that pass, and from the runtime for all others.

A record goes when the runtime has confirmed that the thing is gone, or does not list it any more.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final

from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.telemetry import logging
from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.hooks.calls import CriRequest
from governor.runtimeproxy.store.records import (
    Container,
    Sandbox,
    created_container,
    started_sandbox,
    updated_container,
    updated_sandbox,
)
from governor.runtimeproxy.store.runtime import Runtime

_RESYNC_S: Final = 60.0
_AGAIN_S: Final = 1.0
_GONE_MOST: Final = 1024

_log = logging.get_logger(__name__)


class Store:
    """The records, and where they come from."""

    def __init__(self, runtime: Runtime, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock
        self._sandboxes: dict[str, Sandbox] = {}
        self._containers: dict[str, Container] = {}
        self._gone: deque[str] = deque(maxlen=_GONE_MOST)
        """The latest that the runtime has removed: what it told of them before may arrive after."""
        self._needed = asyncio.Event()
        self._doubted = asyncio.Event()
        self._complaint = ""

    @property
    def sandboxes(self) -> int:
        """How many sandboxes are known."""
        return len(self._sandboxes)

    @property
    def containers(self) -> int:
        """How many containers are known."""
        return len(self._containers)

    def sandbox(self, sandbox_id: str) -> Sandbox | None:
        """The sandbox of this id, if it is known."""
        return self._sandboxes.get(sandbox_id)

    def container(self, container_id: str) -> Container | None:
        """The container of this id, if it is known."""
        return self._containers.get(container_id)

    def pods(self) -> list[Sandbox]:
        """All sandboxes that are known."""
        return list(self._sandboxes.values())

    def containers_of(self, sandbox_id: str) -> list[Container]:
        """The containers of a sandbox that are known."""
        return [each for each in self._containers.values() if each.sandbox_id == sandbox_id]

    def need(self, *, is_needed: bool) -> None:
        """Whether anybody will ask. While nobody does no call is looked at, so what was known would grow old."""
        if is_needed and not self._needed.is_set():
            self._needed.set()
            self.doubt()
        elif not is_needed:
            self._needed.clear()
            self._sandboxes.clear()
            self._containers.clear()

    def doubt(self) -> None:
        """Much may have happened that nobody told us, as in a runtime that was restarted: look soon."""
        self._doubted.set()

    async def run(self) -> None:
        """While it is needed, hold it against the runtime now and then, and whenever there is a doubt."""
        while True:
            await self._needed.wait()
            self._doubted.clear()
            try:
                await self.resync()
            except GovernorError as error:
                self._complain(str(error))
                await self._clock.sleep(_AGAIN_S)
            else:
                self._complaint = ""
                await self._rest()

    def _complain(self, complaint: str) -> None:
        """Once: a runtime that is away for an hour must not fill the log."""
        if complaint != self._complaint:
            _log.warning("cannot ask the runtime what it has", error=complaint)
        self._complaint = complaint

    async def _rest(self) -> None:
        waits = {asyncio.ensure_future(self._clock.sleep(_RESYNC_S)), asyncio.ensure_future(self._doubted.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def resync(self) -> None:
        """Learn what we do not know, and forget what the runtime does not have."""
        known = self._sandboxes.keys() | self._containers.keys()
        sandboxes, containers = await self._runtime.sandboxes(), await self._runtime.containers()
        sandbox_ids = [each.id for each in sandboxes]
        for gone in known - {*sandbox_ids, *(each.id for each in containers)}:
            self._forget(gone)
        for sandbox_id in sandbox_ids:
            await self._learn_quietly(self._learn_sandbox(sandbox_id))
        for listed in containers:
            await self._learn_quietly(self._learn_container(listed))

    async def _learn_quietly(self, learning: Coroutine[Any, Any, None]) -> None:
        """What goes while we look is no error."""
        try:
            await learning
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise

    def knows(self, request: CriRequest) -> bool:
        """Whether all that a request is about is known."""
        match request:
            case cri_pb2.StopPodSandboxRequest() | cri_pb2.CreateContainerRequest():
                return request.pod_sandbox_id in self._sandboxes
            case (
                cri_pb2.StartContainerRequest()
                | cri_pb2.StopContainerRequest()
                | cri_pb2.UpdateContainerResourcesRequest()
            ):
                container = self._containers.get(request.container_id)
                return container is not None and container.sandbox_id in self._sandboxes
            case _:
                return True

    async def learn(self, request: CriRequest) -> None:
        """Ask the runtime about what a request is about, if we do not know it; NOT_FOUND if it does not either."""
        match request:
            case cri_pb2.StopPodSandboxRequest() | cri_pb2.CreateContainerRequest():
                await self._learn_sandbox(request.pod_sandbox_id)
            case (
                cri_pb2.StartContainerRequest()
                | cri_pb2.StopContainerRequest()
                | cri_pb2.UpdateContainerResourcesRequest()
            ):
                await self._learn_container_by_id(request.container_id)
            case _:
                return

    async def _learn_sandbox(self, sandbox_id: str) -> None:
        if sandbox_id not in self._sandboxes:
            found = await self._runtime.sandbox(sandbox_id)
            if found.id not in self._gone:
                self._sandboxes.setdefault(found.id, found)

    async def _learn_container_by_id(self, container_id: str) -> None:
        known = self._containers.get(container_id)
        if known is not None:
            await self._learn_sandbox(known.sandbox_id)
            return
        for listed in await self._runtime.containers(container_id):
            if listed.id == container_id:
                await self._learn_container(listed)
                return
        raise GovernorError(Kind.NOT_FOUND, "unknown-container", f"the runtime has no container {container_id!r}")

    async def _learn_container(self, listed: cri_pb2.Container) -> None:
        if listed.id in self._containers:
            return
        await self._learn_sandbox(listed.pod_sandbox_id)
        pod = self._sandboxes.get(listed.pod_sandbox_id)
        if pod is not None:
            found = await self._runtime.container(listed, pod)
            if not {listed.id, listed.pod_sandbox_id} & {*self._gone}:
                self._containers.setdefault(listed.id, found)

    def note(self, request: CriRequest, response: bytes) -> None:
        """The runtime has done what it was asked; ``response`` is its message."""
        match request:
            case cri_pb2.RunPodSandboxRequest():
                run = cri_pb2.RunPodSandboxResponse.FromString(response)
                self._sandboxes[run.pod_sandbox_id] = started_sandbox(request, run.pod_sandbox_id)
            case cri_pb2.CreateContainerRequest():
                created = cri_pb2.CreateContainerResponse.FromString(response)
                self._containers[created.container_id] = created_container(request, created.container_id)
            case cri_pb2.UpdateContainerResourcesRequest():
                if container := self._containers.get(request.container_id):
                    self._containers[container.id] = updated_container(container, request)
            case cri_pb2.UpdatePodSandboxResourcesRequest():
                if sandbox := self._sandboxes.get(request.pod_sandbox_id):
                    self._sandboxes[sandbox.id] = updated_sandbox(sandbox, request)
            case cri_pb2.RemoveContainerRequest():
                self._gone.append(request.container_id)
                self._forget(request.container_id)
            case cri_pb2.RemovePodSandboxRequest():
                self._gone.append(request.pod_sandbox_id)
                self._forget(request.pod_sandbox_id)
            case _:
                return

    def note_gone(self, request: CriRequest) -> None:
        """The runtime does not have what a request was to remove, at least not now."""
        match request:
            case cri_pb2.RemoveContainerRequest():
                self._forget(request.container_id)
            case cri_pb2.RemovePodSandboxRequest():
                self._forget(request.pod_sandbox_id)
            case _:
                return

    def note_unsure(self, request: CriRequest) -> None:
        """Nobody knows whether the runtime has done it: what an update may have changed is asked anew."""
        match request:
            case cri_pb2.UpdateContainerResourcesRequest():
                self._containers.pop(request.container_id, None)
            case cri_pb2.UpdatePodSandboxResourcesRequest():
                self._sandboxes.pop(request.pod_sandbox_id, None)
            case _:
                return

    def _forget(self, gone: str) -> None:
        """With a sandbox go its containers."""
        self._containers.pop(gone, None)
        if self._sandboxes.pop(gone, None) is not None:
            for each in [each.id for each in self._containers.values() if each.sandbox_id == gone]:
                del self._containers[each]
