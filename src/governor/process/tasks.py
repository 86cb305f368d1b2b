"""Tasks that a component starts on demand, within its own task group."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """Starts tasks while it runs; they are cancelled when it ends, and one that fails ends it."""

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None

    @property
    def is_running(self) -> bool:
        """Whether tasks can be started."""
        return self._group is not None

    async def run(self) -> None:
        """Run the tasks until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task; only while ``is_running``."""
        if self._group is None:
            work.close()
            raise RuntimeError("tasks are started only while their component runs")
        return self._group.create_task(work)
