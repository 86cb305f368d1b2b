"""The closed set of error kinds that every layer speaks.

Adapters translate foreign exceptions into a GovernorError at one spot, with ``raise ... from``. Each edge (HTTP,
exit code, reconcile outcome) has one total table from Kind. Nothing here knows any edge.
"""

import enum
from collections.abc import Iterable

import msgspec


class Kind(enum.StrEnum):
    """What sort of failure it is; each edge maps every member."""

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
    """One place where something is wrong. Only ``reason`` is always known."""

    reason: str
    file: str = ""
    line: int = 0
    document: str = ""
    path: str = ""

    def __str__(self) -> str:
        """In the form that editors can jump to."""
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        subject = " ".join(part for part in (self.document, self.path) if part)
        return ": ".join(part for part in (place, subject, self.reason) if part)


class GovernorError(Exception):
    """A failure with a kind, a stable code, a message for people and the places it concerns."""

    def __init__(self, kind: Kind, code: str, message: str, details: Iterable[Detail] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.message = message
        self.details = tuple(details)

    def __str__(self) -> str:
        return "\n  ".join([self.message, *map(str, self.details)])


def invalid(code: str, message: str, details: Iterable[Detail] = ()) -> GovernorError:
    """Input that is wrong in itself; repeating it cannot help."""
    return GovernorError(Kind.INVALID, code, message, details)
