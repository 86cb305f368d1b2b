"""Exponential backoff with jitter. Only computes delays; the caller sleeps.

A delay is uniformly distributed between the initial delay and a ceiling that doubles with each failure, so that the
clients of a failed server do not reconnect all at once.
"""

import random
from typing import Final

import msgspec

_MAX_DOUBLINGS: Final = 64


class Backoff(msgspec.Struct, frozen=True):
    """Limits of the delays; the caller counts the failures."""

    initial_s: float
    max_s: float

    def __post_init__(self) -> None:
        if not 0 < self.initial_s <= self.max_s:
            raise ValueError(f"a backoff needs 0 < initial_s <= max_s, not {self.initial_s} and {self.max_s}")

    def ceiling_s(self, failures: int) -> float:
        """Return the longest delay after ``failures`` failures in a row (1 is the first)."""
        return min(self.max_s, self.initial_s * 2.0 ** min(failures, _MAX_DOUBLINGS))

    def delay_s(self, failures: int, rng: random.Random) -> float:
        """Return a random delay between ``initial_s`` and the ceiling."""
        return min(self.max_s, rng.uniform(self.initial_s, self.ceiling_s(failures)))


class Retries:
    """Counts the failures in a row of one operation and returns the delays between attempts."""

    def __init__(self, backoff: Backoff, rng: random.Random) -> None:
        self._backoff = backoff
        self._rng = rng
        self.failures = 0

    def next_delay_s(self) -> float:
        """Count a failure and return the delay before the next attempt."""
        self.failures += 1
        return self._backoff.delay_s(self.failures, self._rng)

    def reset(self) -> None:
        """Reset the count after a success."""
        self.failures = 0
