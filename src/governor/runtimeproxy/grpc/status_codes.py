"""The edge between our errors and gRPC's status codes, in both directions."""

from typing import Final

from governor.errors import Kind

OK: Final = 0
NOT_FOUND: Final = 5
INTERNAL: Final = 13

CODE: Final[dict[Kind, int]] = {
    Kind.INVALID: 3,
    Kind.NOT_FOUND: NOT_FOUND,
    Kind.EXISTS: 6,
    Kind.CONFLICT: 10,
    Kind.PRECONDITION: 9,
    Kind.UNAUTHENTICATED: 16,
    Kind.DENIED: 7,
    Kind.EXHAUSTED: 8,
    Kind.UNAVAILABLE: 14,
    # To kubelet DEADLINE_EXCEEDED means that the runtime may still be at work; it is told so only by its own clock.
    Kind.DEADLINE: 14,
    # UNIMPLEMENTED would tell kubelet that the runtime lacks the method.
    Kind.UNIMPLEMENTED: INTERNAL,
    Kind.INTERNAL: INTERNAL,
}
"""What kubelet is answered."""

_KIND: Final = {
    3: Kind.INVALID,
    4: Kind.DEADLINE,
    5: Kind.NOT_FOUND,
    6: Kind.EXISTS,
    7: Kind.DENIED,
    8: Kind.EXHAUSTED,
    9: Kind.PRECONDITION,
    10: Kind.CONFLICT,
    12: Kind.UNIMPLEMENTED,
    14: Kind.UNAVAILABLE,
    16: Kind.UNAUTHENTICATED,
}


def kind_of(code: int) -> Kind:
    """What sort of failure a peer reported."""
    return _KIND.get(code, Kind.INTERNAL)


_NAMES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)


_DIGITS_MOST: Final = 9


def number_in(status: bytes) -> int | None:
    """A status as a response carries it; None if that is none, as peers may write what they like."""
    return int(status) if status.isdigit() and len(status) <= _DIGITS_MOST else None


def name_of(status: bytes) -> str:
    """A status, as a response carries it, by its name; nothing if there is none, itself if it has no name."""
    number = number_in(status)
    return _NAMES[number] if number is not None and number < len(_NAMES) else status.decode(errors="replace")
