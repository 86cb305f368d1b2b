"""Waiting for a condition with a deadline, instead of sleeping."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

Value = TypeVar("Value")
_SHARE = 0.1
_SHORTEST_S, _LONGEST_S = 0.01, 0.05


async def until(
    condition: Callable[[], Awaitable[Value]], *, within_s: float = 120.0, every_s: float | None = None
) -> Value:
    """Poll ``condition`` and return its first true value; raise TimeoutError after the deadline.

    Without an interval the pauses grow with the time waited, so that long waits leave the processor to what they wait
    for.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with asyncio.timeout(within_s):
        while True:
            if value := await condition():
                return value
            pause = min(max(_SHORTEST_S, _SHARE * (loop.time() - started)), _LONGEST_S)
            await asyncio.sleep(pause if every_s is None else every_s)
