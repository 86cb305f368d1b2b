"""A bound on how often something may happen, for what strangers can ask for."""

from governor.errors import GovernorError, Kind
from governor.process.clock import Clock


class Rate:
    """So many per second, and as many at once as have been saved up to ``burst``."""

    def __init__(self, clock: Clock, *, per_s: float, burst: int) -> None:
        self._clock = clock
        self._per_s = per_s
        self._burst = burst
        self._left = float(burst)
        self._at = clock.monotonic()

    def take(self) -> None:
        """Count one, or refuse it."""
        now = self._clock.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            raise GovernorError(Kind.UNAVAILABLE, "too-many", "too many such requests at once; try again in a moment")
        self._left -= 1
