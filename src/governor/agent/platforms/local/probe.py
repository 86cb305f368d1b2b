"""What can be seen of one sidecar on this machine, whoever runs it: its own words and the kernel's, in one reading.

Nothing here starts, ends or judges anything.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from governor.agent.platforms.local import daprd, procfs
from governor.agent.verification.sidecar_api import SidecarApi, SidecarStatus
from governor.agent.verification.verdicts import Process, Proof, Reading, SidecarExit
from governor.domain.documents import ResourceRef
from governor.process.clock import Clock

_HOT_RELOAD: Final = "HotReload"


class ProbeTarget(msgspec.Struct, frozen=True):
    """Where a sidecar answers and what it should load; ``public`` is any port that serves its metadata."""

    app_id: str
    public: int
    metrics: int
    resources: Path


class Probe:
    """Looks at one sidecar, and knows what its present process has been seen to use."""

    def __init__(self, place: ProbeTarget, session: aiohttp.ClientSession, clock: Clock) -> None:
        self._place = place
        self._clock = clock
        self._api = SidecarApi(
            session, f"http://127.0.0.1:{place.public}", f"http://127.0.0.1:{place.metrics}" if place.metrics else ""
        )
        self._proofs: dict[ResourceRef, Proof] = {}
        self._proofs_of: Process | None = None
        self.listener = 0
        """The socket on which the present process answered first."""

    def restore(self, process: Process, listener: int, proofs: Mapping[ResourceRef, Proof]) -> None:
        """Take up what an earlier agent saw of a process that is still there."""
        self.listener, self._proofs, self._proofs_of = listener, dict(proofs), process

    def proofs(self, process: Process | None) -> Mapping[ResourceRef, Proof]:
        """What a process was seen to use; a new one has shown nothing yet."""
        return self._proofs if process is not None and process == self._proofs_of else {}

    def set_proofs(self, process: Process | None, proofs: Mapping[ResourceRef, Proof]) -> None:
        """Remember what a process was seen to use."""
        self._proofs, self._proofs_of = dict(proofs), process

    async def get_status(self) -> SidecarStatus | None:
        """What the sidecar says, whichever process answers."""
        return await self._api.get_status()

    async def record_listener(self, pid: int) -> None:
        """Note on which socket a new process answers first, before it can restart itself."""
        self.listener = self.listener or await asyncio.to_thread(procfs.listening_socket, pid, self._place.public)

    async def read(self, process: Process, last_exit: SidecarExit | None) -> Reading:
        """A process as it is now."""
        status = await self._api.get_status()
        listener, watches, given = await asyncio.to_thread(self._look_at, process.pid)
        self.listener = self.listener or listener
        return Reading(
            self._clock.now(),
            process,
            listener,
            restarted_in_place=listener != self.listener,
            status=status if status and status.metadata.id == self._place.app_id else None,
            load_evidence=_load_evidence(status, watches=watches, given=given),
            watches=watches,
            last_exit=last_exit,
        )

    def _look_at(self, pid: int) -> tuple[int, bool, bool]:
        directory = self._place.resources
        listener = procfs.listening_socket(pid, self._place.public)
        return listener, procfs.has_watch(pid, directory), procfs.has_flag(pid, directory, daprd.RESOURCES_FLAG)


def _load_evidence(status: SidecarStatus | None, *, watches: bool, given: bool) -> str:
    """How the process is known to load the directory; its command line counts only where it cannot watch."""
    if watches:
        return "watches the resources directory"
    can_watch = status is not None and _HOT_RELOAD in status.metadata.enabled_features
    return "was started with the resources directory" if given and status and not can_watch else ""
