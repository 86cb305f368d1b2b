"""Doing the same to many things, some of them at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Thing = TypeVar("Thing")
Made = TypeVar("Made")


async def side_by_side(things: Iterable[Thing], act: Callable[[Thing], Awaitable[Made]], at_once: int) -> list[Made]:
    """What ``act`` returns for each thing, in their order; at most so many run at a time. The first error ends all."""
    gate = asyncio.Semaphore(at_once)

    async def one(thing: Thing) -> Made:
        async with gate:
            return await act(thing)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(thing)) for thing in things]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures  # it ended the others
    return [task.result() for task in tasks]
