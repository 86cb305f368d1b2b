"""One daprd that the agent runs: kept alive with backoff, held and released around a change, and looked at.

It decides nothing about deliveries. The process outlives the agent; the next agent goes on with it.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from governor.agent.platforms.local import daprd
from governor.agent.platforms.local.ports import ReservedPorts, preferred_ports
from governor.agent.platforms.local.probe import Probe, ProbeTarget
from governor.agent.settings import SidecarSettings
from governor.agent.storage import Ports, ProcessRecord, SidecarRecord, Storage
from governor.agent.verification.verdicts import Process, Proof, Reading, SidecarExit
from governor.domain.documents import ResourceRef
from governor.errors import GovernorError
from governor.process.child import detached
from governor.process.child.child import ChildExit
from governor.process.child.detached import Detached
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.process.telemetry import logging
from governor.values.digest import digest

STOP_GRACE_S: Final = 10.0
_BACKOFF: Final = Backoff(initial_s=0.5, max_s=30.0)
_STEADY_S: Final = 30.0
"""A process that lived this long was not part of a series of failures."""
_LOG_BYTES: Final = 16 * 1024 * 1024
_POLL_S: Final = 0.02
_PAUSE_GROWTH: Final = 1.3

_log = logging.get_logger(__name__)


class Sidecar:
    """A supervised daprd. ``run`` keeps it alive while it is released; ``hold`` ends it and keeps it ended."""

    def __init__(
        self,
        settings: SidecarSettings,
        launch: daprd.Launch,
        storage: Storage,
        session: aiohttp.ClientSession,
        clock: Clock,
        *,
        on_change: Callable[[], None],
    ) -> None:
        self.app_id = settings.app_id
        self.starts = 0
        self.process: Process | None = None
        self._settings = settings
        self._launch = launch
        self._storage = storage
        self._session = session
        self._clock = clock
        self._on_change = on_change
        self._record = storage.sidecar(settings.app_id)
        self.ports: Ports = preferred_ports(settings, self._record.ports if self._record else None)
        self._probe = self._new_probe()
        self._retries = Retries(_BACKOFF, random.Random())  # noqa: S311 - spreads restarts, guards nothing
        self._running: Detached | None = None
        self._config: Path | None = None
        self._last_exit: SidecarExit | None = None
        self._released = asyncio.Event()
        self._stopped = asyncio.Event()
        self._stopped.set()
        self._skip_backoff = asyncio.Event()
        self._is_healthy = False

    @property
    def log_file(self) -> Path:
        """Where daprd's output goes."""
        return self._storage.log_directory / f"{self.app_id}.log"

    @property
    def is_released(self) -> bool:
        """Whether a process runs or will be started without being asked for."""
        return self._released.is_set()

    def is_up(self) -> bool:
        """Whether there is a process."""
        return self.process is not None

    def not_ready(self) -> str:
        """Why the sidecar cannot serve its application, or nothing."""
        if self.process is not None:
            return "" if self._is_healthy else "daprd is starting"
        # Its last words may hold secrets, and whoever asks for health may be anybody.
        return f"daprd ended, see {self.log_file}" if self._last_exit else "daprd is not started"

    def proofs(self, reading: Reading) -> Mapping[ResourceRef, Proof]:
        """What the process of a reading was seen to use; a new process has shown nothing yet."""
        return self._probe.proofs(reading.process)

    async def keep_proofs(self, reading: Reading, proofs: Mapping[ResourceRef, Proof]) -> None:
        """Remember what the process of a reading was seen to use, for the next agent too."""
        if proofs != self.proofs(reading):
            self._probe.set_proofs(reading.process, proofs)
            await self._save_record()

    async def adopt(self, config: Path | None) -> None:
        """Go on with the process of an earlier agent, if it was started as it would be now; otherwise end it."""
        record = self._record.process if self._record else None
        found = record and detached.adopt(record.pid, record.start_time, self.log_file, record.log_begin)
        if record is None or not found or self._record is None:
            return
        if record.launch != self._launch_digest(config):
            _log.info("ending a sidecar whose settings have changed", app_id=self.app_id, pid=found.pid)
            await found.stop(STOP_GRACE_S)
            return
        self.process = Process(self.starts, found.pid, found.start_time)
        self._probe.restore(self.process, record.listener, dict(self._record.proofs))
        self._running, self._config = found, config
        self._stopped.clear()
        self._released.set()
        _log.info("going on with a sidecar that runs", app_id=self.app_id, pid=found.pid)

    async def run(self) -> None:
        """Keep a process alive while released, until cancelled; it goes on then, unless it shall end with the agent."""
        try:
            while True:
                await self._released.wait()
                await self._run_once()
        finally:
            if self._running is not None:
                await self._detach_or_stop(self._running)

    async def hold(self) -> None:
        """End the process gracefully and keep it ended until released."""
        self._released.clear()
        self._skip_backoff.set()
        if self._running is not None:
            await self._running.stop(STOP_GRACE_S)
        await self._stopped.wait()

    def release(self, config: Path | None) -> None:
        """Let a process run, soon and with this configuration; one that runs already goes on with what it has."""
        self._config = config
        self._retries.reset()
        self._released.set()
        self._skip_backoff.set()

    async def restart(self, config: Path | None) -> int:
        """Replace the process gracefully by a new one; any process with a number beyond the one returned is new."""
        await self.hold()
        before = self.starts
        self.release(config)
        return before

    async def restart_unchanged(self) -> int:
        """Restart with the configuration that it has."""
        return await self.restart(self._config)

    async def read(self) -> Reading:
        """What is seen of the sidecar now."""
        process = self.process
        reading = await self._probe.read(process, self._last_exit) if process else None
        if reading is None or process != self.process:
            return Reading(self._clock.now(), last_exit=self._last_exit)
        return msgspec.structs.replace(reading, errors=await self._logged_errors(reading))

    async def _run_once(self) -> None:
        """Have a process and wait for its end; after an end that nobody asked for, wait longer each time."""
        self._stopped.clear()
        self._skip_backoff.clear()
        began = self._clock.monotonic()
        try:
            ending = await self._start_and_wait()
        finally:
            if self._running is None:
                self._stopped.set()
        if not self._released.is_set():
            return
        self._last_exit = ending
        self._on_change()
        if self._clock.monotonic() - began > _STEADY_S:
            self._retries.reset()
        delay_s = self._retries.next_delay_s()
        _log.warning("sidecar ended", app_id=self.app_id, again_in_s=round(delay_s, 1), log=str(self.log_file))
        await self._back_off(delay_s)

    async def _start_and_wait(self) -> SidecarExit:
        with ExitStack() as held:
            if self._running is None:
                try:
                    await self._start(held)
                except GovernorError as error:
                    return SidecarExit(self.starts, str(error))
            ended = await self._wait()
        self._running = self.process = None
        return SidecarExit(self.starts, daprd.describe_exit(ended), external_cause=daprd.has_external_cause(ended))

    async def _wait(self) -> ChildExit:
        running = self._running
        assert running is not None  # noqa: S101 - started just now, or taken over before
        if not self._released.is_set():
            await running.stop(STOP_GRACE_S)
        async with asyncio.TaskGroup() as group:
            awaiting_healthy = group.create_task(self._await_healthy(running.pid))
            ended = await running.wait()
            awaiting_healthy.cancel()
        return ended

    async def _start(self, held: ExitStack) -> None:
        unasked = self._retries.failures > 0
        self.starts += 1
        await asyncio.to_thread(self._rotate_log)
        self.ports = held.enter_context(ReservedPorts(self._settings, self.ports)).ports
        self._probe = self._new_probe()
        words = daprd.argv(self._launch, self._settings, self.ports, self._config)
        self._running = await detached.start(words, env=daprd.environment(self._launch), log_file=self.log_file)
        self.process = Process(self.starts, self._running.pid, self._running.start_time)
        self._is_healthy = False
        _log.info("sidecar started", app_id=self.app_id, pid=self._running.pid, http_port=self.ports.http)
        await self._save_record()
        if unasked:
            self._on_change()

    async def _await_healthy(self, pid: int) -> None:
        """Note on which socket a new process answers first, and when it is healthy."""
        pause_s = _POLL_S
        while not self._is_healthy:
            await asyncio.sleep(pause_s)
            await self._probe.record_listener(pid)
            status = await self._probe.get_status()
            self._is_healthy = status is not None and status.healthy
            pause_s = min(_PAUSE_GROWTH * pause_s, 1.0)

    async def _detach_or_stop(self, running: Detached) -> None:
        if self._launch.stop_with_agent:
            await running.stop(STOP_GRACE_S)
        else:
            running.release()
        self._running = self.process = None

    def _new_probe(self) -> Probe:
        place = ProbeTarget(self.app_id, self.ports.public, self.ports.metrics, self._launch.resources)
        return Probe(place, self._session, self._clock)

    def _launch_digest(self, config: Path | None) -> str:
        """Two processes with the same one were started alike."""
        return digest([daprd.argv(self._launch, self._settings, self.ports, config), self._launch.namespace])

    def _rotate_log(self) -> None:
        """Begin a new log when the old one is large."""
        if self.log_file.exists() and self.log_file.stat().st_size > _LOG_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))

    async def _save_record(self) -> None:
        """Leave a record for the next agent; a process without one is ended by it."""
        process, running = self.process, self._running
        if process is None or running is None:
            return
        own = ProcessRecord(
            running.pid, running.start_time, self._launch_digest(self._config), running.log_begin, self._probe.listener
        )
        record = SidecarRecord(self.ports, own, tuple(self._probe.proofs(process).items()))
        try:
            await asyncio.to_thread(self._storage.save_sidecar, self.app_id, record)
        except GovernorError as error:
            # A full disk must not take the application's sidecar down; the next agent would start it anew.
            _log.error("cannot remember the sidecar's process", app_id=self.app_id, error=str(error))

    async def _back_off(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._skip_backoff.wait()
        except TimeoutError:
            return

    async def _logged_errors(self, reading: Reading) -> tuple[str, ...]:
        """The errors in the log of the present process, where there must be some."""
        status, running = reading.status, self._running
        if running is None or status is None or status.counters is None or not status.counters.failed:
            return ()
        return await asyncio.to_thread(daprd.errors, self.log_file, running.log_begin)
