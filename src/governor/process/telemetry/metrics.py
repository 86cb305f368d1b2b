"""The metrics that every program has: what was built, the process's own figures, how late its event loop is.

One registry per program, handed to whoever counts; there is no global one. Serving it is ``health``'s business.
"""

import os
import platform
import resource
import time
from pathlib import Path
from typing import Final

from governor.process.clock import Clock
from governor.process.telemetry.instruments import Counter, Gauge, Histogram, Registry

_EVERY_S: Final = 1.0
_LAG_BUCKETS_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


def program_registry(program: str, version: str) -> Registry:
    """A registry with build information and the figures of this process."""
    registry = Registry()
    build = Gauge("governor_build_info", "Always 1.", ["program", "version", "python"], registry=registry)
    build.labels(program, version, platform.python_version()).set(1)
    _show_process(registry)
    return registry


def _show_process(registry: Registry) -> None:
    """The figures that every Prometheus client shows of its process, under their usual names."""
    cpu = Counter("process_cpu_seconds_total", "CPU time of this process, in seconds.", registry=registry)
    cpu.set_function(time.process_time)
    for name, meaning, value in (
        ("process_resident_memory_bytes", "Memory that is resident.", lambda: _pages(1) * resource.getpagesize()),
        ("process_virtual_memory_bytes", "Memory that is mapped.", lambda: _pages(0) * resource.getpagesize()),
        ("process_open_fds", "Open file descriptors.", lambda: sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1),
        ("process_max_fds", "How many there may be.", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    ):
        Gauge(name, meaning, registry=registry).set_function(value)
    Gauge("process_start_time_seconds", "Unix time of the start.", registry=registry).set(_started_s())


def _pages(place: int) -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[place])


def _started_s() -> float:
    """The kernel tells the start in ticks since it booted."""
    ticks = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19]
    uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - uptime_s + int(ticks) / os.sysconf("SC_CLK_TCK")


class LoopLag:
    """A component that measures how late the event loop wakes a sleeper."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._clock = clock
        self._lag = Histogram(
            "governor_event_loop_lag_seconds",
            "How much later than asked a sleeping task woke.",
            buckets=_LAG_BUCKETS_S,
            registry=registry,
        )

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            before = self._clock.monotonic()
            await self._clock.sleep(_EVERY_S)
            self._lag.observe(max(0.0, self._clock.monotonic() - before - _EVERY_S))
