"""A daprd on this machine that somebody else runs: looked at like our own, never started, ended or restarted.

Its process is found by the port on which it listens. Its owner is told what it needs by the agent's reports.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import aiohttp

from governor.agent.platforms.local import procfs
from governor.agent.platforms.local.probe import Probe, ProbeTarget
from governor.agent.settings import SidecarSettings
from governor.agent.verification.verdicts import Process, Proof, Reading
from governor.domain.documents import ResourceRef
from governor.process.child.child import start_time
from governor.process.clock import Clock

_LOOK_S: Final = 1.0


class ExternalSidecar:
    """What the agent knows of it. All its processes have number 0: whether one is new is a question of its start."""

    starts = 0

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
        self._port = settings.public_port or settings.http_port
        self._place = ProbeTarget(settings.app_id, self._port, settings.metrics_port, resources)
        self._session = session
        self._clock = clock
        self._on_change = on_change
        self._probe = Probe(self._place, session, clock)

    def is_up(self) -> bool:
        """Whether its process was found."""
        return self.process is not None

    def not_ready(self) -> str:
        """Nothing: it is its owner's to run."""
        return ""

    def proofs(self, reading: Reading) -> Mapping[ResourceRef, Proof]:
        """What the process of a reading was seen to use."""
        return self._probe.proofs(reading.process)

    async def keep_proofs(self, reading: Reading, proofs: Mapping[ResourceRef, Proof]) -> None:
        """Remember what the process of a reading was seen to use."""
        self._probe.set_proofs(reading.process, proofs)

    async def run(self) -> None:
        """Tell when another process has come up, until cancelled: its owner may have restarted it."""
        told = self.process
        while True:
            await self._clock.sleep(_LOOK_S)
            reading = await self.read()
            is_up = reading.status is not None and reading.status.healthy
            if is_up and reading.process != told:
                told = reading.process
                self._on_change()

    async def read(self) -> Reading:
        """What is seen of the sidecar now."""
        found = await asyncio.to_thread(self._find)
        if found != self.process:
            self.process, self._probe = found, Probe(self._place, self._session, self._clock)
        if found is None:
            return Reading(self._clock.now())
        return await self._probe.read(found, None)

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
