"""The closed set of error kinds that every layer uses.

Adapters translate foreign exceptions into a GovernorError in one place, with ``raise ... from``. Each edge (HTTP, exit
codes, reconcile retries) maps every Kind in one table; those tables are defined at the edges.
"""

import enum
from collections.abc import Iterable

import msgspec


class Kind(enum.StrEnum):
    """The category of a failure."""

    INVALID = "invalid"
    NOT_FOUND = "not-found"
    EXISTS = "exists"
    CONFLICT = "conflict"
    PRECONDITION = "precondition"
    UNAUTHENTICATED = "unauthenticated"
    DENIED = "denied"
    EXHAUSTED = "exhausted"
    UNAVAILABLE = "unavailable"
    DEADLINE = "deadline"
    UNIMPLEMENTED = "unimplemented"
    INTERNAL = "internal"


class Detail(msgspec.Struct, frozen=True, omit_defaults=True):
    """One problem and its location; only ``reason`` is required."""

    reason: str
    file: str = ""
    line: int = 0
    document: str = ""
    path: str = ""

    def __str__(self) -> str:
        """Return ``file:line: document path: reason``, a form that editors can open."""
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        subject = " ".join(part for part in (self.document, self.path) if part)
        return ": ".join(part for part in (place, subject, self.reason) if part)


class GovernorError(Exception):
    """A failure with a kind, a stable code, a message and details."""

    def __init__(self, kind: Kind, code: str, message: str, details: Iterable[Detail] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.message = message
        self.details = tuple(details)

    def __str__(self) -> str:
        return "\n  ".join([self.message, *map(str, self.details)])


def invalid(code: str, message: str, details: Iterable[Detail] = ()) -> GovernorError:
    """Return an error for invalid input, which a retry cannot fix."""
    return GovernorError(Kind.INVALID, code, message, details)
