"""Many acts, some of them at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable


async def in_turn(act: Callable[[int], Awaitable[None]], numbers: Iterable[int], at_once: int) -> None:
    """Do the act with every number, so many at once."""
    left = iter(numbers)

    async def work() -> None:
        for number in left:
            await act(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
