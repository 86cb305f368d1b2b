"""One value for all releases, and the rest after it: how long it takes, what it costs, and what is still written."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec

from bench.concurrency import run_bounded
from bench.machine import cpu_seconds
from bench.reconciler import requests
from bench.reconciler.processes import CpuTime, cpu_time, descendants, is_running, peak_memory, resident_mib
from governor.kube.client import Client
from toolchain.errors import TestbedError

WRITERS: Final = 16
"""Number of releases that are written at once."""
ROLLOUT_WITHIN_S: Final = 1200.0
STALLED_S: Final = 120.0
"""A rollout without progress for this long is given up."""
QUIET_WITHIN_S: Final = 180.0
QUIET_S: Final = 3.0
"""A time without any write counts as quiet."""
CHILDREN_WITHIN_S: Final = 90.0
_POLL_S: Final = 0.1
_PROGRESS_S: Final = 5.0

Log = Callable[[str], None]


class Subject(Protocol):
    """A controller under test, and the releases that it is given."""

    @property
    def client(self) -> Client:
        """Client of its API server; the benchmark's own."""

    @property
    def pids(self) -> Sequence[int]:
        """Its processes without their children; empty if they are not known."""

    @property
    def server_pids(self) -> Sequence[int]:
        """Processes of its API server and etcd; empty if they are not known."""

    @property
    def writes_per_release(self) -> int:
        """Number of requests that the benchmark sends for one release."""

    async def write(self, number: int, revision: str) -> None:
        """Request one release with a revision."""

    def progress(self, revision: str) -> tuple[int, str]:
        """Return the number of releases that have a revision, and a text about the others."""


class Rollout(msgspec.Struct, frozen=True):
    """What it took until all releases had a revision, from the first write on."""

    seconds: float
    cpu: CpuTime | None
    """Of the controller and of the processes that it started."""
    peak_mib: float | None
    """Most memory of the controller and of the processes that it started, all at the same time."""
    server_cpu_s: float | None
    requests: int
    """Requests that the API server received, without those of the benchmark."""


class Idle(msgspec.Struct, frozen=True):
    """A time in which nothing was requested."""

    seconds: float
    cpu: CpuTime | None
    resident_mib: float | None
    writes: dict[str, int]
    """Write requests by verb, resource and error, without those of Leases."""

    @property
    def cpu_percent(self) -> float | None:
        """CPU time relative to that of one core."""
        return None if self.cpu is None else self.cpu.total_s / self.seconds * 100


async def roll_out(subject: Subject, modules: int, revision: str, log: Log) -> Rollout:
    """Request a revision of all releases, wait until all have it, and measure."""
    before, cpu = await requests.read(subject.client), cpu_time(subject.pids)
    servers_s = sum(map(cpu_seconds, subject.server_pids))
    async with peak_memory(subject.pids) as peak_mib:
        began_s = time.monotonic()
        await run_bounded(lambda number: subject.write(number, revision), range(modules), WRITERS)
        await _until_complete(subject, modules, revision, began_s, log)
        seconds = time.monotonic() - began_s
    received = (await requests.read(subject.client)).since(before)
    return Rollout(
        seconds,
        cpu_time(subject.pids).since(cpu) if subject.pids else None,
        peak_mib() if subject.pids else None,
        sum(map(cpu_seconds, subject.server_pids)) - servers_s if subject.server_pids else None,
        received.total - modules * subject.writes_per_release,
    )


async def _until_complete(subject: Subject, modules: int, revision: str, began_s: float, log: Log) -> None:
    last, changed_s, reported_s = "", began_s, began_s
    while True:
        done, others = subject.progress(revision)
        now_s = time.monotonic()
        if done >= modules:
            return
        seen = f"{done:,} of {modules:,} releases have revision {revision}; {others}"
        if seen != last:
            last, changed_s = seen, now_s
        require_running(subject.pids)
        if now_s - changed_s > STALLED_S or now_s - began_s > ROLLOUT_WITHIN_S:
            since = f"without progress for {now_s - changed_s:.0f} s"
            raise TestbedError(f"not complete after {now_s - began_s:.0f} s, {since}: {seen}")
        if now_s - reported_s > _PROGRESS_S:
            reported_s = now_s
            log(f"{now_s - began_s:.0f} s: {seen}")
        await asyncio.sleep(_POLL_S)


async def rest(subject: Subject, seconds: float, log: Log) -> Idle:
    """Wait until nothing is written, and children of the controller that have nothing to do have ended; then measure.

    A controller that never becomes quiet is measured too: the figures show it.
    """
    await _until(lambda: _is_quiet(subject), QUIET_WITHIN_S, "it still writes", log)
    await _until(lambda: _has_no_children(subject.pids), CHILDREN_WITHIN_S, "its children still run", log)
    log(f"idle for {seconds:g} s")
    before, cpu, began_s = await requests.read(subject.client), cpu_time(subject.pids), time.monotonic()
    await asyncio.sleep(seconds)
    used, elapsed_s = cpu_time(subject.pids).since(cpu), time.monotonic() - began_s
    require_running(subject.pids)
    return Idle(
        elapsed_s,
        used if subject.pids else None,
        resident_mib(subject.pids) if subject.pids else None,
        (await requests.read(subject.client)).since(before).writes,
    )


async def _until(condition: Callable[[], Awaitable[bool]], within_s: float, problem: str, log: Log) -> None:
    deadline_s = time.monotonic() + within_s
    while not await condition():
        if time.monotonic() > deadline_s:
            log(f"{problem} after {within_s:g} s; measured nevertheless")
            return


async def _is_quiet(subject: Subject) -> bool:
    before = await requests.read(subject.client)
    await asyncio.sleep(QUIET_S)
    return not (await requests.read(subject.client)).since(before).writes


async def _has_no_children(pids: Sequence[int]) -> bool:
    await asyncio.sleep(_POLL_S)
    return len(descendants(pids)) == len(pids)


def require_running(pids: Sequence[int]) -> None:
    """Raise if a process of the controller has exited."""
    if gone := [each for each in pids if not is_running(each)]:
        raise TestbedError(f"the controller has exited: process {gone[0]}; see its log")
