"""Readiness of one object (state, reason and message) and the summary of many."""

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from governor.kube.objects import ObjectRef


class State(enum.StrEnum):
    """State of an object, from worst to best."""

    FAILED = "failed"
    """Rejected, given up or backing off: waiting is unlikely to help, but the object may still recover."""
    UNKNOWN = "unknown"
    """The status is missing or cannot be interpreted."""
    TERMINATING = "terminating"
    """Deletion was requested."""
    PROGRESSING = "progressing"
    """Not ready yet; waiting may help."""
    READY = "ready"


class Readiness(msgspec.Struct, frozen=True):
    """Readiness of an object; the message of a ready object may be empty."""

    state: State
    reason: str
    message: str = ""


_SEVERITY: Final = {state: place for place, state in enumerate(State)}
_MAX_LINE: Final = 240
_MORE: Final = "; and {} more"


def ready(reason: str, message: str = "") -> Readiness:
    """Return READY."""
    return Readiness(State.READY, reason, message)


def progressing(reason: str, message: str = "") -> Readiness:
    """Return PROGRESSING."""
    return Readiness(State.PROGRESSING, reason, message)


def failed(reason: str, message: str = "") -> Readiness:
    """Return FAILED."""
    return Readiness(State.FAILED, reason, message)


def unknown(reason: str, message: str = "") -> Readiness:
    """Return UNKNOWN."""
    return Readiness(State.UNKNOWN, reason, message)


def terminating(reason: str, message: str = "") -> Readiness:
    """Return TERMINATING."""
    return Readiness(State.TERMINATING, reason, message)


def summarise(objects: Mapping[ObjectRef, Readiness], *, max_characters: int = 1024) -> Readiness:
    """Return the worst state with its reason, and a message that lists as many objects as fit, the worst first."""
    not_ready = sorted(
        ((ref, readiness) for ref, readiness in objects.items() if readiness.state is not State.READY),
        key=lambda pair: (_SEVERITY[pair[1].state], pair[0]),
    )
    if not not_ready:
        return ready("AllReady", f"all {len(objects)} ready") if objects else ready("Empty", "there are no objects")
    worst = not_ready[0][1]
    count = f"{len(not_ready)} of {len(objects)} not ready: "
    lines = [_line(ref, readiness) for ref, readiness in not_ready]
    return Readiness(worst.state, worst.reason, count + _join_fitting(lines, max_characters - len(count)))


def _line(ref: ObjectRef, readiness: Readiness) -> str:
    line = f"{ref} {readiness.state}, {readiness.reason}"
    return _truncate(f"{line}: {readiness.message}" if readiness.message else line, _MAX_LINE)


def _join_fitting(lines: list[str], limit: int) -> str:
    """Return as many lines as fit, and the number of the others."""
    text = _truncate(lines[0], limit - len(_MORE) - 4)
    for number, line in enumerate(lines[1:], start=1):
        more = _MORE.format(len(lines) - number)
        if len(text) + len(line) + 2 + len(more) > limit:
            return text + more
        text += f"; {line}"
    return text


def _truncate(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(0, limit - 1)] + "…"
