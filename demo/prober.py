"""A client that sends requests to an application at a fixed rate and records the answers."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import aiohttp


class Prober:
    """Requests one application's order at a fixed rate while the context is open; ``read`` returns its answer as text.

    Requests do not wait for each other: one may hang while Dapr replaces a store.
    """

    def __init__(self, read: Callable[[], Awaitable[str]], every_s: float) -> None:
        self.answers: list[tuple[float, str]] = []
        self._read = read
        self._every_s = every_s
        self._pending: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        if self._pending:
            await asyncio.wait(self._pending)

    def failures(self, since: float = 0.0) -> list[tuple[float, str]]:
        """Return the answers that are not an order."""
        return [(when, text) for when, text in self.answers if when >= since and text not in ("foo", "bar")]

    async def first(self, order: str, since: float) -> float:
        """Wait for the first answer with this order after a time, and return when it came."""
        while True:
            found = next((when for when, text in self.answers if when >= since and text == order), None)
            if found is not None:
                return found
            await asyncio.sleep(self._every_s)

    async def more(self, count: int) -> None:
        """Wait until that many more requests were answered."""
        total = len(self.answers) + count
        while len(self.answers) < total:  # noqa: ASYNC110 - the request rate sets the pace
            await asyncio.sleep(self._every_s)

    async def _run(self) -> None:
        while True:
            task = asyncio.create_task(self._request())
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)
            await asyncio.sleep(self._every_s)

    async def _request(self) -> None:
        try:
            text = await self._read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            text = f"error {type(error).__name__}: {error}"
        self.answers.append((datetime.now(UTC).timestamp(), text))
