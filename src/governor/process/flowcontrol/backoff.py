"""How long to wait after the n-th failure in a row: exponential, bounded, with jitter. Nothing here waits.

The wait is drawn evenly between the shortest wait and a ceiling that doubles with each failure, so that many clients
of one broken server come back spread out, and none comes back at once.
"""

import random
from typing import Final

import msgspec

_MOST_DOUBLINGS: Final = 64


class Backoff(msgspec.Struct, frozen=True):
    """The limits of the waits; the count of failures is kept by whoever fails."""

    initial_s: float
    max_s: float

    def __post_init__(self) -> None:
        if not 0 < self.initial_s <= self.max_s:
            raise ValueError(f"a backoff needs 0 < initial_s <= max_s, not {self.initial_s} and {self.max_s}")

    def ceiling_s(self, failures: int) -> float:
        """The longest wait after ``failures`` failures in a row (1 is the first)."""
        return min(self.max_s, self.initial_s * 2.0 ** min(failures, _MOST_DOUBLINGS))

    def delay_s(self, failures: int, rng: random.Random) -> float:
        """One wait, drawn between ``initial_s`` and the ceiling."""
        return min(self.max_s, rng.uniform(self.initial_s, self.ceiling_s(failures)))


class Retries:
    """The failures in a row of one thing that is tried again and again."""

    def __init__(self, backoff: Backoff, rng: random.Random) -> None:
        self._backoff = backoff
        self._rng = rng
        self.failures = 0

    def next_delay_s(self) -> float:
        """Count a failure and say how long to wait before the next attempt."""
        self.failures += 1
        return self._backoff.delay_s(self.failures, self._rng)

    def reset(self) -> None:
        """Forget the failures after a success."""
        self.failures = 0
