"""Bounded concurrency."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable


async def run_bounded(call: Callable[[int], Awaitable[None]], numbers: Iterable[int], concurrency: int) -> None:
    """Call with every number, at most ``concurrency`` at a time."""
    remaining = iter(numbers)

    async def work() -> None:
        for number in remaining:
            await call(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())
