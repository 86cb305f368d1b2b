"""Waiting for a condition with a deadline, in place of sleeping."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

Value = TypeVar("Value")
_POLL_S = 0.01


async def until(look: Callable[[], Awaitable[Value]], *, within_s: float = 120.0) -> Value:
    """The first true value that ``look`` returns; a TimeoutError when the deadline has passed."""
    async with asyncio.timeout(within_s):
        while True:
            if value := await look():
                return value
            await asyncio.sleep(_POLL_S)
