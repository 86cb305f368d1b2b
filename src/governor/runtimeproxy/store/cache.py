"""In-memory cache of records by id: filled from held calls, and from the runtime for sandboxes it did not see start.

A resync refreshes the resources of known containers. A record is deleted when the runtime confirms the removal or no
longer lists the sandbox or container.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from governor.errors import GovernorError, Kind
from governor.process.clock import Clock, wait_at_most
from governor.process.telemetry import logging
from governor.runtimeproxy.hooks.calls import Call
from governor.runtimeproxy.hooks.requests import Request
from governor.runtimeproxy.store.records import (
    ContainerRecord,
    ListedContainer,
    ListedSandbox,
    Sandbox,
    updated_container,
    updated_sandbox,
    with_id,
    with_resources,
)
from governor.wire.hooks.workload import Pod, Resources

_RESYNC_S: Final = 60.0
_RETRY_S: Final = 1.0
_MAX_REMOVED: Final = 1024

_OF_SANDBOX: Final = frozenset({Call.STOP_POD_SANDBOX, Call.CREATE_CONTAINER})
_OF_CONTAINER: Final = frozenset({Call.START_CONTAINER, Call.STOP_CONTAINER, Call.UPDATE_CONTAINER_RESOURCES})
"""Calls that need the record of a sandbox, or of a container and its sandbox."""

_log = logging.get_logger(__name__)


class Runtime(Protocol):
    """What the cache asks a runtime; a sandbox or container that it does not have is NOT_FOUND."""

    async def sandboxes(self) -> list[ListedSandbox]:
        """List all sandboxes."""

    async def containers(self, container_id: str = "") -> list[ListedContainer]:
        """List all containers, or those whose id has this prefix."""

    async def sandbox(self, sandbox_id: str) -> Sandbox:
        """Return a sandbox."""

    async def container(
        self, listed: ListedContainer, pod: Sandbox, *, with_environment: bool = False
    ) -> ContainerRecord:
        """Return a container."""

    async def resources(self, container_id: str) -> Resources | None:
        """Return a container's present resources, if the runtime reports them."""


class RecordCache:
    """Cached records, kept in step with the runtime."""

    def __init__(self, runtime: Runtime, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock
        self._sandboxes: dict[str, Sandbox] = {}
        self._containers: dict[str, ContainerRecord] = {}
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

    def container(self, container_id: str) -> ContainerRecord | None:
        """Return the container with this id, or None."""
        return self._containers.get(container_id)

    def sandboxes(self) -> list[Sandbox]:
        """Return all recorded sandboxes."""
        return list(self._sandboxes.values())

    def containers_of(self, sandbox_id: str) -> list[ContainerRecord]:
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
                await wait_at_most(self._stale.wait(), _RESYNC_S, self._clock)

    def _log_once(self, error: str) -> None:
        if error != self._last_error:
            _log.warning("cannot list the runtime's sandboxes and containers", error=error)
        self._last_error = error

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

    def has_records_for(self, request: Request) -> bool:
        """Return whether the sandbox and container of a request are recorded."""
        if request.call in _OF_SANDBOX:
            return request.sandbox_id in self._sandboxes
        if request.call in _OF_CONTAINER:
            container = self._containers.get(request.container_id)
            return container is not None and container.sandbox_id in self._sandboxes
        return True

    async def fetch(self, request: Request) -> None:
        """Fetch the records of a request that are missing; raise NOT_FOUND if the runtime has none either."""
        if request.call in _OF_SANDBOX:
            await self._fetch_sandbox(request.sandbox_id)
        elif request.call in _OF_CONTAINER:
            await self._fetch_container_by_id(request.container_id)

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

    async def _fetch_container(self, listed: ListedContainer) -> None:
        if listed.id in self._containers:
            return
        await self._fetch_sandbox(listed.sandbox_id)
        pod = self._sandboxes.get(listed.sandbox_id)
        if pod is not None:
            with_environment = self.remembers_environment
            found = await self._runtime.container(listed, pod, with_environment=with_environment)
            if with_environment != self.remembers_environment:
                return
            if not {listed.id, listed.sandbox_id} & {*self._removed}:
                self._containers.setdefault(listed.id, found)

    async def _refresh(self, listed: ListedContainer) -> None:
        """Update the resources of a container, which may have been changed around the proxy.

        Labels and annotations cannot change, nor can anything of a sandbox that its status shows.
        """
        recorded = self._containers[listed.id]
        reported = await self._runtime.resources(listed.id)
        if reported is not None and self._containers.get(listed.id) is recorded:
            self._containers[listed.id] = with_resources(recorded, reported)

    def record(self, request: Request) -> None:
        """Record a call that succeeded and creates nothing."""
        match request.call:
            case Call.UPDATE_CONTAINER_RESOURCES:
                if container := self._containers.get(request.container_id):
                    self._containers[container.id] = updated_container(container, request)
            case Call.UPDATE_POD_SANDBOX_RESOURCES:
                if sandbox := self._sandboxes.get(request.sandbox_id):
                    self._sandboxes[sandbox.id] = updated_sandbox(sandbox, request)
            case Call.REMOVE_CONTAINER | Call.REMOVE_POD_SANDBOX:
                removed = request.container_id or request.sandbox_id
                self._removed.append(removed)
                self._delete(removed)
            case _:
                return

    def add_sandbox(self, sandbox_id: str, pod: Pod) -> None:
        """Record a sandbox that the runtime has started."""
        self._sandboxes[sandbox_id] = Sandbox(sandbox_id, pod)

    def add_container(self, container_id: str, created: ContainerRecord) -> None:
        """Record a container that the runtime has created."""
        self._containers[container_id] = with_id(created, container_id)

    def confirm_absent(self, request: Request) -> None:
        """Delete the records of a removal that the runtime answered with NOT_FOUND; they may be fetched again."""
        if request.call in (Call.REMOVE_CONTAINER, Call.REMOVE_POD_SANDBOX):
            self._delete(request.container_id or request.sandbox_id)

    def invalidate(self, request: Request) -> None:
        """Delete the record of an update whose outcome is unknown, so that it is fetched again."""
        if request.call is Call.UPDATE_CONTAINER_RESOURCES:
            self._containers.pop(request.container_id, None)
        elif request.call is Call.UPDATE_POD_SANDBOX_RESOURCES:
            self._sandboxes.pop(request.sandbox_id, None)

    def _delete(self, removed: str) -> None:
        """Delete a container, or a sandbox with its containers."""
        self._containers.pop(removed, None)
        if self._sandboxes.pop(removed, None) is not None:
            for each in [each.id for each in self._containers.values() if each.sandbox_id == removed]:
                del self._containers[each]
