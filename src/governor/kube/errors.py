"""What an API server refuses, as the product's error kinds; with what callers decide by: status, reason, causes."""

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


class Cause(msgspec.Struct, frozen=True):
    """One reason for a refusal, mostly one field."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a Status that programs read."""

    causes: tuple[Cause, ...] = ()
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True):
    """The body of a refusal; anything may be absent, for proxies answer too."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


class ApiError(GovernorError):
    """A refusal by the API server."""

    def __init__(self, doing: str, code: int, status: Status, retry_after_s: float | None = None) -> None:
        causes = status.details.causes if status.details else ()
        reason = status.reason or f"HTTP {code}"
        text = status.message or "no reason given"
        details = [Detail(cause.message, path=cause.field) for cause in causes if cause.message]
        super().__init__(_kind(code, status.reason), f"kube-{_dashed(reason)}", f"{doing}: {text}", details)
        self.status = code
        self.reason = status.reason
        self.causes = causes
        self.retry_after_s = retry_after_s


def _kind(code: int, reason: str) -> Kind:
    if reason == "AlreadyExists":
        return Kind.EXISTS
    return KIND_OF_STATUS.get(code, Kind.INVALID if code < 500 else Kind.UNAVAILABLE)


def _dashed(reason: str) -> str:
    words = "".join(f" {letter}" if letter.isupper() else letter for letter in reason.replace("HTTP", "http"))
    return "-".join(words.lower().split())


def status_of(body: bytes) -> Status:
    """The Status in a refusal, or what the body says in its place."""
    try:
        return msgspec.json.decode(body, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Status(message=body[:200].decode("utf-8", errors="replace").strip())
