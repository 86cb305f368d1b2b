"""Counting in the worker process of `make bench-kube`."""

import asyncio

from bench.concurrency import run_bounded
from bench.kube.tasks import WARM_UP_FRACTION, Task
from bench.kube.worker import EventCounter, Snapshot, TimeLimit, changed


def test_the_counter_ends_after_warm_up_and_measured_events() -> None:
    counter = EventCounter(100)

    results = [counter() for _ in range(100 + 100 // WARM_UP_FRACTION)]

    assert results.index(True) == len(results) - 1
    assert counter.usage.count == 100


def test_the_counter_ends_after_the_time_limit() -> None:
    counter = EventCounter(100, limit_s=1e-9)

    results = [counter() for _ in range(100 // WARM_UP_FRACTION + 1)]

    assert results.index(True) == len(results) - 1
    assert counter.usage.count == 1


def test_numbers_end_with_the_last_or_after_the_time_limit() -> None:
    assert list(TimeLimit(0.0).numbers(10, 13)) == [10, 11, 12]
    assert list(TimeLimit(1e-9).numbers(10, 13)) == [10]


def test_an_apply_changes_name_and_text_of_the_manifest_only() -> None:
    manifest = {"metadata": {"name": "any", "labels": {"app": "bench"}}, "data": {"text": "", "key": "value"}}
    task = Task("apply", (), "applied", 1, names=("first", "second"), manifest=manifest)

    assert changed(task, 3, "new") == {
        "metadata": {"name": "second", "labels": {"app": "bench"}},
        "data": {"text": "new", "key": "value"},
    }


def test_usage_is_the_difference_of_two_snapshots() -> None:
    usage = Snapshot(1.0, 2.0, 3).usage(Snapshot(1.5, 2.25, 1000), 10)

    assert (usage.count, usage.seconds, usage.cpu_seconds) == (10, 0.5, 0.25)


async def test_run_bounded_makes_each_call_once_within_the_limit() -> None:
    done: list[int] = []
    running: set[int] = set()
    peak = 0

    async def call(number: int) -> None:
        nonlocal peak
        running.add(number)
        peak = max(peak, len(running))
        await asyncio.sleep(0)
        running.remove(number)
        done.append(number)

    await run_bounded(call, range(50), 4)

    assert (sorted(done), peak) == (list(range(50)), 4)
