"""Limits how often the agent repairs drift, so that two programs that write the same file do not make a busy loop."""

from typing import Final

from governor.process.flowcontrol.backoff import Backoff

_BACKOFF: Final = Backoff(initial_s=1.0, max_s=300.0)
_CALM_S: Final = 900.0
"""Reset the count after this time without a repair."""


class Repairs:
    """The repairs of one agent. The first is allowed at once, each further one only after a growing delay."""

    def __init__(self) -> None:
        self.count = 0
        self._last_s = 0.0

    @property
    def delay_s(self) -> float:
        """How long after the last repair the next one is allowed."""
        return _BACKOFF.ceiling_s(self.count) if self.count else 0.0

    @property
    def note(self) -> str:
        """What a report says while the next repair waits."""
        return (
            f"; repaired {self.count} times, next repair within {self.delay_s:.0f} s. "
            "Find the other program that writes this file, or set `apply.drift: warn`"
        )

    def wait_s(self, now_s: float) -> float:
        """Return how long the next repair must wait."""
        if now_s - self._last_s > _CALM_S:
            self.count = 0
        return max(0.0, self._last_s + self.delay_s - now_s) if self.count else 0.0

    def add(self, now_s: float) -> None:
        """Count a repair."""
        self.count += 1
        self._last_s = now_s
