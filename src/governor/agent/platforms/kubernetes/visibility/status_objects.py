"""Writes the status objects of a runtime, one per namespace. The agent works without them.

The objects are an apply set of their own. If their definition or a permission is missing, that is logged once, and the
newest status is written as soon as it can be.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from governor.agent.platforms.kubernetes.resources.applied import LABEL_PREFIX, MANAGER
from governor.agent.platforms.kubernetes.visibility.runtime_status import (
    RUNTIME_STATUSES,
    NamespaceStatus,
    RuntimeStatus,
    manifest_of,
)
from governor.errors import GovernorError, Kind
from governor.kube.applyset import ApplySet, Owner, Settings
from governor.kube.applyset.live import find_kinds
from governor.kube.client import Client
from governor.kube.controller.status import StatusWriter
from governor.process.clock import Clock
from governor.process.telemetry import logging

INTERVAL_S: Final = 1.0
"""The shortest time between two writes: while a change proceeds, only its newest state is written."""
RETRY_S: Final = 60.0
DEFINITION: Final = "runtimestatuses.yaml"
"""The file beside this module with the CustomResourceDefinition, which an administrator applies."""

_KIND: Final = (RUNTIME_STATUSES.group, RUNTIME_STATUSES.version, RUNTIME_STATUSES.kind)

_log = logging.get_logger(__name__)


class StatusObjects:
    """The status objects of one runtime. ``namespace`` is the agent's own, where the inventory is.

    ``permit`` is awaited before a write; it raises if another process does this agent's work now.
    """

    def __init__(
        self,
        client: Client,
        runtime: str,
        namespace: str,
        namespaces: Sequence[str],
        clock: Clock,
        permit: Callable[[], Awaitable[None]],
        *,
        interval_s: float = INTERVAL_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self.namespaces = tuple(dict.fromkeys(namespaces))
        self._client = client
        self._runtime = runtime
        self._clock = clock
        self._permit = permit
        self._interval_s = interval_s
        self._retry_s = retry_s
        manager = f"{MANAGER}-{runtime}"
        # No allowed namespaces: the object in a namespace that is no longer managed is removed.
        settings = Settings(manager=manager, label_prefix=LABEL_PREFIX, force_conflicts=True)
        self._set = ApplySet(client, Owner(runtime, namespace, f"{manager}-status"), settings, clock)
        self._writer = StatusWriter(client, RUNTIME_STATUSES, manager, clock)
        self._newest: Mapping[str, NamespaceStatus] = {}
        self._changed = asyncio.Event()
        self._are_created = False
        self._problem = ""

    def show(self, statuses: Mapping[str, NamespaceStatus]) -> None:
        """Have the status of each namespace written soon; only the newest is."""
        self._newest = statuses
        self._changed.set()

    async def run(self) -> None:
        """Write the newest status until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            problem = await self._write()
            if problem and problem != self._problem:
                _log.warning("cannot write the status in the cluster; the agent works without it", error=problem)
            self._problem = problem
            await self._clock.sleep(self._retry_s if problem else self._interval_s)
            if problem:
                self._changed.set()

    async def _write(self) -> str:
        """Write all statuses and return why some could not be written, or ``""``."""
        problems = [await self._write_one(namespace, each) for namespace, each in self._newest.items()]
        return "; ".join(dict.fromkeys(filter(None, problems)))

    async def _write_one(self, namespace: str, status: NamespaceStatus) -> str:
        try:
            await self._permit()
            await self._writer.write(await self._read_or_create(namespace), status)
        except GovernorError as error:
            self._are_created = False  # the definition may have been deleted, and with it all objects
            return str(error)
        return ""

    async def _read_or_create(self, namespace: str) -> RuntimeStatus:
        """Return the object; created if it is missing, and once at the start."""
        if self._are_created:
            try:
                return await self._read(namespace)
            except GovernorError as error:
                if error.kind is not Kind.NOT_FOUND:
                    raise
        problems = await self._create()
        try:
            return await self._read(namespace)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND or not problems:
                raise
            raise GovernorError(Kind.PRECONDITION, "status-not-created", problems) from error

    async def _read(self, namespace: str) -> RuntimeStatus:
        found = await self._client.get(RUNTIME_STATUSES, self._runtime, namespace)
        return msgspec.convert(found, RuntimeStatus)

    async def _create(self) -> str:
        """Create the objects of all namespaces and return what prevented some, or ``""``."""
        if not await find_kinds(self._client, {_KIND}):
            name = f"{RUNTIME_STATUSES.plural}.{RUNTIME_STATUSES.group}"
            message = f"the CustomResourceDefinition {name} is not installed: apply {DEFINITION}"
            raise GovernorError(Kind.PRECONDITION, "definition-missing", message)
        report = await self._set.converge([manifest_of(self._runtime, each) for each in self.namespaces])
        self._are_created = True
        return "; ".join(report.problems())
