"""Work that follows a call, done in batches: no call waits for it, and its code is read from memory once per batch."""

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

_DELAY_S: Final = 0.05
_MAX_ITEMS: Final = 64

T = TypeVar("T")


class Batch(Generic[T]):
    """Items that ``process`` gets together, shortly after the first one was added."""

    def __init__(self, process: Callable[[list[T]], None]) -> None:
        self._process = process
        self._items: list[T] = []

    def add(self, item: T) -> None:
        """Add an item to the present batch."""
        self._items.append(item)
        if len(self._items) == 1:
            asyncio.get_running_loop().call_later(_DELAY_S, self.flush)
        elif len(self._items) >= _MAX_ITEMS:
            self.flush()

    def flush(self) -> None:
        """Process the present batch now."""
        items, self._items = self._items, []
        if items:
            self._process(items)
