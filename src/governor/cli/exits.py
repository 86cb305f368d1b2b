"""The edge between errors and the shell: one exit code per kind, and the words on stderr.

0 is done, 1 is "the answer is no" (``diff`` found differences, ``apply`` was not verified everywhere), 2 is a wrong
command line. No error of a kind ever ends with 1, so that ``diff`` can be used in conditions.
"""

from typing import Final

from governor.errors import Detail, GovernorError, Kind

DONE: Final = 0
NO: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

EXIT_CODE: Final[dict[Kind, int]] = {
    Kind.INVALID: 3,
    Kind.NOT_FOUND: 4,
    Kind.EXISTS: 5,
    Kind.CONFLICT: 6,
    Kind.PRECONDITION: 7,
    Kind.UNAUTHENTICATED: 8,
    Kind.DENIED: 9,
    Kind.EXHAUSTED: 10,
    Kind.UNAVAILABLE: 11,
    Kind.DEADLINE: 12,
    Kind.UNIMPLEMENTED: 13,
    Kind.INTERNAL: 14,
}

_NEXT_BY_CODE: Final = {
    "tls-untrusted": "name the authority of the server with --ca-file",
    "unreachable": "name another server with --server or GOVERNOR_SERVER",
}
_NEXT_BY_KIND: Final = {
    Kind.UNAUTHENTICATED: "name a file with a valid token with --token-file or GOVERNOR_TOKEN_FILE",
    Kind.DENIED: "use a token with a higher role; `governor token create` makes one",
}


def describe(error: GovernorError) -> list[str]:
    """The lines that a person reads: what, where, what next."""
    lines = [f"error: {error.message}", *map(told, error.details)]
    following = next_step(error)
    return [*lines, f"next: {following}"] if following else lines


def next_step(error: GovernorError) -> str:
    """What a person may do about an error, if its message alone does not say it."""
    return _NEXT_BY_CODE.get(error.code) or _NEXT_BY_KIND.get(error.kind, "")


def told(detail: Detail) -> str:
    """One place and what is wrong there, in the form that editors can jump to."""
    place = f"{detail.file}:{detail.line}" if detail.file and detail.line else detail.file
    subject = " ".join(part for part in (detail.document, detail.path) if part)
    return ": ".join(part for part in (place, subject, detail.reason) if part)
