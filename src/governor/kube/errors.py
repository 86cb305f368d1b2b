"""What an API server refuses, as the product's error kinds; with what callers decide by: status, reason, causes."""

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

UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises: for what it does not expect, for a text in no encoding, for a tree too deep to walk."""
MOST_WAIT_S: Final = 3600.0
"""A wait is not believed to be longer: whatever stands between may say anything, and a clock may be years off."""

_MARKUP: Final = re.compile(r"<(style|script).*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_READ_BYTES: Final = 4096
_SHOWN: Final = 200
_MOST_DIGITS: Final = 9
_MOST_MESSAGE: Final = 4096
_MOST_CAUSES: Final = 20
_MOST_CAUSE: Final = 1024
_REASON: Final = re.compile(r"[A-Za-z]{1,64}")


class Cause(msgspec.Struct, frozen=True):
    """One reason for a refusal, mostly one field."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a Status that programs read."""

    causes: tuple[Cause, ...] | None = None
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True):
    """The body of a refusal; anything may be absent."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None
    kind: str = ""
    status: str = ""

    @property
    def from_server(self) -> bool:
        """Whether the API server said it, not something before it."""
        return self.kind == "Status"


class ApiError(GovernorError):
    """A refusal by the API server, or by something before it."""

    def __init__(self, doing: str, code: int, status: Status, retry_after_s: float | None = None) -> None:
        causes = (status.details.causes or ()) if status.details else ()
        reason = status.reason if _REASON.fullmatch(status.reason) else f"HTTP {code}"
        text = status.message[:_MOST_MESSAGE] or f"HTTP {code} and no reason given"
        told = [cause for cause in causes if cause.message][:_MOST_CAUSES]
        details = [Detail(cause.message[:_MOST_CAUSE], path=cause.field[:_MOST_CAUSE]) for cause in told]
        wait = "" if retry_after_s is None else f"; it asks to wait {retry_after_s:g} s"
        super().__init__(_kind(code, status.reason), f"kube-{_dashed(reason)}", f"{doing}: {text}{wait}", details)
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


def status_of(body: bytes) -> Status:
    """The Status in a refusal; if it is none, the beginning of what a proxy or a load balancer said in its place."""
    try:
        status = _decode_status(body)
    except UNDECODABLE:
        status = Status()
    if status.from_server:
        return status
    said = " ".join(_MARKUP.sub(" ", body[:_READ_BYTES].decode("utf-8", errors="replace")).split())
    shown = "".join(letter for letter in said if letter.isprintable())[:_SHOWN]
    who = "it seems that not the API server but something before it answered"
    return Status(message=f"{who}: {shown}" if shown else f"{who}, without a word")


def retry_after_s(header: str, status: Status, now: datetime.datetime) -> float | None:
    """How long the server asks to wait before the next attempt, if it does; at most ``MOST_WAIT_S``."""
    wait_s = _header_s(header, now)
    if wait_s is None and status.details and status.details.retry_after_seconds > 0:
        wait_s = status.details.retry_after_seconds
    return None if wait_s is None else float(min(wait_s, MOST_WAIT_S))


def _header_s(header: str, now: datetime.datetime) -> float | None:
    if header.isascii() and header.isdigit():
        return float(header[:_MOST_DIGITS])
    with contextlib.suppress(ValueError, OverflowError):
        moment = email.utils.parsedate_to_datetime(header)
        return max(0.0, (moment.astimezone(datetime.UTC) - now).total_seconds())
    return None


_decode_status = msgspec.json.Decoder(Status).decode
