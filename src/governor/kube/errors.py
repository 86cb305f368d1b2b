"""Errors of an API server as the product's error kinds, with the status, reason and causes that callers decide by."""

import contextlib
import datetime
import email.utils
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from governor.errors import Detail, GovernorError, Kind

KIND_OF_STATUS: Final[Mapping[int, Kind]] = {
    400: Kind.INVALID,
    401: Kind.UNAUTHENTICATED,
    403: Kind.DENIED,
    404: Kind.NOT_FOUND,
    405: Kind.UNIMPLEMENTED,
    406: Kind.UNIMPLEMENTED,
    409: Kind.CONFLICT,
    410: Kind.PRECONDITION,
    413: Kind.INVALID,
    415: Kind.UNIMPLEMENTED,
    422: Kind.INVALID,
    429: Kind.EXHAUSTED,
    500: Kind.INTERNAL,
    502: Kind.UNAVAILABLE,
    503: Kind.UNAVAILABLE,
    504: Kind.DEADLINE,
}

NO_API: Final = "kube-no-api"
"""Error code of a 404 without a Status: it does not prove that the object is missing."""
DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises: for unexpected values, invalid UTF-8, and trees that are nested too deeply."""
MAX_RETRY_AFTER_S: Final = 3600.0
"""Upper bound of a requested wait: an intermediary may send any number, and a clock may be years off."""

_NOT_FOUND: Final = 404
_MARKUP: Final = re.compile(r"<(style|script).*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_MAX_PARSED_BYTES: Final = 4096
_MAX_EXCERPT: Final = 200
_MAX_DIGITS: Final = 9
_MAX_MESSAGE: Final = 4096
_MAX_CAUSES: Final = 20
_MAX_CAUSE: Final = 1024
_REASON: Final = re.compile(r"[A-Za-z]{1,64}")


class Cause(msgspec.Struct, frozen=True):
    """One cause of an error, usually one field."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """The details of a Status that callers read."""

    causes: tuple[Cause, ...] | None = None
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True):
    """The body of an error response; every field may be absent."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None
    kind: str = ""
    status: str = ""

    @property
    def from_server(self) -> bool:
        """Whether the API server sent it, not a proxy or load balancer in front of it."""
        return self.kind == "Status"


class ApiError(GovernorError):
    """An error response of the API server, or of an intermediary in front of it."""

    def __init__(self, operation: str, code: int, status: Status, retry_after_s: float | None = None) -> None:
        causes = (status.details.causes or ()) if status.details else ()
        reason = status.reason if _REASON.fullmatch(status.reason) else f"HTTP {code}"
        text = status.message[:_MAX_MESSAGE] or f"HTTP {code} without a message"
        has_no_api = code == _NOT_FOUND and not status.from_server
        if has_no_api:
            text = f"no API at this path: the kind is not served, or {text}"
        shown = [cause for cause in causes if cause.message][:_MAX_CAUSES]
        details = [Detail(cause.message[:_MAX_CAUSE], path=cause.field[:_MAX_CAUSE]) for cause in shown]
        wait = "" if retry_after_s is None else f"; retry after {retry_after_s:g} s"
        kind = Kind.UNAVAILABLE if has_no_api else _kind(code, status.reason)
        error_code = NO_API if has_no_api else f"kube-{_dashed(reason)}"
        super().__init__(kind, error_code, f"{operation}: {text}{wait}", details)
        self.status = code
        self.reason = status.reason
        self.causes = causes
        self.retry_after_s = retry_after_s
        self.from_server = status.from_server


def _kind(code: int, reason: str) -> Kind:
    if reason == "AlreadyExists":
        return Kind.EXISTS
    return KIND_OF_STATUS.get(code, Kind.INVALID if code < 500 else Kind.UNAVAILABLE)


def _dashed(reason: str) -> str:
    words = "".join(f" {letter}" if letter.isupper() else letter for letter in reason.replace("HTTP", "http"))
    return "-".join(words.lower().split())


def parse_status(body: bytes) -> Status:
    """Return the Status in an error body; for any other body, a Status that quotes the beginning of its text."""
    try:
        status = _decode_status(body)
    except DECODE_ERRORS:
        status = Status()
    if status.from_server:
        return status
    text = " ".join(_MARKUP.sub(" ", body[:_MAX_PARSED_BYTES].decode("utf-8", errors="replace")).split())
    excerpt = "".join(letter for letter in text if letter.isprintable())[:_MAX_EXCERPT]
    source = "the response seems to come from a proxy or load balancer in front of the API server"
    return Status(message=f"{source}: {excerpt}" if excerpt else f"{source}; its body is empty")


def retry_after_s(header: str, status: Status, now: datetime.datetime) -> float | None:
    """Return the wait that the server requests before a retry, at most ``MAX_RETRY_AFTER_S``; None if it does not."""
    wait_s = _header_s(header, now)
    if wait_s is None and status.details and status.details.retry_after_seconds > 0:
        wait_s = status.details.retry_after_seconds
    return None if wait_s is None else float(min(wait_s, MAX_RETRY_AFTER_S))


def _header_s(header: str, now: datetime.datetime) -> float | None:
    if header.isascii() and header.isdigit():
        return float(header[:_MAX_DIGITS])
    with contextlib.suppress(ValueError, OverflowError):
        moment = email.utils.parsedate_to_datetime(header)
        return max(0.0, (moment.astimezone(datetime.UTC) - now).total_seconds())
    return None


_decode_status = msgspec.json.Decoder(Status).decode
