"""Injected clocks, so that tests advance the time instead of waiting.

``now`` is for timestamps and may jump; ``monotonic`` is for durations and never does.
"""

import asyncio
import datetime
import heapq
import time
from collections.abc import Awaitable
from typing import Final, Protocol

_SETTLE_ITERATIONS: Final = 50
"""Iterations of the event loop that woken tasks get before virtual time moves on."""


class Clock(Protocol):
    """Wall clock, monotonic clock and sleep."""

    def now(self) -> datetime.datetime:
        """Return the wall clock time in UTC, timezone-aware."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary point; never decreases."""

    async def sleep(self, seconds: float) -> None:
        """Return once ``monotonic`` has advanced by ``seconds``."""


async def wait_at_most(waited: Awaitable[object], seconds: float | None, clock: Clock) -> None:
    """Wait for something, at most for this time if one is given; cancel what was not waited for to the end."""
    waits: set[asyncio.Future[object]] = {asyncio.ensure_future(waited)}
    if seconds is not None:
        waits.add(asyncio.ensure_future(clock.sleep(seconds)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()


class SystemClock:
    """The operating system's clock."""

    def now(self) -> datetime.datetime:
        """Return the wall clock time in UTC, timezone-aware."""
        return datetime.datetime.now(datetime.UTC)

    def monotonic(self) -> float:
        """Return seconds since an arbitrary point; never decreases."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return once ``monotonic`` has advanced by ``seconds``."""
        await asyncio.sleep(max(0.0, seconds))


class VirtualClock:
    """A clock that moves only by ``advance``; sleepers wake in the order of their deadlines."""

    def __init__(self, now: datetime.datetime | None = None) -> None:
        self._now = now or datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        self._monotonic = 1000.0
        self._order = 0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime.datetime:
        """Return the wall clock time in UTC, timezone-aware."""
        return self._now

    def monotonic(self) -> float:
        """Return seconds since an arbitrary point; never decreases."""
        return self._monotonic

    @property
    def sleepers(self) -> int:
        """Number of sleeping tasks."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Return once a test has advanced the clock by ``seconds``."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._order += 1
        heapq.heappush(self._sleepers, (self._monotonic + seconds, self._order, woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Advance both clocks, stopping at each deadline until the woken tasks are idle."""
        until = self._monotonic + seconds
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= until:
            deadline, _, woken = heapq.heappop(self._sleepers)
            if woken.done():
                continue
            self._move_to(deadline)
            woken.set_result(None)
            await _settle()
        self._move_to(until)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as NTP does; no sleeper wakes."""
        self._now += datetime.timedelta(seconds=seconds)

    def _move_to(self, monotonic: float) -> None:
        self._now += datetime.timedelta(seconds=monotonic - self._monotonic)
        self._monotonic = monotonic


async def _settle() -> None:
    for _ in range(_SETTLE_ITERATIONS):
        await asyncio.sleep(0)
