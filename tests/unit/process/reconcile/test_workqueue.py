"""The work queue: order, delays, retries, shutdown and metrics."""

import asyncio
import gc
import random
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from governor.process.clock import VirtualClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.fair_queue import Priority
from governor.process.reconcile.workqueue import QueueMetrics, QueueShutDownError, Workqueue
from governor.process.telemetry.instruments import Registry

BACKOFF = Backoff(initial_s=1, max_s=60)
CHANGE, RETRY, RESYNC = Priority.CHANGE, Priority.RETRY, Priority.RESYNC


class Bench:
    """A queue of strings on a virtual clock; the part before a slash is a key's group."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.registry = Registry()
        self.queue = Workqueue[str](
            "q",
            metrics=QueueMetrics(self.registry),
            clock=self.clock,
            backoff=BACKOFF,
            rng=random.Random(1),
            group_of=lambda key: key.partition("/")[0],
        )

    def metric(self, name: str) -> float | None:
        return self.registry.value(f"workqueue_{name}", {"name": "q"})

    async def ready(self) -> list[str]:
        """Return the keys that workers get now without waiting, in order."""
        keys = []
        while self.metric("depth"):
            keys.append(await self.queue.get())
        for key in keys:
            self.queue.done(key)
        return keys


@asynccontextmanager
async def running() -> AsyncIterator[Bench]:
    bench = Bench()
    task = asyncio.create_task(bench.queue.run())
    yield bench
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_a_key_added_several_times_is_returned_once() -> None:
    bench = Bench()
    for key in "abab":
        bench.queue.add(key)
    assert await bench.ready() == ["a", "b"]


async def test_a_key_being_processed_is_returned_again_only_after_done() -> None:
    bench = Bench()
    bench.queue.add("a")
    assert await bench.queue.get() == "a"
    bench.queue.add("a", RESYNC)
    bench.queue.add("a", CHANGE)
    bench.queue.add("b", RETRY)
    assert await bench.queue.get() == "b"
    bench.queue.add("c", RETRY)
    bench.queue.done("a")
    assert await bench.ready() == ["a", "c"]


async def test_groups_and_priorities_decide_the_order() -> None:
    bench = Bench()
    for n in range(3):
        bench.queue.add(f"big/{n}", RETRY)
    bench.queue.add("small/0", RETRY)
    bench.queue.add("big/9")
    assert await bench.ready() == ["big/9", "big/0", "small/0", "big/1", "big/2"]


async def test_waiting_workers_get_one_key_each() -> None:
    bench = Bench()
    workers = [asyncio.create_task(bench.queue.get()) for _ in range(3)]
    await bench.clock.advance(0)
    bench.queue.add("a")
    bench.queue.add("b")
    await bench.clock.advance(0)
    assert sorted(worker.result() for worker in workers if worker.done()) == ["a", "b"]
    bench.queue.shut_down()
    ended = [each for each in await asyncio.gather(*workers, return_exceptions=True) if not isinstance(each, str)]
    assert [type(each) for each in ended] == [QueueShutDownError]


@pytest.mark.parametrize("cancelled", [0, 1])
@pytest.mark.parametrize("added_first", [True, False])
async def test_a_key_for_a_cancelled_worker_goes_to_another(cancelled: int, added_first: bool) -> None:
    bench = Bench()
    workers = [asyncio.create_task(bench.queue.get()) for _ in range(2)]
    await bench.clock.advance(0)
    if added_first:
        bench.queue.add("a")
    workers[cancelled].cancel()
    if not added_first:
        bench.queue.add("a")
    await bench.clock.advance(0)
    assert workers[cancelled].cancelled()
    assert workers[1 - cancelled].result() == "a"


async def test_the_earliest_of_several_delays_counts() -> None:
    async with running() as bench:
        for seconds in (30, 10, 20):
            bench.queue.add_after("a", seconds)
        bench.queue.add_after("b", 5)
        await bench.clock.advance(9)
        assert await bench.ready() == ["b"]
        await bench.clock.advance(1)
        assert await bench.ready() == ["a"]
        await bench.clock.advance(100)
        assert await bench.ready() == []


@pytest.mark.parametrize("delays", [((10, RESYNC), (20, CHANGE)), ((20, CHANGE), (10, RESYNC))])
async def test_the_highest_priority_of_several_delays_counts(delays: list[tuple[int, Priority]]) -> None:
    async with running() as bench:
        bench.queue.add("b", RETRY)
        for seconds, priority in delays:
            bench.queue.add_after("a", seconds, priority)
        await bench.clock.advance(10)
        assert await bench.ready() == ["a", "b"]


async def test_an_add_does_not_cancel_a_delay() -> None:
    async with running() as bench:
        bench.queue.add_after("a", 10)
        bench.queue.add("a")
        assert await bench.ready() == ["a"]
        await bench.clock.advance(10)
        assert await bench.ready() == ["a"]


async def test_an_earlier_delay_interrupts_the_sleep_for_a_later_one() -> None:
    async with running() as bench:
        bench.queue.add_after("late", 50)
        await bench.clock.advance(1)
        bench.queue.add_after("soon", 1)
        await bench.clock.advance(1)
        assert await bench.ready() == ["soon"]
        await bench.clock.advance(48)
        assert await bench.ready() == ["late"]


async def test_the_backoff_of_retries_grows_until_forget() -> None:
    async with running() as bench:
        waits = [await _retry(bench) for _ in range(7)]
        bench.queue.forget("a")
        afterwards = await _retry(bench)
    assert all(1 <= wait <= BACKOFF.ceiling_s(n) + 1 for n, wait in enumerate(waits, start=1))
    assert max(waits) > 8
    assert afterwards <= 2
    assert bench.metric("retries_total") == 8


async def _retry(bench: Bench) -> int:
    waited_s = 0
    bench.queue.retry("a")
    while not await bench.ready():
        await bench.clock.advance(1)
        waited_s += 1
    return waited_s


async def test_a_queue_that_is_shut_down_drops_its_keys_and_rejects_new_ones() -> None:
    bench = Bench()
    delays = asyncio.create_task(bench.queue.run())
    bench.queue.add("a")
    bench.queue.add("b")
    assert await bench.queue.get() == "a"
    bench.queue.add("a")
    bench.queue.add_after("c", 1)
    await bench.clock.advance(0)
    bench.queue.shut_down()
    bench.queue.add("d")
    bench.queue.add_after("e", 1)
    await bench.clock.advance(10)
    assert delays.done()
    bench.queue.done("a")
    assert bench.metric("depth") == 0
    with pytest.raises(QueueShutDownError):
        await bench.queue.get()


class Key:
    """A key that supports weak references."""


async def test_no_reference_to_a_finished_key_is_kept() -> None:
    queue = Workqueue[Key]("q", metrics=QueueMetrics(Registry()), clock=VirtualClock(), backoff=BACKOFF)
    keys = [Key() for _ in range(100)]
    kept = [weakref.ref(key) for key in keys]
    for key in keys:
        queue.add(key, RESYNC)
        queue.add(key)
    while keys:
        key = await queue.get()
        queue.add(key)
        queue.done(key)
        key = await queue.get()
        queue.retry(key)
        queue.forget(key)
        queue.done(key)
        keys.remove(key)
    queue.shut_down()
    del key
    gc.collect()
    assert [each() for each in kept if each() is not None] == []


async def test_stale_delays_do_not_pile_up() -> None:
    async with running() as bench:
        for _ in range(1000):
            bench.queue.add_after("a", 100_000)
            bench.queue.add_after("a", 1)
            await bench.clock.advance(1)
            assert await bench.ready() == ["a"]
        assert len(bench.queue._delays._heap) < 100


async def test_the_metrics_have_the_names_and_values_of_client_go() -> None:
    async with running() as bench:
        for key in ("a", "a", "b"):
            bench.queue.add(key)
        await bench.clock.advance(3)
        assert bench.metric("depth") == 2
        assert await bench.queue.get() == "a"
        assert bench.queue.processing == 1
        bench.queue.add("a")
        bench.queue.add("a")
        assert bench.metric("depth") == 2
        await bench.clock.advance(7)
        bench.queue.retry("a")
        bench.queue.done("a")
        assert await bench.ready() == ["b", "a"]
    assert bench.metric("adds_total") == 3
    assert bench.metric("retries_total") == 1
    assert bench.metric("queue_duration_seconds_count") == 3
    assert bench.metric("queue_duration_seconds_sum") == 3 + 10 + 7
    assert bench.metric("work_duration_seconds_count") == 3
    assert bench.metric("work_duration_seconds_sum") == 7
    assert bench.metric("depth") == 0


async def test_queues_share_a_registry_under_their_names() -> None:
    registry = Registry()
    metrics = QueueMetrics(registry)
    for name, keys in (("one", "a"), ("two", "bc")):
        queue = Workqueue[str](name, metrics=metrics, clock=VirtualClock(), backoff=BACKOFF)
        for key in keys:
            queue.add(key)
    text = registry.text()
    assert 'workqueue_adds_total{name="one"} 1.0' in text
    assert 'workqueue_depth{name="two"} 2.0' in text
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and "_created" not in line} == {
        "workqueue_depth",
        "workqueue_adds_total",
        "workqueue_queue_duration_seconds",
        "workqueue_work_duration_seconds",
        "workqueue_retries_total",
    }
