"""One daprd that the agent runs: restarted with backoff, stopped around a change, and probed.

Makes no decisions about deliveries. The process outlives the agent; the next agent adopts it.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from governor.agent.platforms.local.sidecars import daprd
from governor.agent.platforms.local.sidecars.ports import ReservedPorts, preferred_ports
from governor.agent.platforms.local.sidecars.probe import Probe, ProbeTarget, Process
from governor.agent.platforms.local.storage import Ports, ProcessRecord, SidecarRecord, Storage
from governor.agent.settings import SidecarSettings
from governor.agent.verification.verdicts import Proof, Reading, SidecarExit
from governor.domain.documents import ResourceRef
from governor.errors import GovernorError
from governor.process.child import detached
from governor.process.child.child import ChildExit, started_after
from governor.process.child.detached import Detached
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.process.telemetry import logging
from governor.values.digest import digest

STOP_GRACE_S: Final = 10.0
_BACKOFF: Final = Backoff(initial_s=0.5, max_s=30.0)
_STABLE_S: Final = 30.0
"""A process that ran longer than this resets the restart backoff."""
_MAX_LOG_BYTES: Final = 16 * 1024 * 1024
_POLL_S: Final = 0.02
_PAUSE_GROWTH: Final = 1.3

_log = logging.get_logger(__name__)


class Sidecar:
    """A supervised daprd. ``run`` restarts it while it is released; ``hold`` stops it until ``release``."""

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
        self.process: Process | None = None
        self.starts = 0
        self._last_stale = 0
        """The number of the last process that may have started before the last write."""
        self._last_drifted = 0
        """The number of the last process that may have loaded what another program wrote."""
        self._settings = settings
        self._launch = launch
        self._storage = storage
        self._session = session
        self._clock = clock
        self._on_change = on_change
        self._record = storage.sidecar(settings.app_id)
        self.ports: Ports = preferred_ports(settings, self._record.ports if self._record else None)
        self._probe = self._new_probe()
        self._retries = Retries(_BACKOFF, random.Random())  # noqa: S311 - jitter, not security
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
        """The file with daprd's output."""
        return self._storage.log_directory / f"{self.app_id}.log"

    @property
    def is_released(self) -> bool:
        """Whether a process runs or will be started by ``run``."""
        return self._released.is_set()

    def is_up(self) -> bool:
        """Return whether it has a process."""
        return self.process is not None

    def not_ready(self) -> str:
        """Return why the sidecar cannot serve its application, or ``""``."""
        if self.process is not None:
            return "" if self._is_healthy else "daprd is starting"
        # The exit message may contain secrets, and health is readable without credentials.
        return f"daprd exited, see {self.log_file}" if self._last_exit else "daprd is not started"

    def proofs(self, reading: Reading) -> Mapping[ResourceRef, Proof]:
        """Return the proofs of a reading's process; a new process has none."""
        return self._probe.proofs(reading.instance)

    async def keep_proofs(self, reading: Reading, proofs: Mapping[ResourceRef, Proof]) -> None:
        """Store the proofs of a reading's process, for the next agent too."""
        if proofs != self.proofs(reading):
            self._probe.set_proofs(reading.instance, proofs)
            await self._save_record()

    async def drop_proofs(self, refs: Collection[ResourceRef]) -> None:
        """Drop the proofs of resources of which the current process may have loaded other content."""
        if self._probe.drop_proofs(self.process.instance if self.process else None, refs):
            await self._save_record()

    async def adopt(self, config: Path | None, written: str, drift_ended: str) -> None:
        """Adopt the process of an earlier agent, or stop it if its launch settings differ from today's.

        ``written`` is when the files last changed, and ``drift_ended`` when they were last as delivered again after
        another program had changed them, in the form of a start time.
        """
        record = self._record.process if self._record else None
        found = record and detached.adopt(record.pid, record.start_time, self.log_file, record.log_begin)
        if record is None or not found or self._record is None:
            return
        if record.launch != self._launch_digest(config):
            _log.info("stopping a sidecar whose settings changed", app_id=self.app_id, pid=found.pid)
            await found.stop(STOP_GRACE_S)
            return
        self.process = Process(self.starts, found.pid, found.start_time)
        if started_after(found.start_time, written):
            self._last_stale = self.starts - 1
        if not drift_ended or started_after(found.start_time, drift_ended):
            self._last_drifted = self.starts - 1
        self._probe.restore(self.process, record.listener, dict(self._record.proofs))
        self._running, self._config = found, config
        self._stopped.clear()
        self._released.set()
        _log.info("sidecar adopted", app_id=self.app_id, pid=found.pid)

    async def run(self) -> None:
        """Supervise the process while released, until cancelled; then detach it, or stop it if so configured."""
        try:
            while True:
                await self._released.wait()
                await self._run_once()
        finally:
            if self._running is not None:
                await self._detach_or_stop(self._running)

    async def hold(self) -> None:
        """Stop the process gracefully and keep it stopped until ``release``."""
        self._released.clear()
        self._skip_backoff.set()
        if self._running is not None:
            await self._running.stop(STOP_GRACE_S)
        await self._stopped.wait()

    def release(self, config: Path | None) -> None:
        """Start the process without backoff, with this configuration; a running process keeps its own."""
        self._config = config
        self._retries.reset()
        self._released.set()
        self._skip_backoff.set()

    async def restart(self, config: Path | None) -> None:
        """Restart gracefully; only the new process counts as started after the write."""
        await self.hold()
        self.mark_written()
        self.release(config)

    async def restart_unchanged(self) -> None:
        """Restart with the current configuration."""
        await self.restart(self._config)

    def mark_written(self) -> None:
        """Record that what it loads was changed: of the processes until now, none counts as started after the write."""
        self._last_stale = self.starts
        if self._last_exit is not None:
            self._last_exit = msgspec.structs.replace(self._last_exit, started_after_write=False)

    def mark_drifted(self) -> None:
        """Record that the processes until now may have loaded what another program wrote, and exit for that."""
        self._last_drifted = self.starts
        if self._last_exit is not None:
            self._last_exit = msgspec.structs.replace(self._last_exit, external_cause=True)

    async def read(self) -> Reading:
        """Probe the sidecar."""
        process = self.process
        if process is None:
            return Reading(self._clock.now(), last_exit=self._last_exit)
        is_fresh = process.number > self._last_stale
        reading = await self._probe.read(process, started_after_write=is_fresh, last_exit=self._last_exit)
        if process != self.process:
            return Reading(self._clock.now(), last_exit=self._last_exit)
        return msgspec.structs.replace(reading, errors=await self._logged_errors(reading))

    async def _run_once(self) -> None:
        """Start a process, or use the adopted one, and wait for its exit; after an unexpected exit, back off."""
        self._stopped.clear()
        self._skip_backoff.clear()
        began = self._clock.monotonic()
        try:
            last_exit = await self._start_and_wait()
        finally:
            if self._running is None:
                self._stopped.set()
        if not self._released.is_set():
            return
        self._last_exit = last_exit
        self._on_change()
        if self._clock.monotonic() - began > _STABLE_S:
            self._retries.reset()
        delay_s = self._retries.next_delay_s()
        _log.warning("sidecar exited", app_id=self.app_id, restart_in_s=round(delay_s, 1), log=str(self.log_file))
        await self._back_off(delay_s)

    async def _start_and_wait(self) -> SidecarExit:
        with ExitStack() as reserved:
            if self._running is None:
                try:
                    await self._start(reserved)
                except GovernorError as error:
                    return self._exit(f"start {self.starts}", str(error))
            exited = await self._wait()
        instance_id = self.process.instance.id if self.process else ""
        self._running = self.process = None
        return self._exit(instance_id, daprd.describe_exit(exited), external_cause=daprd.has_external_cause(exited))

    def _exit(self, instance_id: str, text: str, *, external_cause: bool = False) -> SidecarExit:
        may_be_for_drift = self.starts <= self._last_drifted
        return SidecarExit(instance_id, text, self.starts > self._last_stale, external_cause or may_be_for_drift)

    async def _wait(self) -> ChildExit:
        running = self._running
        assert running is not None  # noqa: S101 - just started, or adopted
        if not self._released.is_set():
            await running.stop(STOP_GRACE_S)
        async with asyncio.TaskGroup() as group:
            awaiting_healthy = group.create_task(self._await_healthy(running.pid))
            exited = await running.wait()
            awaiting_healthy.cancel()
        return exited

    async def _start(self, reserved: ExitStack) -> None:
        is_retry = self._retries.failures > 0
        self.starts += 1
        await asyncio.to_thread(self._rotate_log)
        self.ports = reserved.enter_context(ReservedPorts(self._settings, self.ports)).ports
        self._probe = self._new_probe()
        argv = daprd.argv(self._launch, self._settings, self.ports, self._config)
        self._running = await detached.start(argv, env=daprd.environment(self._launch), log_file=self.log_file)
        self.process = Process(self.starts, self._running.pid, self._running.start_time)
        self._is_healthy = False
        _log.info("sidecar started", app_id=self.app_id, pid=self._running.pid, http_port=self.ports.http)
        await self._save_record()
        if is_retry:
            self._on_change()

    async def _await_healthy(self, pid: int) -> None:
        """Poll a new process until it is healthy, and record its first listening socket."""
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
        target = ProbeTarget(self.app_id, self.ports.public, self.ports.metrics, self._launch.resources)
        return Probe(target, self._session, self._clock)

    def _launch_digest(self, config: Path | None) -> str:
        """Return the digest of the launch settings: command line and namespace."""
        return digest([daprd.argv(self._launch, self._settings, self.ports, config), self._launch.namespace])

    def _rotate_log(self) -> None:
        """Rotate the log file if it is too large."""
        if self.log_file.exists() and self.log_file.stat().st_size > _MAX_LOG_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))

    async def _save_record(self) -> None:
        """Store a record for the next agent, which stops a process without one as an orphan."""
        process, running = self.process, self._running
        if process is None or running is None:
            return
        process_record = ProcessRecord(
            running.pid, running.start_time, self._launch_digest(self._config), running.log_begin, self._probe.listener
        )
        record = SidecarRecord(self.ports, process_record, tuple(self._probe.proofs(process.instance).items()))
        try:
            await asyncio.to_thread(self._storage.save_sidecar, self.app_id, record)
        except GovernorError as error:
            # A full disk must not stop the sidecar; without a record the next agent restarts it.
            _log.error("cannot store the sidecar record", app_id=self.app_id, error=str(error))

    async def _back_off(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._skip_backoff.wait()
        except TimeoutError:
            return

    async def _logged_errors(self, reading: Reading) -> tuple[str, ...]:
        """Return the logged errors of the current process if its counters show a failure."""
        status, running = reading.status, self._running
        if running is None or status is None or status.counters is None or not status.counters.failed:
            return ()
        return await asyncio.to_thread(daprd.errors, self.log_file, running.log_begin)
