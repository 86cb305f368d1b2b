"""Memory for the held requests of all connections: what does not fit waits, and is not read meanwhile."""

from collections.abc import Callable, Hashable
from typing import Final

MEMORY_PER_BYTE: Final = 3
"""What a held byte may cost: the request, the hook request made of it, and the plugin's response."""


PROCESSING_BYTES: Final = 40 * 1024 * 1024
"""What the largest request takes while it is decoded, merged and encoded, one at a time."""


class HeldBudget:
    """The memory in use, and the requests that wait for some, in order of arrival."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._waiting: dict[Hashable, tuple[int, Callable[[], None]]] = {}
        self._peak_bytes = 0
        """The most that was in use since nothing was."""
        self.emptied: Callable[[int], None] = lambda _peak_bytes: None
        """Called with the peak when nothing is in use."""

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    def reserve(self, size: int) -> bool:
        """Reserve memory for a request of this size, if there is some."""
        cost = size * MEMORY_PER_BYTE
        # A single request always fits.
        if self._used_bytes and self._used_bytes + cost > self._limit_bytes:
            return False
        self._used_bytes += cost
        self._peak_bytes = max(self._peak_bytes, self._used_bytes)
        return True

    def wait(self, key: Hashable, size: int, granted: Callable[[], None]) -> None:
        """Call ``granted`` when memory is reserved for a request of this size."""
        self._waiting[key] = size, granted

    def leave(self, key: Hashable) -> None:
        """Wait no longer."""
        self._waiting.pop(key, None)

    def release(self, size: int) -> None:
        """Give back what was reserved for a request of this size, and let others have it."""
        self._used_bytes -= size * MEMORY_PER_BYTE
        for key, (wanted, granted) in list(self._waiting.items()):
            if key in self._waiting and self.reserve(wanted):
                del self._waiting[key]
                granted()
        if not self._used_bytes:
            peak_bytes, self._peak_bytes = self._peak_bytes, 0
            self.emptied(peak_bytes)
