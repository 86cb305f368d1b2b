"""Adds all keys again, spread evenly over each interval, to find changes that cause no event."""

import random
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

from governor.process.clock import Clock
from governor.process.reconcile.fair_queue import Priority

K = TypeVar("K", bound=Hashable)

JITTER: Final = 0.2
"""The share by which an interval varies, so that the programs of a fleet do not resync together."""


class Resync(Generic[K]):
    """Adds each of ``keys`` once per interval: of n keys, one after each n-th part of it.

    A key that is no longer in ``keys`` when its turn comes is still added; a new key waits for the next interval.
    """

    def __init__(
        self,
        keys: Callable[[], Iterable[K]],
        add: Callable[[K, Priority], None],
        interval_s: float,
        *,
        clock: Clock,
        rng: random.Random | None = None,
    ) -> None:
        self._keys = keys
        self._add = add
        self._interval_s = interval_s
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not security

    async def run(self) -> None:
        """Add keys until cancelled."""
        while True:
            await self._run_interval()

    async def _run_interval(self) -> None:
        keys = list(self._keys())
        began_s = self._clock.monotonic()
        length_s = self._interval_s * self._rng.uniform(1 - JITTER, 1 + JITTER)
        for number, key in enumerate(keys, start=1):
            await self._sleep_until(began_s + length_s * number / len(keys))
            self._add(key, Priority.RESYNC)
        await self._sleep_until(began_s + length_s)

    async def _sleep_until(self, when_s: float) -> None:
        left_s = when_s - self._clock.monotonic()
        if left_s > 0:
            await self._clock.sleep(left_s)
