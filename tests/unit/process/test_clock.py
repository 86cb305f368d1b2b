"""The virtual clock and the system clock."""

import asyncio
import datetime

from governor.process.clock import SystemClock, VirtualClock


async def _record(clock: VirtualClock, seconds: float, name: str, seen: list[tuple[str, float]]) -> None:
    await clock.sleep(seconds)
    seen.append((name, clock.monotonic()))


async def test_sleepers_wake_in_order_exactly_at_their_deadlines() -> None:
    clock, seen = VirtualClock(), list[tuple[str, float]]()
    start = clock.monotonic()
    async with asyncio.TaskGroup() as group:
        for name, seconds in [("late", 3.0), ("early", 1.0), ("second early", 1.0)]:
            group.create_task(_record(clock, seconds, name, seen))
        await clock.advance(5)
    assert seen == [("early", start + 1), ("second early", start + 1), ("late", start + 3)]
    assert clock.monotonic() == start + 5


async def test_a_task_that_sleeps_again_wakes_again_within_one_advance() -> None:
    clock, seen = VirtualClock(), list[float]()

    async def tick() -> None:
        for _ in range(4):
            await clock.sleep(10)
            seen.append(clock.monotonic())

    start = clock.monotonic()
    ticking = asyncio.create_task(tick())
    await clock.advance(35)
    assert seen == [start + 10, start + 20, start + 30]
    assert clock.sleepers == 1
    await clock.advance(5)
    await ticking


async def test_no_sleeper_wakes_early() -> None:
    clock = VirtualClock()
    sleeping = asyncio.create_task(clock.sleep(1))
    await clock.advance(0.999)
    assert not sleeping.done()
    await clock.advance(0.001)
    assert sleeping.done()


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = VirtualClock()
    sleeping = asyncio.create_task(clock.sleep(1))
    await clock.advance(0)
    sleeping.cancel()
    await clock.advance(2)
    assert sleeping.cancelled()
    assert clock.sleepers == 0


async def test_a_jump_of_the_wall_clock_does_not_affect_sleepers() -> None:
    clock = VirtualClock()
    wall, steady = clock.now(), clock.monotonic()
    sleeping = asyncio.create_task(clock.sleep(10))
    await clock.advance(1)
    clock.jump(-3600)
    await clock.advance(1)
    assert clock.now() == wall + datetime.timedelta(seconds=2 - 3600)
    assert clock.monotonic() == steady + 2
    assert not sleeping.done()
    sleeping.cancel()


async def test_the_system_clock_is_in_utc_and_accepts_a_negative_sleep() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(-1)
    assert clock.now().utcoffset() == datetime.timedelta(0)
    assert clock.monotonic() >= before
