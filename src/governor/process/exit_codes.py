"""Exit codes: one for each error kind, and the lines that an error prints on stderr.

0 means success, 1 a negative result (``diff`` found differences, ``apply`` was not verified everywhere), 2 a usage
error. No error kind maps to 1, so shell scripts can test the result of ``diff``.
"""

from typing import Final

from governor.errors import GovernorError, Kind
from governor.values.printing import printable

SUCCESS: Final = 0
NEGATIVE: Final = 1
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
    """Return the lines to print for an error: what happened, where, and the next step."""
    lines = [f"error: {error.message}", *map(str, error.details)]
    return [printable(line.replace("\n", " ")) for line in (*lines, *([f"next: {next_step}"] if next_step else ()))]
