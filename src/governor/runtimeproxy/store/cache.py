"""In-memory cache of records by id: filled from held calls, and from the runtime for sandboxes it did not see start.

A resync refreshes the resources of known containers. A record is deleted when the runtime confirms the removal or no
longer lists the sandbox or container.
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
    started_sandbox,
    updated_container,
    updated_sandbox,
    with_id,
)
from governor.runtimeproxy.store.runtime import Runtime
from governor.runtimeproxy.store.status import refreshed_container

_RESYNC_S: Final = 60.0
_RETRY_S: Final = 1.0
_MAX_REMOVED: Final = 1024

_log = logging.get_logger(__name__)


class RecordCache:
    """Cached records, kept in step with the runtime."""

    def __init__(self, runtime: Runtime, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock
        self._sandboxes: dict[str, Sandbox] = {}
        self._containers: dict[str, Container] = {}
        self._removed: deque[str] = deque(maxlen=_MAX_REMOVED)
        """Recently removed ids: a status fetched before the removal may arrive after it."""
        self.remembers_environment = False
        self._needed = asyncio.Event()
        self._stale = asyncio.Event()
        self._last_error = ""

    @property
    def sandbox_count(self) -> int:
        """Return the number of recorded sandboxes."""
        return len(self._sandboxes)

    @property
    def container_count(self) -> int:
        """Return the number of recorded containers."""
        return len(self._containers)

    def sandbox(self, sandbox_id: str) -> Sandbox | None:
        """Return the sandbox with this id, or None."""
        return self._sandboxes.get(sandbox_id)

    def container(self, container_id: str) -> Container | None:
        """Return the container with this id, or None."""
        return self._containers.get(container_id)

    def sandboxes(self) -> list[Sandbox]:
        """Return all recorded sandboxes."""
        return list(self._sandboxes.values())

    def containers_of(self, sandbox_id: str) -> list[Container]:
        """Return the recorded containers of a sandbox."""
        return [each for each in self._containers.values() if each.sandbox_id == sandbox_id]

    def set_needed(self, *, needed: bool) -> None:
        """Start or stop keeping records; without plugins no call is held, so records would become stale."""
        if needed and not self._needed.is_set():
            self._needed.set()
            self.mark_stale()
        elif not needed:
            self._needed.clear()
            self._sandboxes.clear()
            self._containers.clear()

    def remember_environment(self, *, remembers: bool) -> None:
        """Keep the variables of containers or not; those of known containers are fetched or dropped."""
        if remembers != self.remembers_environment:
            self.remembers_environment = remembers
            self._containers.clear()
            self.mark_stale()

    def mark_stale(self) -> None:
        """Request a resync soon, for example after a restart of the runtime."""
        self._stale.set()

    async def run(self) -> None:
        """While records are needed, resync with the runtime periodically and whenever marked stale."""
        while True:
            await self._needed.wait()
            self._stale.clear()
            try:
                await self.resync()
            except GovernorError as error:
                self._log_once(str(error))
                await self._clock.sleep(_RETRY_S)
            else:
                self._last_error = ""
                await self._wait_for_resync()

    def _log_once(self, error: str) -> None:
        if error != self._last_error:
            _log.warning("cannot list the runtime's sandboxes and containers", error=error)
        self._last_error = error

    async def _wait_for_resync(self) -> None:
        waits = {asyncio.ensure_future(self._clock.sleep(_RESYNC_S)), asyncio.ensure_future(self._stale.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def resync(self) -> None:
        """Fetch missing records, refresh known containers, and delete what the runtime no longer lists."""
        recorded = self._sandboxes.keys() | self._containers.keys()
        sandboxes, containers = await self._runtime.sandboxes(), await self._runtime.containers()
        sandbox_ids = [each.id for each in sandboxes]
        for gone in recorded - {*sandbox_ids, *(each.id for each in containers)}:
            self._delete(gone)
        for sandbox_id in sandbox_ids:
            await self._ignore_not_found(self._fetch_sandbox(sandbox_id))
        for listed in containers:
            is_known = listed.id in self._containers
            await self._ignore_not_found((self._refresh if is_known else self._fetch_container)(listed))

    async def _ignore_not_found(self, fetch: Coroutine[Any, Any, None]) -> None:
        """Await a fetch; what was removed since it was listed is not an error."""
        try:
            await fetch
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise

    def has_records_for(self, request: CriRequest) -> bool:
        """Return whether the sandbox and container of a request are recorded."""
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

    async def fetch(self, request: CriRequest) -> None:
        """Fetch the records of a request that are missing; raise NOT_FOUND if the runtime has none either."""
        match request:
            case cri_pb2.StopPodSandboxRequest() | cri_pb2.CreateContainerRequest():
                await self._fetch_sandbox(request.pod_sandbox_id)
            case (
                cri_pb2.StartContainerRequest()
                | cri_pb2.StopContainerRequest()
                | cri_pb2.UpdateContainerResourcesRequest()
            ):
                await self._fetch_container_by_id(request.container_id)
            case _:
                return

    async def _fetch_sandbox(self, sandbox_id: str) -> None:
        if sandbox_id not in self._sandboxes:
            found = await self._runtime.sandbox(sandbox_id)
            if found.id not in self._removed:
                self._sandboxes.setdefault(found.id, found)

    async def _fetch_container_by_id(self, container_id: str) -> None:
        recorded = self._containers.get(container_id)
        if recorded is not None:
            await self._fetch_sandbox(recorded.sandbox_id)
            return
        for listed in await self._runtime.containers(container_id):
            if listed.id == container_id:
                await self._fetch_container(listed)
                return
        raise GovernorError(Kind.NOT_FOUND, "unknown-container", f"the runtime has no container {container_id!r}")

    async def _fetch_container(self, listed: cri_pb2.Container) -> None:
        if listed.id in self._containers:
            return
        await self._fetch_sandbox(listed.pod_sandbox_id)
        pod = self._sandboxes.get(listed.pod_sandbox_id)
        if pod is not None:
            with_environment = self.remembers_environment
            found = await self._runtime.container(listed, pod, with_environment=with_environment)
            if with_environment != self.remembers_environment:
                return
            if not {listed.id, listed.pod_sandbox_id} & {*self._removed}:
                self._containers.setdefault(listed.id, found)

    async def _refresh(self, listed: cri_pb2.Container) -> None:
        """Update the resources of a container, which may have been changed around the proxy.

        Labels and annotations cannot change, nor can anything of a sandbox that its status shows.
        """
        recorded = self._containers[listed.id]
        refreshed = refreshed_container(recorded, await self._runtime.status(listed.id))
        if self._containers.get(listed.id) is recorded:
            self._containers[listed.id] = refreshed

    def record(self, request: CriRequest, response: bytes, created: Container | None = None) -> None:
        """Record a call that succeeded; ``response`` is the runtime's message, ``created`` the container in it."""
        match request:
            case cri_pb2.RunPodSandboxRequest():
                run = cri_pb2.RunPodSandboxResponse.FromString(response)
                self._sandboxes[run.pod_sandbox_id] = started_sandbox(request, run.pod_sandbox_id)
            case cri_pb2.CreateContainerRequest():
                container_id = cri_pb2.CreateContainerResponse.FromString(response).container_id
                if created is not None:
                    self._containers[container_id] = with_id(created, container_id)
            case cri_pb2.UpdateContainerResourcesRequest():
                if container := self._containers.get(request.container_id):
                    self._containers[container.id] = updated_container(container, request)
            case cri_pb2.UpdatePodSandboxResourcesRequest():
                if sandbox := self._sandboxes.get(request.pod_sandbox_id):
                    self._sandboxes[sandbox.id] = updated_sandbox(sandbox, request)
            case cri_pb2.RemoveContainerRequest():
                self._removed.append(request.container_id)
                self._delete(request.container_id)
            case cri_pb2.RemovePodSandboxRequest():
                self._removed.append(request.pod_sandbox_id)
                self._delete(request.pod_sandbox_id)
            case _:
                return

    def confirm_absent(self, request: CriRequest) -> None:
        """Delete the records of a removal that the runtime answered with NOT_FOUND; they may be fetched again."""
        match request:
            case cri_pb2.RemoveContainerRequest():
                self._delete(request.container_id)
            case cri_pb2.RemovePodSandboxRequest():
                self._delete(request.pod_sandbox_id)
            case _:
                return

    def invalidate(self, request: CriRequest) -> None:
        """Delete the record of an update whose outcome is unknown, so that it is fetched again."""
        match request:
            case cri_pb2.UpdateContainerResourcesRequest():
                self._containers.pop(request.container_id, None)
            case cri_pb2.UpdatePodSandboxResourcesRequest():
                self._sandboxes.pop(request.pod_sandbox_id, None)
            case _:
                return

    def _delete(self, removed: str) -> None:
        """Delete a container, or a sandbox with its containers."""
        self._containers.pop(removed, None)
        if self._sandboxes.pop(removed, None) is not None:
            for each in [each.id for each in self._containers.values() if each.sandbox_id == removed]:
                del self._containers[each]
