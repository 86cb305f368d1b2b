"""A list of errors that is raised as one, so that a single response names everything that is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from governor.errors import Detail, GovernorError

MAX_DETAILS: Final = 50


class ErrorList:
    """Errors collected so far."""

    def __init__(self) -> None:
        self._errors: list[GovernorError] = []

    def add(self, error: GovernorError) -> None:
        """Append an error."""
        self._errors.append(error)

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Append an error raised in the block instead of propagating it."""
        try:
            yield
        except GovernorError as error:
            self.add(error)

    def raise_if_any(self) -> None:
        """Raise the first error with the details of all."""
        if not self._errors:
            return
        first = self._errors[0]
        messages = dict.fromkeys(error.message for error in self._errors)
        more = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
        raise GovernorError(first.kind, first.code, f"{first.message}{more}", self._details())

    def _details(self) -> list[Detail]:
        details = list(dict.fromkeys(detail for error in self._errors for detail in error.details))
        omitted = len(details) - MAX_DETAILS
        return [*details[:MAX_DETAILS], Detail(reason=f"and {omitted} more problems")] if omitted > 0 else details
