"""Doing things side by side."""

import asyncio

import pytest

from governor.kube.applyset.parallel import side_by_side


async def test_at_most_so_many_run_and_results_keep_their_order() -> None:
    running: set[int] = set()
    most = 0

    async def act(number: int) -> int:
        nonlocal most
        running.add(number)
        most = max(most, len(running))
        for _ in range(10 - number):
            await asyncio.sleep(0)
        running.remove(number)
        return number * number

    assert await side_by_side(range(10), act, 3) == [number * number for number in range(10)]
    assert most == 3


async def test_the_first_error_ends_the_others_and_comes_out_as_it_is() -> None:
    ended = []

    async def act(number: int) -> None:
        if number == 1:
            raise LookupError(number)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    with pytest.raises(LookupError):
        await side_by_side([0, 1, 2], act, 3)
    assert sorted(ended) == [0, 2]


async def test_cancelling_ends_them_all() -> None:
    started = asyncio.Event()

    async def act(_: int) -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(side_by_side([0, 1], act, 2))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
