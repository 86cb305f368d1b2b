"""Metrics of every program: build information, the process, and the lag of the event loop.

There is one registry per program and no global one. ``health`` serves it.
"""

import functools
import os
import platform
import resource
import time
from pathlib import Path
from typing import Final

from governor.process.clock import Clock
from governor.process.telemetry import logging
from governor.process.telemetry.instruments import Counter, Gauge, Histogram, Registry
from governor.process.telemetry.log_writer import Priority

_INTERVAL_S: Final = 1.0
_LAG_BUCKETS_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


def program_registry(program: str, version: str) -> Registry:
    """Return a registry with build information and metrics of this process and its logs."""
    registry = Registry()
    build = Gauge(
        "governor_build_info",
        "Version of the program; the value is always 1.",
        ["program", "version", "python"],
        registry=registry,
    )
    build.labels(program, version, platform.python_version()).set(1)
    _add_process_metrics(registry)
    _add_log_metrics(registry)
    return registry


def _add_log_metrics(registry: Registry) -> None:
    lines = Counter(
        "governor_log_lines_dropped_total",
        "Log lines dropped because stderr was not read in time, by priority.",
        ["priority"],
        registry=registry,
    )
    for priority in Priority:
        lines.labels(priority.name.lower()).set_function(functools.partial(logging.dropped, priority))


def _add_process_metrics(registry: Registry) -> None:
    """Add the process metrics that Prometheus client libraries have, under the same names."""
    cpu = Counter("process_cpu_seconds_total", "CPU time of the process in seconds.", registry=registry)
    cpu.set_function(time.process_time)
    for name, help_text, value in (
        ("process_resident_memory_bytes", "Resident memory in bytes.", lambda: _pages(1) * resource.getpagesize()),
        ("process_virtual_memory_bytes", "Virtual memory in bytes.", lambda: _pages(0) * resource.getpagesize()),
        ("process_open_fds", "Open file descriptors.", lambda: sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1),
        (
            "process_max_fds",
            "Maximum number of open file descriptors.",
            lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        ),
    ):
        Gauge(name, help_text, registry=registry).set_function(value)
    Gauge(
        "process_start_time_seconds", "Start time of the process, in seconds since the Unix epoch.", registry=registry
    ).set(_start_time_s())


def _pages(field: int) -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[field])


def _start_time_s() -> float:
    """Return the start time; the kernel reports it in ticks since boot."""
    ticks = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19]
    uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - uptime_s + int(ticks) / os.sysconf("SC_CLK_TCK")


class LoopLag:
    """A component that measures how late the event loop wakes sleeping tasks."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._clock = clock
        self._lag = Histogram(
            "governor_event_loop_lag_seconds",
            "Delay between the requested and the actual wake-up of a sleeping task, in seconds.",
            buckets=_LAG_BUCKETS_S,
            registry=registry,
        )

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            before = self._clock.monotonic()
            await self._clock.sleep(_INTERVAL_S)
            self._lag.observe(max(0.0, self._clock.monotonic() - before - _INTERVAL_S))
