"""The edge between errors and the shell: one exit code per kind, and the words on stderr.

0 is done, 1 is "the answer is no" (``diff`` found differences, ``apply`` was not verified everywhere), 2 is a wrong
command line. No error of a kind ever ends with 1, so that ``diff`` can be used in conditions.
"""

from typing import Final

from governor.errors import GovernorError, Kind
from governor.values.printing import printable

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


def describe(error: GovernorError, next_step: str = "") -> list[str]:
    """The lines that a person reads: what, where, what next."""
    lines = [f"error: {error.message}", *map(str, error.details)]
    return [printable(line.replace("\n", " ")) for line in (*lines, *([f"next: {next_step}"] if next_step else ()))]
