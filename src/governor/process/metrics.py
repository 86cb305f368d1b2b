"""The metrics that every program has: what was built, the process's own figures, how late its event loop is.

One registry per program, handed to whoever counts; there is no global one. Serving it is ``health``'s business.
"""

import platform
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector

from governor.process.clock import Clock

_EVERY_S: Final = 1.0
_LAG_BUCKETS_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


def program_registry(program: str, version: str) -> CollectorRegistry:
    """A registry with build information and the figures of this process."""
    registry = CollectorRegistry()
    build = Gauge("governor_build_info", "Always 1.", ["program", "version", "python"], registry=registry)
    build.labels(program, version, platform.python_version()).set(1)
    ProcessCollector(registry=registry)
    return registry


class LoopLag:
    """A component that measures how late the event loop wakes a sleeper."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
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
