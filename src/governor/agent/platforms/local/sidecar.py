"""One daprd that the agent runs: kept alive with backoff, held and released around a change, and looked at.

It decides nothing about deliveries. The process of an agent that was killed is ended before a new one starts.
"""

import asyncio
import os
import random
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import aiohttp

from governor.agent.platforms.local import daprd, procfs
from governor.agent.platforms.local.plan import Proof
from governor.agent.settings import SidecarSettings
from governor.agent.sidecars import Said, SidecarApi
from governor.agent.storage import Ports, ProcessRecord, SidecarRecord, Storage
from governor.agent.verification import Ending, Process, Reading
from governor.domain.documents import ResourceRef
from governor.errors import GovernorError
from governor.process import child, logging
from governor.process.backoff import Backoff, Retries
from governor.process.child import Child
from governor.process.clock import Clock

STOP_GRACE_S: Final = 10.0
_BACKOFF: Final = Backoff(first_s=0.5, most_s=30.0)
_STEADY_S: Final = 30.0
"""A process that lived this long was not part of a series of failures."""
_LOG_BYTES: Final = 16 * 1024 * 1024
_POLL_S: Final = 0.02
_PAUSE_GROWTH: Final = 1.3
_HOT_RELOAD: Final = "HotReload"

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
        self._clock = clock
        self._on_change = on_change
        record = storage.sidecar(settings.app_id)
        self._leftover = record.process if record else None
        self.ports: Ports = daprd.choose_ports(settings, record.ports if record else None)
        self._api = SidecarApi(
            session, f"http://127.0.0.1:{self.ports.public}", f"http://127.0.0.1:{self.ports.metrics}"
        )
        self._retries = Retries(_BACKOFF, random.Random())  # noqa: S311 - spreads restarts, guards nothing
        self._child: Child | None = None
        self._config: Path | None = None
        self._ending: Ending | None = None
        self._released = asyncio.Event()
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._hurry = asyncio.Event()
        self._first_listener = 0
        self._came_up = False
        self._log_begin = 0
        self._proofs: dict[ResourceRef, Proof] = {}
        self._proofs_of: Process | None = None

    @property
    def log_file(self) -> Path:
        """Where daprd's output goes."""
        return self._storage.log_directory / f"{self.app_id}.log"

    def proofs(self, reading: Reading) -> Mapping[ResourceRef, Proof]:
        """What the process of a reading was seen to use; a new process has shown nothing yet."""
        return self._proofs if reading.process is not None and reading.process == self._proofs_of else {}

    def keep_proofs(self, reading: Reading, proofs: Mapping[ResourceRef, Proof]) -> None:
        """Remember what the process of a reading was seen to use."""
        self._proofs, self._proofs_of = dict(proofs), reading.process

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
            return "" if self._came_up else "daprd is starting"
        # Its last words may hold secrets, and whoever asks for health may be anybody.
        return f"daprd ended, see {self.log_file}" if self._ending else "daprd is not started"

    async def run(self) -> None:
        """Keep a process alive while released, until cancelled; then end it gracefully."""
        await self._end_leftover()
        try:
            while True:
                await self._released.wait()
                await self._live_once()
        finally:
            if self._child is not None:
                await self._child.stop(STOP_GRACE_S)
                self._forget()

    async def hold(self) -> None:
        """End the process gracefully and keep it ended until released."""
        self._released.clear()
        self._hurry.set()
        if self._child is not None:
            await self._child.stop(STOP_GRACE_S)
        await self._at_rest.wait()

    def release(self, config: Path | None) -> None:
        """Let a process run, soon and with this configuration; one that runs already goes on with what it has."""
        self._config = config
        self._retries.reset()
        self._released.set()
        self._hurry.set()

    async def restart(self) -> int:
        """Replace the process gracefully by a new one; any process with a number beyond the one returned is new."""
        await self.hold()
        before = self.starts
        self.release(self._config)
        return before

    async def read(self) -> Reading:
        """What is seen of the sidecar now."""
        process = self.process
        said = await self._api.ask() if process else None
        if process is None or process != self.process:
            return Reading(self._clock.now(), ending=self._ending)
        listener, watches, given = await asyncio.to_thread(self._look_at, process.pid)
        self._first_listener = self._first_listener or listener
        return Reading(
            self._clock.now(),
            process,
            listener,
            reused=listener != self._first_listener,
            said=said if said and said.metadata.id == self.app_id else None,
            loads=self._loads(said, watches=watches, given=given),
            watches=watches,
            ending=self._ending,
            complaints=await self._complaints(said),
        )

    async def _live_once(self) -> None:
        """Start a process and wait for its end; after an end that nobody asked for, wait longer each time."""
        self._at_rest.clear()
        self._hurry.clear()
        began = self._clock.monotonic()
        try:
            ending = await self._start_and_wait()
        finally:
            if self._child is None:
                self._at_rest.set()
        if not self._released.is_set():
            return
        self._ending = ending
        self._on_change()
        if self._clock.monotonic() - began > _STEADY_S:
            self._retries.reset()
        delay_s = self._retries.next_s()
        _log.warning("sidecar ended", app_id=self.app_id, again_in_s=round(delay_s, 1), log=str(self.log_file))
        await self._pause(delay_s)

    async def _start_and_wait(self) -> Ending:
        unasked = self._retries.failures > 0
        self.starts += 1
        try:
            self._child = await self._spawn()
        except GovernorError as error:
            return Ending(self.starts, str(error))
        running = self._child
        if not self._released.is_set():
            await running.stop(STOP_GRACE_S)
        self._first_listener, self._came_up = 0, False
        self.process = Process(self.starts, running.pid, running.start_time)
        _log.info("sidecar started", app_id=self.app_id, pid=running.pid, http_port=self.ports.http)
        await self._remember(ProcessRecord(running.pid, running.start_time))
        if unasked:
            self._on_change()
        async with asyncio.TaskGroup() as group:
            coming_up = group.create_task(self._come_up(running.pid))
            ended = await running.wait()
            coming_up.cancel()
        self._forget()
        how = f"daprd was ended by {ended.signal}" if ended.signal else f"daprd exited with code {ended.code}"
        return Ending(self.starts, f"{how}: {daprd.last_words(ended.tail)}", killed=bool(ended.signal))

    async def _come_up(self, pid: int) -> None:
        """Note on which socket a new process answers first, before it can restart itself, and when it is healthy."""
        pause_s = _POLL_S
        while not self._came_up:
            await asyncio.sleep(pause_s)
            listener = await asyncio.to_thread(procfs.listener, pid, self.ports.public)
            self._first_listener = self._first_listener or listener
            said = await self._api.ask()
            self._came_up = said is not None and said.healthy
            pause_s = min(_PAUSE_GROWTH * pause_s, 1.0)

    def _forget(self) -> None:
        self._child = None
        self.process = None

    async def _spawn(self) -> Child:
        await asyncio.to_thread(self._turn_log_over)
        words = daprd.argv(self._launch, self._settings, self.ports, self._config)
        return await child.start(words, env=daprd.environment(self._launch.namespace), log_file=self.log_file)

    def _turn_log_over(self) -> None:
        """Begin a new log when the old one is large; where the new process's part begins is remembered."""
        size = self.log_file.stat().st_size if self.log_file.exists() else 0
        if size > _LOG_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        self._log_begin = 0 if size > _LOG_BYTES else size

    async def _remember(self, process: ProcessRecord | None) -> None:
        try:
            await asyncio.to_thread(self._storage.save_sidecar, self.app_id, SidecarRecord(self.ports, process))
        except GovernorError as error:
            # A full disk must not take the application's sidecar down; only a kill of the agent would leave it behind.
            _log.error("cannot remember the sidecar's process", app_id=self.app_id, error=str(error))

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            return

    async def _end_leftover(self) -> None:
        left = self._leftover
        if left is None or not child.same_process(left.pid, left.start_time):
            return await self._remember(None)
        _log.warning("ending the sidecar that an earlier agent left behind", app_id=self.app_id, pid=left.pid)
        for number, grace_s in ((signal.SIGTERM, STOP_GRACE_S), (signal.SIGKILL, STOP_GRACE_S)):
            if await _ended_by(left, number, grace_s):
                break
        return await self._remember(None)

    def _look_at(self, pid: int) -> tuple[int, bool, bool]:
        directory = self._launch.resources
        listener = procfs.listener(pid, self.ports.public)
        return listener, procfs.watches(pid, directory), procfs.was_given(pid, directory, daprd.RESOURCES_FLAG)

    def _loads(self, said: Said | None, *, watches: bool, given: bool) -> str:
        """How the process is known to load the directory; its own words count only where it cannot watch."""
        if watches:
            return "watches the resources directory"
        can_watch = said is not None and _HOT_RELOAD in said.metadata.enabled_features
        return "was started with the resources directory" if given and said and not can_watch else ""

    async def _complaints(self, said: Said | None) -> tuple[str, ...]:
        """The errors in the log of the present process, where there must be some."""
        if said is None or said.counters is None or not said.counters.failed:
            return ()
        return await asyncio.to_thread(daprd.errors, self.log_file, self._log_begin)


async def _ended_by(process: ProcessRecord, number: signal.Signals, grace_s: float) -> bool:
    """Signal the whole group of a process that is not our child, and wait for its end."""
    try:
        os.killpg(process.pid, number)
        async with asyncio.timeout(grace_s):
            while child.same_process(process.pid, process.start_time):  # noqa: ASYNC110 - nobody tells us its end
                await asyncio.sleep(_POLL_S)
    except ProcessLookupError:
        return True
    except TimeoutError:
        return False
    return True
