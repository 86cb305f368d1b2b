"""CPU time and memory of a program and of all processes below it, also of those that have exited."""

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from bench.proxy.processes import cpu_s
from bench.reconciler.background import in_background

SAMPLE_S: Final = 0.25
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_GONE: Final = (FileNotFoundError, ProcessLookupError)
"""Errors of reading a process that has exited meanwhile."""


class CpuTime(msgspec.Struct, frozen=True):
    """CPU seconds of programs, and of the processes that they started."""

    own_s: float
    children_s: float

    @property
    def total_s(self) -> float:
        """Return the sum of both."""
        return self.own_s + self.children_s

    def since(self, earlier: "CpuTime") -> "CpuTime":
        """Return the CPU time between two readings."""
        return CpuTime(self.own_s - earlier.own_s, self.children_s - earlier.children_s)


def cpu_time(roots: Sequence[int]) -> CpuTime:
    """Return the CPU time so far of these programs and of all processes that they started."""
    living = [each for each in descendants(roots) if each not in roots]
    children_s = sum(map(_living_s, living)) + sum(map(_exited_s, [*roots, *living]))
    return CpuTime(sum(map(cpu_s, roots)), children_s)


def resident_mib(roots: Sequence[int]) -> float:
    """Return the resident memory of these programs and of all processes below them; shared pages count in each."""
    return sum(map(_resident_bytes, descendants(roots))) / 2**20


def is_running(pid: int) -> bool:
    """Return whether a process exists."""
    return Path(f"/proc/{pid}").exists()


def descendants(roots: Sequence[int]) -> list[int]:
    """Return these processes and all below them."""
    below, found = _children(), list(roots)
    for each in found:  # grows meanwhile
        found += below.get(each, ())
    return found


@asynccontextmanager
async def peak_memory(roots: Sequence[int]) -> AsyncIterator[Callable[[], float]]:
    """Sample the memory of these programs and of all processes below them; provide a function for the peak in MiB."""
    peak_mib = resident_mib(roots)

    async def sample() -> None:
        nonlocal peak_mib
        while True:
            await asyncio.sleep(SAMPLE_S)
            peak_mib = max(peak_mib, resident_mib(roots))

    async with in_background(sample()):
        yield lambda: peak_mib


def _children() -> Mapping[int, Sequence[int]]:
    """Return the child processes of every process."""
    found = defaultdict(list)
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with suppress(*_GONE):
                found[int(_stat(int(entry.name))[1])].append(int(entry.name))
    return found


def _stat(pid: int) -> Sequence[str]:
    """Return the fields of ``/proc/PID/stat`` after the name, which may contain spaces."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _living_s(pid: int) -> float:
    with suppress(*_GONE):
        return cpu_s(pid)
    return 0.0  # its parent counts it as exited


def _exited_s(pid: int) -> float:
    """Return the CPU time of the exited processes below a process."""
    with suppress(*_GONE):
        user, system = _stat(pid)[13:15]
        return (int(user) + int(system)) / _TICKS
    return 0.0


def _resident_bytes(pid: int) -> int:
    with suppress(*_GONE):
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE
    return 0
