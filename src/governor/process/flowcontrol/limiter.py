"""A token bucket rate limiter with a burst; callers wait for tokens first in, first out.

Made for thousands of idle instances: while no caller waits, its state is one number, without task, lock or timer.
Timeouts are up to the caller.
"""

import asyncio
from typing import Final

import msgspec

from governor.process.clock import Clock

_ROUNDING_S: Final = 1e-6
"""Tolerance for the rounding of times: a sleeper may wake this much early."""

_NEVER: Final = float("-inf")


class Rate(msgspec.Struct, frozen=True):
    """Tokens added per second, and the capacity of the bucket."""

    per_s: float
    burst: int

    def __post_init__(self) -> None:
        if self.per_s <= 0 or self.burst < 1:
            raise ValueError(f"a rate needs per_s > 0 and burst >= 1, not {self.per_s} and {self.burst}")


class Limiter:
    """A token bucket, initially full; used from one event loop."""

    __slots__ = ("_clock", "_full_s", "_lock", "_rate", "_waiting")

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        # The time at which the bucket will be full determines its level at any time, without updates.
        self._full_s = _NEVER
        self._lock: asyncio.Lock | None = None
        self._waiting = 0

    async def acquire(self) -> None:
        """Wait for and take one token, in the order of the calls. A cancelled call takes none."""
        if self.try_acquire():
            return
        lock = self._lock = self._lock or asyncio.Lock()
        self._waiting += 1
        try:
            async with lock:
                await self._take_when_available()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._lock = None

    def try_acquire(self) -> bool:
        """Take a token if one is available and no caller waits for it. Return True if it was taken."""
        if self._lock is not None or self._wait_s() > _ROUNDING_S:
            return False
        self._take()
        return True

    async def _take_when_available(self) -> None:
        while (wait_s := self._wait_s()) > _ROUNDING_S:
            await self._clock.sleep(wait_s)
        self._take()

    def _wait_s(self) -> float:
        """Return the time until a token is available; zero or negative if one is."""
        return self._full_s - self._clock.monotonic() - (self._rate.burst - 1) / self._rate.per_s

    def _take(self) -> None:
        self._full_s = max(self._full_s, self._clock.monotonic()) + 1 / self._rate.per_s
