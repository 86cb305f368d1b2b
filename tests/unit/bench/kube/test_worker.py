"""How the fresh process of `make bench-kube` counts."""

import asyncio

from bench.kube.worker import WARM_UP_SHARE, Enough, Mark
from bench.turns import in_turn


def test_events_are_enough_after_those_that_warm_up_and_those_that_count() -> None:
    enough = Enough(100)

    answers = [enough() for _ in range(100 + 100 // WARM_UP_SHARE)]

    assert answers.index(True) == len(answers) - 1
    assert enough.ended.clock_s > enough.begun.clock_s


def test_usage_is_the_difference_of_two_moments() -> None:
    usage = Mark(1.0, 2.0, 3).usage(Mark(1.5, 2.25, 1000), 10)

    assert (usage.count, usage.seconds, usage.cpu_seconds) == (10, 0.5, 0.25)


async def test_acts_are_done_once_each_and_no_more_than_told_at_once() -> None:
    done: list[int] = []
    running: set[int] = set()
    most = 0

    async def act(number: int) -> None:
        nonlocal most
        running.add(number)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.remove(number)
        done.append(number)

    await in_turn(act, range(50), 4)

    assert (sorted(done), most) == (list(range(50)), 4)
