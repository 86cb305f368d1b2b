"""The token bucket: rate, burst, order, and cancelled callers."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.process.clock import VirtualClock
from governor.process.flowcontrol.limiter import Limiter, Rate


class Callers:
    """Tasks that acquire one token each, and when they acquired it."""

    def __init__(self, rate: Rate, clock: VirtualClock | None = None) -> None:
        self.clock = clock or VirtualClock()
        self.limiter = Limiter(rate, self.clock)
        self.passed: list[tuple[int, float]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._start_s = self.clock.monotonic()

    def start(self, count: int = 1) -> None:
        for _ in range(count):
            self.tasks.append(asyncio.create_task(self._pass(len(self.tasks))))

    async def cancel(self, caller: int) -> None:
        self.tasks[caller].cancel()
        await asyncio.wait({self.tasks[caller]})

    async def cancel_all(self) -> None:
        for caller in range(len(self.tasks)):
            await self.cancel(caller)

    async def _pass(self, caller: int) -> None:
        await self.limiter.acquire()
        self.passed.append((caller, round(self.clock.monotonic() - self._start_s, 3)))


async def test_a_burst_passes_at_once_and_the_rest_at_the_rate_in_order() -> None:
    callers = Callers(Rate(per_s=2, burst=3))
    callers.start(6)
    await callers.clock.advance(10)
    assert callers.passed == [(0, 0), (1, 0), (2, 0), (3, 0.5), (4, 1.0), (5, 1.5)]


async def test_an_idle_bucket_fills_up_to_its_burst() -> None:
    callers = Callers(Rate(per_s=1, burst=2))
    callers.start(2)
    await callers.clock.advance(1000)
    callers.start(3)
    await callers.clock.advance(10)
    assert [when for _, when in callers.passed] == [0, 0, 1000, 1000, 1001]


async def test_a_new_caller_does_not_overtake_waiting_callers() -> None:
    callers = Callers(Rate(per_s=1, burst=1))
    callers.start(3)
    await callers.clock.advance(1)
    callers.start()
    await callers.clock.advance(0)
    assert callers.clock.sleepers == 1
    await callers.clock.advance(10)
    assert callers.passed == [(0, 0), (1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("cancelled", [1, 2])
async def test_the_token_of_a_cancelled_caller_goes_to_the_next(cancelled: int) -> None:
    callers = Callers(Rate(per_s=1, burst=1))
    callers.start(4)
    await callers.clock.advance(0.5)
    await callers.cancel(cancelled)
    await callers.clock.advance(10)
    remaining = [caller for caller in (1, 2, 3) if caller != cancelled]
    assert callers.passed == [(0, 0), (remaining[0], 1), (remaining[1], 2)]


class HeldClock(VirtualClock):
    """A clock whose only sleeper is woken by the test."""

    async def sleep(self, seconds: float) -> None:
        self.requested_s = seconds
        self.woken = asyncio.get_running_loop().create_future()
        await self.woken


async def test_a_caller_cancelled_when_its_token_becomes_available_takes_none() -> None:
    clock = HeldClock()
    callers = Callers(Rate(per_s=1, burst=1), clock)
    callers.start(3)
    await clock.advance(0)
    await clock.advance(clock.requested_s)
    clock.woken.set_result(None)
    await callers.cancel(1)
    await clock.advance(0)
    assert callers.passed == [(0, 0), (2, 1)]


async def test_a_new_caller_does_not_take_the_token_of_a_caller_about_to_wake() -> None:
    clock = HeldClock()
    callers = Callers(Rate(per_s=1, burst=1), clock)
    callers.start(2)
    await clock.advance(0)
    await clock.advance(clock.requested_s)
    callers.start()
    await clock.advance(0)
    assert callers.passed == [(0, 0)]
    clock.woken.set_result(None)
    await clock.advance(0)
    assert callers.passed == [(0, 0), (1, 1)]
    await callers.cancel(2)


async def test_no_state_is_kept_after_callers_have_waited() -> None:
    callers = Callers(Rate(per_s=1, burst=1))
    callers.start(3)
    await callers.clock.advance(0)
    await callers.cancel(2)
    await callers.clock.advance(5)
    assert callers.limiter._lock is None
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
    callers.start(2)
    await clock.advance(0)
    await clock.advance(clock.requested_s)
    assert not callers.limiter.try_acquire()
    clock.woken.set_result(None)
    await clock.advance(0)
    assert callers.passed == [(0, 0), (1, 1)]


@pytest.mark.parametrize("rate", [lambda: Rate(per_s=0, burst=1), lambda: Rate(per_s=1, burst=0)])
def test_a_rate_without_tokens_is_rejected(rate: Callable[[], Rate]) -> None:
    with pytest.raises(ValueError, match="a rate needs"):
        rate()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.integers(1, 5)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("advance"), st.integers(1, 40)),
    ),
    max_size=30,
)


@given(steps=STEPS, per_s=st.sampled_from([0.25, 1, 8]), burst=st.integers(1, 4))
def test_exactly_as_many_calls_pass_as_the_rate_allows_in_order(
    steps: list[tuple[str, int]], per_s: float, burst: int
) -> None:
    # Rates and times are chosen so that no sum is rounded.
    async def scenario() -> None:
        callers = Callers(Rate(per_s=per_s, burst=burst))
        tokens, waiting, expected = float(burst), list[int](), list[int]()
        for step, number in steps:
            if step == "start":
                waiting += range(len(callers.tasks), len(callers.tasks) + number)
                callers.start(number)
            elif step == "cancel" and number in waiting:
                waiting.remove(number)
                await callers.cancel(number)
            elif step == "advance":
                await callers.clock.advance(number / 8)
                tokens += number / 8 * per_s
            await callers.clock.advance(0)
            while waiting and tokens >= 1:
                tokens -= 1
                expected.append(waiting.pop(0))
            tokens = min(tokens, float(burst))
            assert [caller for caller, _ in callers.passed] == expected
        await callers.cancel_all()

    asyncio.run(scenario())
