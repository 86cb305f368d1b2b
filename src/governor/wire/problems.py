"""Errors over HTTP: the problem format and the one table from kinds to statuses."""

from typing import Final

import msgspec

from governor.errors import Detail, GovernorError, Kind

HTTP_STATUS: Final[dict[Kind, int]] = {
    Kind.INVALID: 400,
    Kind.NOT_FOUND: 404,
    Kind.EXISTS: 409,
    Kind.CONFLICT: 409,
    Kind.PRECONDITION: 412,
    Kind.UNAUTHENTICATED: 401,
    Kind.DENIED: 403,
    Kind.EXHAUSTED: 507,
    Kind.UNAVAILABLE: 503,
    Kind.DEADLINE: 504,
    Kind.UNIMPLEMENTED: 501,
    Kind.INTERNAL: 500,
}


class Problem(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A body of application/problem+json; ``title`` is the message, ``type`` the stable code."""

    type: str
    title: str
    status: int
    kind: Kind
    details: tuple[Detail, ...] = ()


def problem(error: GovernorError) -> Problem:
    """Return the problem of an error."""
    return Problem(error.code, error.message, HTTP_STATUS[error.kind], error.kind, error.details)


def error_of(problem: Problem) -> GovernorError:
    """Return the error of a problem."""
    return GovernorError(problem.kind, problem.type, problem.title, problem.details)
