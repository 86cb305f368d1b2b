"""A user of an application who never stops asking, and counts what the application answers."""

import asyncio
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from demo.world import Runtime, World


class Prober:
    """Asks one application for its order at a fixed rate while it is entered.

    A request that hangs, as one that Dapr's swap of a store cuts off does, holds back no other.
    """

    def __init__(self, world: "World", runtime: "Runtime", every_s: float) -> None:
        self.answers: list[tuple[float, str]] = []
        self._world = world
        self._runtime = runtime
        self._every_s = every_s
        self._asking: set[asyncio.Task[None]] = set()
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
        if self._asking:
            await asyncio.wait(self._asking)

    def failures(self, since: float = 0.0) -> list[tuple[float, str]]:
        """The answers that were no order."""
        return [(when, text) for when, text in self.answers if when >= since and text not in ("foo", "bar")]

    async def first(self, order: str, since: float) -> float:
        """When the order was first answered after a time."""
        while True:
            found = next((when for when, seen in self.answers if when >= since and seen == order), None)
            if found is not None:
                return found
            await asyncio.sleep(self._every_s)

    async def more(self, count: int) -> None:
        """Go on until that many more requests were answered."""
        wanted = len(self.answers) + count
        while len(self.answers) < wanted:  # noqa: ASYNC110 - the requests themselves are what passes the time
            await asyncio.sleep(self._every_s)

    async def _run(self) -> None:
        while True:
            task = asyncio.create_task(self._ask())
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
            await asyncio.sleep(self._every_s)

    async def _ask(self) -> None:
        try:
            text = await self._world.order(self._runtime, "")
        except (OSError, TimeoutError) as error:
            text = f"error {error}"
        self.answers.append((datetime.now(UTC).timestamp(), text))
