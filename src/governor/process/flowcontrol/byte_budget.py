"""A limit on the bytes that all holders together have in memory."""

from typing import Self

from governor.errors import GovernorError, Kind


class ByteBudget:
    """The bytes in use, at most ``max_bytes``. Used from one thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.used_bytes = 0

    def change(self, before: int, after: int) -> None:
        """Replace a holder's share; raise if it grows beyond the limit."""
        others = self.used_bytes - before
        if after > before and others + after > self._max_bytes:
            message = (
                f"{others} bytes of other requests are being processed, and {after} more exceed the limit "
                f"of {self._max_bytes}; retry in a moment"
            )
            raise GovernorError(Kind.UNAVAILABLE, "busy", message)
        self.used_bytes = others + after


class Reservation:
    """The share of one holder; leaving its context frees it."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resize(0)

    def resize(self, size: int) -> None:
        """Hold this many bytes; raise and hold as many as before if that would exceed the limit."""
        self._budget.change(self._size, size)
        self._size = size
