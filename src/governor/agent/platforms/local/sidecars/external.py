"""A daprd on this machine that the agent does not run: probed like any other, never started, stopped or restarted.

Its process is found by its listening port. The agent's reports say when it needs a restart.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import aiohttp

from governor.agent.platforms.local.sidecars import procfs
from governor.agent.platforms.local.sidecars.probe import Probe, ProbeTarget, Process
from governor.agent.settings import SidecarSettings
from governor.agent.verification.verdicts import Proof, Reading
from governor.domain.documents import ResourceRef
from governor.process.child.child import start_time, start_time_now, started_after
from governor.process.clock import Clock

_POLL_S: Final = 1.0


class ExternalSidecar:
    """An external sidecar. Its processes all have number 0 and are distinguished by their start time."""

    def __init__(
        self,
        settings: SidecarSettings,
        resources: Path,
        session: aiohttp.ClientSession,
        clock: Clock,
        *,
        on_change: Callable[[], None],
    ) -> None:
        self.app_id = settings.app_id
        self.process: Process | None = None
        self._written = ""
        """When what it loads was last changed, in the form of a start time."""
        self._port = settings.public_port or settings.http_port
        self._target = ProbeTarget(settings.app_id, self._port, settings.metrics_port, resources)
        self._session = session
        self._clock = clock
        self._on_change = on_change
        self._probe = Probe(self._target, session, clock)

    def is_up(self) -> bool:
        """Return whether its process was found."""
        return self.process is not None

    def not_ready(self) -> str:
        """Return ``""``: the agent is not responsible for running it."""
        return ""

    def proofs(self, reading: Reading) -> Mapping[ResourceRef, Proof]:
        """Return the proofs of a reading's process."""
        return self._probe.proofs(reading.instance)

    async def keep_proofs(self, reading: Reading, proofs: Mapping[ResourceRef, Proof]) -> None:
        """Store the proofs of a reading's process."""
        self._probe.set_proofs(reading.instance, proofs)

    async def drop_proofs(self, refs: Collection[ResourceRef]) -> None:
        """Drop the proofs of resources of which the current process may have loaded other content."""
        self._probe.drop_proofs(self.process.instance if self.process else None, refs)

    def restore(self, written: str) -> None:
        """Set when an earlier agent last changed the files."""
        self._written = written

    def mark_written(self) -> None:
        """Record that what it loads was changed: only a process that starts from now on started after the write."""
        self._written = start_time_now()

    async def run(self) -> None:
        """Call ``on_change`` whenever a new process is healthy, until cancelled."""
        last = self.process.instance if self.process else None
        while True:
            await self._clock.sleep(_POLL_S)
            reading = await self.read()
            is_healthy = reading.status is not None and reading.status.healthy
            if is_healthy and reading.instance != last:
                last = reading.instance
                self._on_change()

    async def read(self) -> Reading:
        """Probe the sidecar."""
        found = await asyncio.to_thread(self._find)
        if found != self.process:
            self.process, self._probe = found, Probe(self._target, self._session, self._clock)
        if found is None:
            return Reading(self._clock.now())
        is_fresh = started_after(found.start_time, self._written)
        return await self._probe.read(found, started_after_write=is_fresh)

    def _find(self) -> Process | None:
        known = self.process
        if (
            known is not None
            and procfs.listening_socket(known.pid, self._port)
            and start_time(known.pid) == known.start_time
        ):
            return known
        pid = procfs.listening_pid(self._port)
        return Process(0, pid, start_time(pid)) if pid else None
