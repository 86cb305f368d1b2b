"""Waiting for a condition with a deadline, instead of sleeping."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

Value = TypeVar("Value")
_POLL_S = 0.01


async def until(
    condition: Callable[[], Awaitable[Value]], *, within_s: float = 120.0, every_s: float = _POLL_S
) -> Value:
    """Poll ``condition`` and return its first true value; raise TimeoutError after the deadline."""
    async with asyncio.timeout(within_s):
        while True:
            if value := await condition():
                return value
            await asyncio.sleep(every_s)
