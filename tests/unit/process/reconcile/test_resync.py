"""The resync: every key once per interval, evenly spread."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from governor.process.clock import VirtualClock
from governor.process.reconcile.fair_queue import Priority
from governor.process.reconcile.resync import JITTER, Resync

INTERVAL_S = 600.0


class Bench:
    """A resync on a virtual clock with a record of the added keys."""

    def __init__(self, keys: list[str]) -> None:
        self.clock = VirtualClock()
        self.keys = keys
        self.added: list[tuple[str, float]] = []
        self._began_s = self.clock.monotonic()
        self.resync = Resync(lambda: self.keys, self._add, INTERVAL_S, clock=self.clock, rng=random.Random(1))

    def _add(self, key: str, priority: Priority) -> None:
        assert priority is Priority.RESYNC
        self.added.append((key, self.clock.monotonic() - self._began_s))


@asynccontextmanager
async def running(keys: list[str]) -> AsyncIterator[Bench]:
    bench = Bench(keys)
    task = asyncio.create_task(bench.resync.run())
    yield bench
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})


async def test_every_key_is_added_once_per_interval_and_evenly_spread() -> None:
    keys = [f"key-{number}" for number in range(50)]
    async with running(keys) as bench:
        await bench.clock.advance((1 + JITTER) * INTERVAL_S)
    times = [when for _, when in bench.added[: len(keys)]]
    gaps = [later - earlier for earlier, later in itertools.pairwise([0.0, *times])]
    assert [key for key, _ in bench.added[: len(keys)]] == keys
    assert max(gaps) - min(gaps) < 0.001, "no burst"
    assert (1 - JITTER) * INTERVAL_S <= times[-1] <= (1 + JITTER) * INTERVAL_S


@pytest.mark.parametrize("count", [1, 7])
async def test_the_intervals_of_a_key_vary(count: int) -> None:
    async with running([f"key-{number}" for number in range(count)]) as bench:
        await bench.clock.advance(10 * INTERVAL_S)
    times = [when for key, when in bench.added if key == "key-0"]
    waits = [round(later - earlier) for earlier, later in itertools.pairwise(times)]
    assert 8 <= len(times) <= 12
    assert all((1 - JITTER) * INTERVAL_S <= wait <= (1 + JITTER) * INTERVAL_S for wait in waits)
    assert len(set(waits)) > 1


async def test_keys_that_appear_are_added_in_the_next_interval_and_deleted_ones_no_longer() -> None:
    async with running([]) as bench:
        await bench.clock.advance(INTERVAL_S / 2)
        bench.keys = ["a", "b"]
        await bench.clock.advance(3 * INTERVAL_S)
        assert {key for key, _ in bench.added} == {"a", "b"}
        bench.keys = ["b"]
        await bench.clock.advance(2 * INTERVAL_S)
        bench.added.clear()
        await bench.clock.advance(3 * INTERVAL_S)
    assert Counter(key for key, _ in bench.added).keys() == {"b"}
