"""The reconcile loop: when keys run, and how each outcome requeues them."""

import asyncio
import gc
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import structlog.testing
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.process.clock import VirtualClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.fair_queue import Priority
from governor.process.reconcile.reconciler import (
    SLOW_BACKOFF,
    Done,
    Failed,
    Outcome,
    ReconcileMetrics,
    Reconciler,
    Requeue,
    Stalled,
    Waiting,
)
from governor.process.telemetry.instruments import Registry

BACKOFF = Backoff(initial_s=1, max_s=60)
USER_ERRORS = {Kind.INVALID, Kind.EXISTS, Kind.UNAUTHENTICATED, Kind.DENIED, Kind.UNIMPLEMENTED}
RESULTS = ("success", "error", "requeue", "requeue_after")


class Bench:
    """A reconciler on a virtual clock, with a record of its runs and outcomes."""

    def __init__(
        self, reconcile: Callable[[str], Awaitable[Outcome]], workers: int = 1, timeout_s: float | None = None
    ) -> None:
        self.clock = VirtualClock()
        self.registry = Registry()
        self.runs: list[tuple[str, float]] = []
        self.outcomes: list[tuple[str, Outcome]] = []
        self._reconcile = reconcile
        self._start = self.clock.monotonic()
        self.reconciler = Reconciler(
            self._record,
            name="bench",
            metrics=ReconcileMetrics(self.registry),
            clock=self.clock,
            backoff=BACKOFF,
            rng=random.Random(1),
            workers=workers,
            timeout_s=timeout_s,
            group_of=lambda key: key.partition("/")[0],
            on_outcome=lambda key, outcome: self.outcomes.append((key, outcome)),
        )

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.value(f"controller_runtime_{name}", {"controller": "bench", **labels})

    async def _record(self, key: str) -> Outcome:
        self.runs.append((key, self.clock.monotonic() - self._start))
        return await self._reconcile(key)


class Gate:
    """A reconcile function that waits until it is opened, and counts how many of its calls run at once."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.peak = 0
        self._active = 0

    async def reconcile(self, _key: str) -> Outcome:
        self._active += 1
        self.peak = max(self.peak, self._active)
        await self.open.wait()
        self._active -= 1
        return Done()


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[Bench]:
    task = asyncio.create_task(bench.reconciler.run())
    yield bench
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def always(outcome: Outcome) -> Callable[[str], Awaitable[Outcome]]:
    async def reconcile(_key: str) -> Outcome:
        return outcome

    return reconcile


def sequence(*results: Outcome | Exception) -> Callable[[str], Awaitable[Outcome]]:
    left = list(results)

    async def reconcile(_key: str) -> Outcome:
        result = left.pop(0) if left else Done()
        if isinstance(result, Exception):
            raise result
        return result

    return reconcile


async def test_a_key_added_several_times_before_it_runs_runs_once() -> None:
    bench = Bench(always(Done()))
    for _ in range(3):
        bench.reconciler.add("a")
    async with running(bench):
        await bench.clock.advance(1000)
    assert bench.runs == [("a", 0)]
    assert bench.outcomes == [("a", Done())]


async def test_a_key_added_while_it_runs_runs_once_more_afterwards() -> None:
    gate = Gate()
    async with running(Bench(gate.reconcile, workers=4)) as bench:
        bench.reconciler.add("a")
        await bench.clock.advance(0)
        bench.reconciler.add("a")
        bench.reconciler.add("a")
        await bench.clock.advance(0)
        assert [key for key, _ in bench.runs] == ["a"]
        gate.open.set()
        await bench.clock.advance(0)
    assert [key for key, _ in bench.runs] == ["a", "a"]
    assert gate.peak == 1


async def test_workers_run_different_keys_concurrently() -> None:
    gate = Gate()
    async with running(Bench(gate.reconcile, workers=2)) as bench:
        for key in "abc":
            bench.reconciler.add(key)
        await bench.clock.advance(0)
        gate.open.set()
        await bench.clock.advance(0)
    assert sorted(key for key, _ in bench.runs) == ["a", "b", "c"]
    assert gate.peak == 2


async def test_requeue_and_waiting_run_after_their_delay_and_are_no_failures() -> None:
    async with running(Bench(sequence(Requeue(5), Waiting("the server", 7), Done()))) as bench:
        bench.reconciler.add("a")
        await bench.clock.advance(1000)
    assert bench.runs == [("a", 0), ("a", 5), ("a", 12)]


def test_a_negative_delay_cannot_be_requested() -> None:
    with pytest.raises(ValueError, match=r"-0\.1"):
        Requeue(-0.1)
    assert Requeue(0).after_s == 0


async def test_a_stalled_key_runs_only_when_it_is_added() -> None:
    async with running(Bench(always(Stalled("give it a name")))) as bench:
        bench.reconciler.add("a")
        await bench.clock.advance(100_000)
        assert len(bench.runs) == 1
        bench.reconciler.add("a")
        await bench.clock.advance(0)
    assert len(bench.runs) == 2


async def test_failures_back_off_within_bounds_and_a_success_resets_the_backoff() -> None:
    down = GovernorError(Kind.UNAVAILABLE, "down", "the server is down")
    async with running(Bench(sequence(*[down] * 8, Done(), down, Done()))) as bench:
        bench.reconciler.add("a")
        await bench.clock.advance(1000)
        bench.reconciler.add("a")
        await bench.clock.advance(1000)
    times = [when for _, when in bench.runs]
    waits = [later - earlier for earlier, later in itertools.pairwise(times[:8])]
    assert len(times) == 11
    assert all(1 <= wait <= BACKOFF.ceiling_s(n) for n, wait in enumerate(waits, start=1))
    assert max(waits) > 4
    assert times[10] - times[9] <= 2


@pytest.mark.parametrize("between", [Done(), Requeue(1), Waiting("the server", 1), Stalled("give it a name")])
async def test_every_other_outcome_resets_the_backoff(between: Outcome) -> None:
    down = Failed(OSError("down"))
    async with running(Bench(sequence(*[down] * 8, between, down, Done()))) as bench:
        bench.reconciler.add("a")
        await bench.clock.advance(1000)
        bench.reconciler.add("a")
        await bench.clock.advance(1000)
    times = [when for _, when in bench.runs]
    assert len(times) >= 11
    assert times[10] - times[9] <= 2


async def test_one_failing_key_does_not_delay_another() -> None:
    async def reconcile(key: str) -> Outcome:
        if key == "bad":
            raise GovernorError(Kind.UNAVAILABLE, "down", "the server is down")
        return Done()

    async with running(Bench(reconcile)) as bench:
        bench.reconciler.add("bad")
        bench.reconciler.add("good")
        await bench.clock.advance(0)
    assert bench.runs == [("bad", 0), ("good", 0)]


async def test_the_earliest_of_several_delays_counts_and_an_add_does_not_wait() -> None:
    async with running(Bench(always(Done()))) as bench:
        bench.reconciler.add_after("a", 30)
        bench.reconciler.add_after("a", 10)
        bench.reconciler.add_after("a", 20)
        bench.reconciler.add_after("b", 15)
        bench.reconciler.add("c")
        await bench.clock.advance(100)
    assert bench.runs == [("c", 0), ("a", 10), ("b", 15)]


async def test_an_earlier_delay_interrupts_the_sleep_for_a_later_one() -> None:
    async with running(Bench(always(Done()))) as bench:
        bench.reconciler.add_after("late", 50)
        await bench.clock.advance(1)
        bench.reconciler.add_after("soon", 1)
        await bench.clock.advance(100)
    assert bench.runs == [("soon", 2), ("late", 50)]


async def test_an_unexpected_exception_is_logged_once_and_retried() -> None:
    with structlog.testing.capture_logs() as logs:
        async with running(Bench(sequence(RuntimeError("a bug"), Done()))) as bench:
            bench.reconciler.add("a")
            await bench.clock.advance(100)
    assert [(line["event"], line["key"], str(line["exc_info"])) for line in logs] == [
        ("reconcile raised", "a", "a bug")
    ]
    first, second = (outcome for _, outcome in bench.outcomes)
    assert isinstance(first, Failed)
    assert str(first.error) == "a bug"
    assert second == Done()


@pytest.mark.parametrize("returned", [None, True])
async def test_a_function_that_returns_no_outcome_fails_its_key_and_no_other(returned: Any) -> None:
    async def reconcile(key: str) -> Outcome:
        return Done() if key == "good" else cast("Outcome", returned)

    with structlog.testing.capture_logs() as logs:
        async with running(Bench(reconcile)) as bench:
            bench.reconciler.add("bad")
            bench.reconciler.add("good")
            await bench.clock.advance(0.1)
    assert [(line["event"], line["controller"]) for line in logs] == [("reconcile raised", "bench")]
    (_, failed), good = bench.outcomes
    assert isinstance(failed, Failed)
    assert f"returned {returned!r} for bad" in str(failed.error)
    assert good == ("good", Done())


@pytest.mark.parametrize("kind", Kind)
async def test_every_kind_of_error_is_retried_and_slowly_if_a_user_must_act(kind: Kind) -> None:
    async def reconcile(_key: str) -> Outcome:
        raise GovernorError(kind, "code", "what to do")

    async with running(Bench(reconcile)) as bench:
        bench.reconciler.add("a")
        await bench.clock.advance(10 * SLOW_BACKOFF.max_s)
    times = [when for _, when in bench.runs]
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert {type(each) for _, each in bench.outcomes} == {Failed}
    expected = SLOW_BACKOFF if kind in USER_ERRORS else BACKOFF
    assert all(expected.initial_s <= wait <= expected.ceiling_s(n) for n, wait in enumerate(waits, start=1))
    assert max(waits) > expected.max_s / 2
    assert bench.metric("reconcile_errors_total") == bench.metric("reconcile_total", result="error") == len(times)


async def test_a_change_runs_a_slowly_retried_key_at_once_and_success_resets_its_backoff() -> None:
    denied = GovernorError(Kind.DENIED, "denied", "grant the role")
    unavailable = GovernorError(Kind.UNAVAILABLE, "down", "the server is down")
    async with running(Bench(sequence(*[denied] * 5, Done(), unavailable, Done()))) as bench:
        for _ in range(7):
            bench.reconciler.add("a")
            await bench.clock.advance(0)
        assert [type(outcome) for _, outcome in bench.outcomes[4:]] == [Failed, Done, Failed]
        await bench.clock.advance(2)
    assert bench.outcomes[7] == ("a", Done())


async def test_a_run_that_exceeds_the_timeout_is_cancelled_and_retried() -> None:
    cancelled: list[float] = []

    async def reconcile(key: str) -> Outcome:
        if key == "fast" or cancelled:
            await bench.clock.sleep(29)
            return Done()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(bench.clock.monotonic() - 1000)
            raise
        return Done()

    async with running(Bench(reconcile, workers=2, timeout_s=30)) as bench:
        bench.reconciler.add("slow")
        bench.reconciler.add("fast")
        await bench.clock.advance(100)
        assert bench.clock.sleepers == 0
    assert cancelled == [30]
    assert [key for key, _ in bench.outcomes] == ["fast", "slow", "slow"]
    first = bench.outcomes[1][1]
    assert isinstance(first, Failed)
    assert isinstance(first.error, GovernorError)
    assert (first.error.kind, str(first.error)) == (Kind.DEADLINE, "reconciling slow took longer than 30 s")


async def test_a_timeout_within_a_run_is_not_the_timeout_of_the_run() -> None:
    with structlog.testing.capture_logs() as logs:
        async with running(Bench(sequence(TimeoutError("of a request"), Done()), timeout_s=30)) as bench:
            bench.reconciler.add("a")
            await bench.clock.advance(100)
    assert [(type(outcome), getattr(outcome, "error", None).__class__) for _, outcome in bench.outcomes] == [
        (Failed, TimeoutError),
        (Done, type(None)),
    ]
    assert [line["event"] for line in logs] == ["reconcile raised"]


async def test_changes_come_before_resyncs_and_groups_are_served_round_robin() -> None:
    bench = Bench(always(Done()))
    for n in range(3):
        bench.reconciler.add(f"big/{n}", Priority.RESYNC)
    bench.reconciler.add("small/0", Priority.RESYNC)
    bench.reconciler.add("big/9")
    async with running(bench):
        await bench.clock.advance(0)
    assert [key for key, _ in bench.runs] == ["big/9", "big/0", "small/0", "big/1", "big/2"]


async def test_a_retry_that_is_due_waits_behind_changes() -> None:
    gate = asyncio.Event()

    async def reconcile(key: str) -> Outcome:
        if key == "long":
            await gate.wait()
        return Failed(OSError("down")) if key == "failing" and not gate.is_set() else Done()

    async with running(Bench(reconcile)) as bench:
        bench.reconciler.add("failing")
        bench.reconciler.add("long")
        await bench.clock.advance(5)
        bench.reconciler.add("changed")
        gate.set()
        await bench.clock.advance(0)
    assert [key for key, _ in bench.runs] == ["failing", "long", "changed", "failing"]


async def test_shutting_down_finishes_the_keys_being_processed_and_runs_no_other() -> None:
    gate = asyncio.Event()

    async def reconcile(_key: str) -> Outcome:
        await gate.wait()
        return Requeue(0)

    bench = Bench(reconcile, workers=2)
    run = asyncio.create_task(bench.reconciler.run())
    for key in "abc":
        bench.reconciler.add(key)
    await bench.clock.advance(0)
    stopping = asyncio.create_task(bench.reconciler.shut_down(grace_s=30))
    await bench.clock.advance(29)
    bench.reconciler.add("d")
    bench.reconciler.add("a")
    assert not run.done()
    gate.set()
    await bench.clock.advance(0)
    await asyncio.gather(stopping, run)
    assert [key for key, _ in bench.runs] == ["a", "b"]
    assert bench.outcomes == [("a", Requeue(0)), ("b", Requeue(0))]
    assert bench.clock.sleepers == 0


async def test_a_key_that_outlasts_the_grace_period_is_cancelled_without_an_error() -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    bench = Bench(lambda _: asyncio.Event().wait(), workers=2)  # type: ignore[arg-type,return-value]
    run = asyncio.create_task(bench.reconciler.run())
    bench.reconciler.add("a")
    await bench.clock.advance(0)
    stopping = asyncio.create_task(bench.reconciler.shut_down(grace_s=30))
    await bench.clock.advance(29)
    assert not stopping.done()
    await bench.clock.advance(1)
    await asyncio.gather(stopping, run)
    assert bench.outcomes == []
    assert bench.metric("active_workers") == 0
    del stopping
    gc.collect()
    assert errors == []


async def test_a_loop_that_is_shut_down_before_it_runs_returns_at_once() -> None:
    bench = Bench(always(Done()))
    bench.reconciler.add("a")
    await bench.reconciler.shut_down(grace_s=30)
    await bench.reconciler.run()
    assert bench.runs == []


async def test_a_reconcile_that_awaits_a_cancelled_task_fails_and_its_worker_continues() -> None:
    never = asyncio.get_running_loop().create_future()
    never.cancel()

    async def reconcile(_key: str) -> Outcome:
        if len(bench.runs) == 1:
            await never
        return Done()

    with structlog.testing.capture_logs() as logs:
        async with running(Bench(reconcile)) as bench:
            bench.reconciler.add("a")
            await bench.clock.advance(100)
    assert [type(outcome) for _, outcome in bench.outcomes] == [Failed, Done]
    assert [line["event"] for line in logs] == ["reconcile awaited a cancelled task"]


async def test_the_metrics_count_runs_by_result_errors_durations_and_active_workers() -> None:
    gate = asyncio.Event()
    first: dict[str, Outcome] = {
        "done": Done(),
        "at once": Requeue(0),
        "later": Requeue(5),
        "waiting": Waiting("the server", 5),
        "stalled": Stalled("give it a name"),
        "failed": Failed(OSError("down")),
    }

    async def reconcile(key: str) -> Outcome:
        await gate.wait()
        return first.pop(key, Done())

    async with running(Bench(reconcile, workers=6)) as bench:
        for key in first:
            bench.reconciler.add(key)
        await bench.clock.advance(3)
        assert bench.metric("active_workers") == 6
        gate.set()
        await bench.clock.advance(10)
    results = {result: bench.metric("reconcile_total", result=result) for result in RESULTS}
    assert results == {"success": 5, "error": 2, "requeue": 1, "requeue_after": 2}
    assert bench.metric("reconcile_errors_total") == 2
    assert bench.metric("reconcile_time_seconds_count") == 10
    assert bench.metric("reconcile_time_seconds_sum") == 6 * 3
    assert bench.metric("active_workers") == 0


async def test_the_metrics_have_the_names_of_controller_runtime_and_start_at_zero() -> None:
    bench = Bench(always(Done()))
    text = bench.registry.text()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and "_created" not in line}
    assert {name for name in names if not name.startswith("workqueue_")} == {
        "controller_runtime_reconcile_total",
        "controller_runtime_reconcile_errors_total",
        "controller_runtime_reconcile_time_seconds",
        "controller_runtime_active_workers",
    }
    assert 'workqueue_depth{name="bench"} 0.0' in text
    for result in RESULTS:
        assert f'controller_runtime_reconcile_total{{controller="bench",result="{result}"}} 0.0' in text


KEYS = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), KEYS),
        st.tuples(st.just("add_after"), KEYS, st.integers(0, 5)),
        st.tuples(st.just("finish"), KEYS),
        st.tuples(st.just("advance"), st.integers(0, 3)),
    ),
    max_size=40,
)


class ChangeLog:
    """Changes of each key, and the changes that its last run has seen."""

    def __init__(self) -> None:
        self.changes = dict.fromkeys("abcd", 0)
        self.seen = dict.fromkeys("abcd", 0)
        self.active: set[str] = set()
        self.gates: dict[str, asyncio.Event] = {}
        self.open = False
        self.twice_at_once = 0

    async def reconcile(self, key: str) -> Outcome:
        # Counted, not asserted: the loop would retry an AssertionError raised here.
        self.twice_at_once += key in self.active
        self.active.add(key)
        self.seen[key] = self.changes[key]
        self.gates[key] = asyncio.Event()
        if not self.open:
            await self.gates[key].wait()
        self.active.discard(key)
        return Done()


@given(steps=STEPS, workers=st.integers(1, 3))
def test_no_key_is_lost_and_none_runs_twice_at_once(steps: list[tuple[object, ...]], workers: int) -> None:
    async def scenario() -> None:
        log, clock = ChangeLog(), VirtualClock()
        reconciler = Reconciler(
            log.reconcile,
            name="log",
            metrics=ReconcileMetrics(Registry()),
            clock=clock,
            backoff=BACKOFF,
            workers=workers,
        )
        loop = asyncio.create_task(reconciler.run())
        for step in steps:
            await _play(step, reconciler, log, clock)
            await clock.advance(0)
            assert len(log.active) <= workers
        log.open = True
        for gate in log.gates.values():
            gate.set()
        await clock.advance(10)
        assert log.seen == log.changes
        assert not log.active
        assert log.twice_at_once == 0
        loop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loop

    asyncio.run(scenario())


async def _play(step: tuple[object, ...], reconciler: Reconciler[str], log: ChangeLog, clock: VirtualClock) -> None:
    match step:
        case ("add", str(key)):
            log.changes[key] += 1
            reconciler.add(key)
        case ("add_after", str(key), int(seconds)):
            log.changes[key] += 1
            reconciler.add_after(key, seconds)
        case ("finish", str(key)) if key in log.gates:
            log.gates[key].set()
        case ("advance", int(seconds)):
            await clock.advance(seconds)
