"""Errors collected on the way, so that one answer names everything that is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from governor.errors import Detail, GovernorError

MOST_DETAILS: Final = 50


class Refusals:
    """What was refused so far."""

    def __init__(self) -> None:
        self._errors: list[GovernorError] = []

    def add(self, error: GovernorError) -> None:
        """Remember an error."""
        self._errors.append(error)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Remember an error instead of raising it."""
        try:
            yield
        except GovernorError as error:
            self.add(error)

    def refuse_if_any(self) -> None:
        """Raise the first error with the details of all."""
        if not self._errors:
            return
        first = self._errors[0]
        messages = dict.fromkeys(error.message for error in self._errors)
        more = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
        raise GovernorError(first.kind, first.code, f"{first.message}{more}", self._details())

    def _details(self) -> list[Detail]:
        details = list(dict.fromkeys(detail for error in self._errors for detail in error.details))
        left_off = len(details) - MOST_DETAILS
        return [*details[:MOST_DETAILS], Detail(reason=f"and {left_off} more problems")] if left_off > 0 else details
