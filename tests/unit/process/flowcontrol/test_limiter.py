"""The token bucket: how many pass when, in which order, and what a cancelled waiter leaves behind."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.process.clock import VirtualClock
from governor.process.flowcontrol.limiter import Limiter, Rate


class Callers:
    """Tasks that take a token each, and when they got it."""

    def __init__(self, rate: Rate, clock: VirtualClock | None = None) -> None:
        self.clock = clock or VirtualClock()
        self.limiter = Limiter(rate, self.clock)
        self.passed: list[tuple[int, float]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._start_s = self.clock.monotonic()

    def come(self, count: int = 1) -> None:
        for _ in range(count):
            self.tasks.append(asyncio.create_task(self._pass(len(self.tasks))))

    async def leave(self, caller: int) -> None:
        self.tasks[caller].cancel()
        await asyncio.wait({self.tasks[caller]})

    async def leave_all(self) -> None:
        for caller in range(len(self.tasks)):
            await self.leave(caller)

    async def _pass(self, caller: int) -> None:
        await self.limiter.acquire()
        self.passed.append((caller, round(self.clock.monotonic() - self._start_s, 3)))


async def test_a_burst_passes_at_once_and_the_rest_at_the_rate_in_the_order_of_coming() -> None:
    callers = Callers(Rate(per_s=2, burst=3))
    callers.come(6)
    await callers.clock.advance(10)
    assert callers.passed == [(0, 0), (1, 0), (2, 0), (3, 0.5), (4, 1.0), (5, 1.5)]


async def test_an_idle_bucket_fills_up_to_its_burst_and_no_further() -> None:
    callers = Callers(Rate(per_s=1, burst=2))
    callers.come(2)
    await callers.clock.advance(1000)
    callers.come(3)
    await callers.clock.advance(10)
    assert [when for _, when in callers.passed] == [0, 0, 1000, 1000, 1001]


async def test_a_newcomer_does_not_overtake_those_who_wait() -> None:
    callers = Callers(Rate(per_s=1, burst=1))
    callers.come(3)
    await callers.clock.advance(1)
    callers.come()
    await callers.clock.advance(0)
    assert callers.clock.sleepers == 1
    await callers.clock.advance(10)
    assert callers.passed == [(0, 0), (1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("leaver", [1, 2])
async def test_a_waiter_that_is_cancelled_leaves_its_token_to_the_next(leaver: int) -> None:
    callers = Callers(Rate(per_s=1, burst=1))
    callers.come(4)
    await callers.clock.advance(0.5)
    await callers.leave(leaver)
    await callers.clock.advance(10)
    stayed = [caller for caller in (1, 2, 3) if caller != leaver]
    assert callers.passed == [(0, 0), (stayed[0], 1), (stayed[1], 2)]


class HeldClock(VirtualClock):
    """A clock whose one sleeper the test wakes itself, to do something before the sleeper runs."""

    async def sleep(self, seconds: float) -> None:
        self.wanted_s = seconds
        self.woken = asyncio.get_running_loop().create_future()
        await self.woken


async def test_a_waiter_that_is_cancelled_in_the_moment_of_its_token_has_not_taken_it() -> None:
    clock = HeldClock()
    callers = Callers(Rate(per_s=1, burst=1), clock)
    callers.come(3)
    await clock.advance(0)
    await clock.advance(clock.wanted_s)
    clock.woken.set_result(None)
    await callers.leave(1)
    await clock.advance(0)
    assert callers.passed == [(0, 0), (2, 1)]


async def test_a_newcomer_does_not_take_the_token_that_somebody_is_about_to_wake_for() -> None:
    clock = HeldClock()
    callers = Callers(Rate(per_s=1, burst=1), clock)
    callers.come(2)
    await clock.advance(0)
    await clock.advance(clock.wanted_s)
    callers.come()
    await clock.advance(0)
    assert callers.passed == [(0, 0)]
    clock.woken.set_result(None)
    await clock.advance(0)
    assert callers.passed == [(0, 0), (1, 1)]
    await callers.leave(2)


async def test_nothing_is_kept_of_those_who_waited() -> None:
    callers = Callers(Rate(per_s=1, burst=1))
    callers.come(3)
    await callers.clock.advance(0)
    await callers.leave(2)
    await callers.clock.advance(5)
    assert callers.limiter._turn is None
    assert not hasattr(callers.limiter, "__dict__")


async def test_without_waiting_a_burst_is_spent_and_refilled() -> None:
    clock = VirtualClock()
    limiter = Limiter(Rate(per_s=2, burst=3), clock)
    taken: list[bool] = []
    for seconds in (0, 0, 0, 0, 0.5, 0, 100, 0, 0, 0):
        await clock.advance(seconds)
        taken.append(limiter.try_acquire())
    assert taken == [True, True, True, False, True, False, True, True, True, False]


async def test_a_failed_try_takes_no_token() -> None:
    clock = VirtualClock()
    limiter = Limiter(Rate(per_s=1, burst=1), clock)
    assert limiter.try_acquire()
    assert not any(limiter.try_acquire() for _ in range(10))
    await clock.advance(1)
    assert limiter.try_acquire()


async def test_a_try_does_not_overtake_a_waiting_caller() -> None:
    clock = HeldClock()
    callers = Callers(Rate(per_s=1, burst=1), clock)
    callers.come(2)
    await clock.advance(0)
    await clock.advance(clock.wanted_s)
    assert not callers.limiter.try_acquire()
    clock.woken.set_result(None)
    await clock.advance(0)
    assert callers.passed == [(0, 0), (1, 1)]


@pytest.mark.parametrize("rate", [lambda: Rate(per_s=0, burst=1), lambda: Rate(per_s=1, burst=0)])
def test_a_rate_that_lets_nobody_pass_is_refused(rate: Callable[[], Rate]) -> None:
    with pytest.raises(ValueError, match="a rate needs"):
        rate()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.integers(1, 5)),
        st.tuples(st.just("leave"), st.integers(0, 30)),
        st.tuples(st.just("advance"), st.integers(1, 40)),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, per_s=st.sampled_from([0.25, 1, 8]), burst=st.integers(1, 4))
def test_never_more_pass_than_the_rate_allows_and_never_fewer_and_always_in_order(
    steps: list[tuple[str, int]], per_s: float, burst: int
) -> None:
    # Rates and times are such that no sum of them rounds.
    async def scenario() -> None:
        callers = Callers(Rate(per_s=per_s, burst=burst))
        tokens, waiting, expected = float(burst), list[int](), list[int]()
        for step, number in steps:
            if step == "come":
                waiting += range(len(callers.tasks), len(callers.tasks) + number)
                callers.come(number)
            elif step == "leave" and number in waiting:
                waiting.remove(number)
                await callers.leave(number)
            elif step == "advance":
                await callers.clock.advance(number / 8)
                tokens += number / 8 * per_s
            await callers.clock.advance(0)
            while waiting and tokens >= 1:
                tokens -= 1
                expected.append(waiting.pop(0))
            tokens = min(tokens, float(burst))
            assert [caller for caller, _ in callers.passed] == expected
        await callers.leave_all()

    asyncio.run(scenario())
