"""Time as something that is handed in, so that tests move it instead of waiting for it.

``now`` is for people and records and may jump; ``monotonic`` is for durations and never does.
"""

import asyncio
import datetime
import heapq
import time
from typing import Final, Protocol

_SETTLE_TURNS: Final = 50
"""Turns of the event loop that a woken task gets to run its course before virtual time moves on."""


class Clock(Protocol):
    """What the rest of the code knows about time."""

    def now(self) -> datetime.datetime:
        """The wall clock, aware and in UTC."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Return once ``monotonic`` has moved on by ``seconds``."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime.datetime:
        """The wall clock, aware and in UTC."""
        return datetime.datetime.now(datetime.UTC)

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return once ``monotonic`` has moved on by ``seconds``."""
        await asyncio.sleep(max(0.0, seconds))


class VirtualClock:
    """A clock that stands still until a test moves it; sleepers wake in the order of their deadlines."""

    def __init__(self, now: datetime.datetime | None = None) -> None:
        self._now = now or datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        self._monotonic = 1000.0
        self._order = 0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime.datetime:
        """The wall clock, aware and in UTC."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""
        return self._monotonic

    @property
    def sleepers(self) -> int:
        """How many tasks sleep now."""
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
        """Move both clocks on, stopping at each sleeper's deadline until what it woke has come to rest."""
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
        """Set the wall clock forward or back, as an administrator or NTP does; nobody wakes."""
        self._now += datetime.timedelta(seconds=seconds)

    def _move_to(self, monotonic: float) -> None:
        self._now += datetime.timedelta(seconds=monotonic - self._monotonic)
        self._monotonic = monotonic


async def _settle() -> None:
    for _ in range(_SETTLE_TURNS):
        await asyncio.sleep(0)
