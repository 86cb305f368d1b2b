"""Responses of the proxy itself, as dockerd writes errors, and the kinds of error that dockerd's statuses stand for."""

import http
from typing import Final

import msgspec

from governor.errors import Kind
from governor.runtimeproxy.docker.routes import Operation

STATUS: Final[dict[Kind, int]] = {
    Kind.INVALID: 400,
    Kind.NOT_FOUND: 404,
    Kind.EXISTS: 409,
    Kind.CONFLICT: 409,
    Kind.PRECONDITION: 412,
    Kind.UNAUTHENTICATED: 401,
    Kind.DENIED: 403,
    Kind.EXHAUSTED: 413,
    Kind.UNAVAILABLE: 503,
    Kind.DEADLINE: 504,
    Kind.UNIMPLEMENTED: 501,
    Kind.INTERNAL: 500,
}
"""The status of each kind of error."""
BAD_GATEWAY: Final = 502
HEAD_TOO_LARGE: Final = 431
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_CONTENT: Final = b"HTTP/1.1 204 No Content\r\n\r\n"
_NOT_MODIFIED: Final = 304
_FIRST_ERROR: Final = 300
_KIND: Final = {
    304: Kind.CONFLICT,
    400: Kind.INVALID,
    401: Kind.UNAUTHENTICATED,
    403: Kind.DENIED,
    404: Kind.NOT_FOUND,
    409: Kind.CONFLICT,
    503: Kind.UNAVAILABLE,
}


def error_response(status: int, message: str, *, closes: bool = False) -> bytes:
    """Return an error in the form of the Docker Engine API."""
    body = msgspec.json.encode({"message": message}) + b"\n"
    head = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
    connection = "Connection: close\r\n" if closes else ""
    return f"{head}{connection}Content-Length: {len(body)}\r\n\r\n".encode() + body


def kind_of(operation: Operation, status: int) -> Kind | None:
    """Return the kind of error of dockerd's response, or None if the operation succeeded.

    304 means that the container was stopped, or running, already: nothing was started, but what is stopped is stopped,
    and plugins were not notified if it exited by itself.
    """
    if status < _FIRST_ERROR or (status == _NOT_MODIFIED and operation in (Operation.STOP, Operation.KILL)):
        return None
    return _KIND.get(status, Kind.INTERNAL)


def name_of(status: int) -> str:
    """Return a status as ``tap`` shows it."""
    if status < 400:
        return "OK" if status else ""
    try:
        return f"{status} {http.HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
