"""Error kinds and gRPC status codes, mapped in both directions."""

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
    # kubelet takes DEADLINE_EXCEEDED to mean that the runtime may still be working; only its own timer may raise that.
    Kind.DEADLINE: 14,
    # kubelet takes UNIMPLEMENTED to mean that the runtime lacks the method.
    Kind.UNIMPLEMENTED: INTERNAL,
    Kind.INTERNAL: INTERNAL,
}
"""The status sent to kubelet for each kind of error."""

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
    """Return the error kind of a peer's status code."""
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


_MAX_DIGITS: Final = 9


def parse(status: bytes) -> int | None:
    """Return the code in a grpc-status field, or None if it is malformed."""
    return int(status) if status.isdigit() and len(status) <= _MAX_DIGITS else None


def name_of(status: bytes) -> str:
    """Return the name of the code in a grpc-status field; the field itself if the code is unknown or malformed."""
    code = parse(status)
    return _NAMES[code] if code is not None and code < len(_NAMES) else status.decode(errors="replace")
