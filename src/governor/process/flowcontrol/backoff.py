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

    first_s: float
    most_s: float

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.most_s:
            raise ValueError(f"a backoff needs 0 < first_s <= most_s, not {self.first_s} and {self.most_s}")

    def ceiling_s(self, failures: int) -> float:
        """The longest wait after ``failures`` failures in a row (1 is the first)."""
        return min(self.most_s, self.first_s * 2.0 ** min(failures, _MOST_DOUBLINGS))

    def delay_s(self, failures: int, chance: random.Random) -> float:
        """One wait, drawn between ``first_s`` and the ceiling."""
        return min(self.most_s, chance.uniform(self.first_s, self.ceiling_s(failures)))


class Retries:
    """The failures in a row of one thing that is tried again and again."""

    def __init__(self, backoff: Backoff, chance: random.Random) -> None:
        self._backoff = backoff
        self._chance = chance
        self.failures = 0

    def next_s(self) -> float:
        """Count a failure and say how long to wait before the next attempt."""
        self.failures += 1
        return self._backoff.delay_s(self.failures, self._chance)

    def reset(self) -> None:
        """Forget the failures after a success."""
        self.failures = 0
