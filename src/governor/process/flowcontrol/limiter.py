"""A token bucket: how often something may be done, with a burst. Whoever finds it empty waits, first come first served.

Made for thousands of idle instances: until somebody waits there is one number and no task, lock or timer. What is
limited, and what to do about a wait that is too long, is the caller's.
"""

import asyncio
from typing import Final

import msgspec

from governor.process.clock import Clock

_ROUNDING_S: Final = 1e-6
"""A sleeper may wake this much early, because adding and subtracting moments rounds."""

_LONG_AGO: Final = float("-inf")


class Rate(msgspec.Struct, frozen=True):
    """How many tokens come in each second, and how many are kept for a burst."""

    per_s: float
    burst: int

    def __post_init__(self) -> None:
        if self.per_s <= 0 or self.burst < 1:
            raise ValueError(f"a rate needs per_s > 0 and burst >= 1, not {self.per_s} and {self.burst}")


class Limiter:
    """The tokens of one thing that is limited; full at first, used from one event loop only."""

    __slots__ = ("_clock", "_full_s", "_rate", "_turn", "_waiting")

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        # The moment at which the bucket is full again says how full it is now, and needs no upkeep.
        self._full_s = _LONG_AGO
        self._turn: asyncio.Lock | None = None
        self._waiting = 0

    async def acquire(self) -> None:
        """Take one token, once those who came before have theirs; a cancelled caller has taken none."""
        if self.try_acquire():
            return
        turn = self._turn = self._turn or asyncio.Lock()
        self._waiting += 1
        try:
            async with turn:
                await self._take_when_there()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._turn = None

    def try_acquire(self) -> bool:
        """Take one token if there is one and no caller waits for it; return whether it was taken."""
        if self._turn is not None or self._missing_s() > _ROUNDING_S:
            return False
        self._take()
        return True

    async def _take_when_there(self) -> None:
        while (missing_s := self._missing_s()) > _ROUNDING_S:
            await self._clock.sleep(missing_s)
        self._take()

    def _missing_s(self) -> float:
        """How long until there is a token; not positive if there is one."""
        return self._full_s - self._clock.monotonic() - (self._rate.burst - 1) / self._rate.per_s

    def _take(self) -> None:
        self._full_s = max(self._full_s, self._clock.monotonic()) + 1 / self._rate.per_s
