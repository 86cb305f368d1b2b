"""Probe of one sidecar on this machine: its status and kernel facts about its process, in one neutral reading.

Excluded: starting, stopping and judging sidecars.
"""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from governor.agent.platforms.local.sidecars import daprd, procfs
from governor.agent.verification.sidecar_api import SidecarApi, SidecarStatus, get_over_http
from governor.agent.verification.verdicts import Instance, Proof, Reading, SidecarExit
from governor.domain.dapr.reload import why_not_reloading
from governor.domain.documents import ResourceRef
from governor.process.clock import Clock

_HOT_RELOAD: Final = "HotReload"


class Process(msgspec.Struct, frozen=True):
    """One process of a sidecar; ``number`` counts the sidecar's starts by this agent."""

    number: int
    pid: int
    start_time: str

    @property
    def instance(self) -> Instance:
        """The process as verification knows it."""
        return Instance(f"{self.number}/{self.pid}/{self.start_time}", f"process {self.pid}")


class ProbeTarget(msgspec.Struct, frozen=True):
    """A sidecar's ports and the directory that it should load; ``public`` is any port that serves its metadata."""

    app_id: str
    public: int
    metrics: int
    resources: Path


class Probe:
    """Probe of one sidecar, with the proofs of its current process."""

    def __init__(self, target: ProbeTarget, session: aiohttp.ClientSession, clock: Clock) -> None:
        self._target = target
        self._clock = clock
        self._api = SidecarApi(
            get_over_http(session),
            f"http://127.0.0.1:{target.public}",
            f"http://127.0.0.1:{target.metrics}" if target.metrics else "",
        )
        self._proofs: dict[ResourceRef, Proof] = {}
        self._proofs_of: Instance | None = None
        self.listener = 0
        """Inode of the current process's first listening socket; 0 if unknown."""

    def restore(self, process: Process, listener: int, proofs: Mapping[ResourceRef, Proof]) -> None:
        """Set the state that an earlier agent stored for an adopted process."""
        self.listener, self._proofs, self._proofs_of = listener, dict(proofs), process.instance

    def proofs(self, instance: Instance | None) -> Mapping[ResourceRef, Proof]:
        """Return the proofs of a process; a new one has none."""
        return self._proofs if instance is not None and instance == self._proofs_of else {}

    def set_proofs(self, instance: Instance | None, proofs: Mapping[ResourceRef, Proof]) -> None:
        """Set the proofs of a process."""
        self._proofs, self._proofs_of = dict(proofs), instance

    def drop_proofs(self, instance: Instance | None, refs: Collection[ResourceRef]) -> bool:
        """Drop a process's proofs of these resources; return whether it had any."""
        proofs = self.proofs(instance)
        kept = {ref: proof for ref, proof in proofs.items() if ref not in refs}
        if kept != proofs:
            self.set_proofs(instance, kept)
        return kept != proofs

    async def get_status(self) -> SidecarStatus | None:
        """Return the sidecar's status, whichever process responds."""
        return await self._api.get_status()

    async def record_listener(self, pid: int) -> None:
        """Record the first listening socket of a new process, to detect a restart within it."""
        self.listener = self.listener or await asyncio.to_thread(procfs.listening_socket, pid, self._target.public)

    async def read(
        self, process: Process, *, started_after_write: bool, last_exit: SidecarExit | None = None
    ) -> Reading:
        """Read the current state of a process."""
        status = await self._api.get_status()
        listener, watches, has_flag = await asyncio.to_thread(self._inspect, process.pid)
        self.listener = self.listener or listener
        # Without a socket of its own, another process has responded on the port.
        is_own = status is not None and status.metadata.id == self._target.app_id and listener != 0
        return Reading(
            self._clock.now(),
            process.instance,
            started_after_write=started_after_write,
            restarted_in_place=listener != self.listener if listener else None,
            status=status if is_own else None,
            load_evidence=_load_evidence(status, watches=watches, has_flag=has_flag),
            reload_obstacle="" if watches else _reload_obstacle(status),
            last_exit=last_exit,
        )

    def _inspect(self, pid: int) -> tuple[int, bool, bool]:
        directory = self._target.resources
        # A listening socket keeps its port.
        is_open = self.listener in procfs.open_sockets(pid)
        listener = self.listener if is_open else procfs.listening_socket(pid, self._target.public)
        return listener, procfs.has_watch(pid, directory), procfs.has_flag(pid, directory, daprd.RESOURCES_FLAG)


def _load_evidence(status: SidecarStatus | None, *, watches: bool, has_flag: bool) -> str:
    """Return what shows that the process loads the directory; its command line counts only if it cannot watch."""
    if watches:
        return "watches the resources directory"
    can_watch = status is not None and _HOT_RELOAD in status.metadata.enabled_features
    return "was started with the resources directory" if has_flag and status and not can_watch else ""


def _reload_obstacle(status: SidecarStatus | None) -> str:
    reason = why_not_reloading(status.metadata.runtime_version) if status else ""
    return reason or "the sidecar does not watch the resources directory"
