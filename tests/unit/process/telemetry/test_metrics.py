"""The metrics of every program."""

import asyncio
import platform
import time

from governor.process.clock import VirtualClock
from governor.process.telemetry.metrics import LoopLag, program_registry


class LateClock(VirtualClock):
    """A clock whose sleepers wake a quarter of a second late."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds + 0.25)


def test_a_registry_has_build_information_and_process_metrics() -> None:
    registry = program_registry("server", "1.2.3")
    labels = {"program": "server", "version": "1.2.3", "python": platform.python_version()}
    assert registry.value("governor_build_info", labels) == 1
    assert (
        0
        < (registry.value("process_resident_memory_bytes") or 0)
        < (registry.value("process_virtual_memory_bytes") or 0)
    )
    assert 0 < (registry.value("process_open_fds") or 0) <= (registry.value("process_max_fds") or 0)
    assert (registry.value("process_cpu_seconds_total") or 0) > 0
    assert 0 < (registry.value("process_start_time_seconds") or 0) <= time.time()


def test_two_programs_in_one_process_share_no_registry() -> None:
    assert program_registry("a", "1") is not program_registry("b", "1")


async def test_a_late_loop_is_measured() -> None:
    clock, registry = LateClock(), program_registry("server", "1")
    measuring = asyncio.create_task(LoopLag(registry, clock).run())
    await clock.advance(1.25 * 4)
    measuring.cancel()
    assert registry.value("governor_event_loop_lag_seconds_count") == 4
    assert registry.value("governor_event_loop_lag_seconds_sum") == 1.0
