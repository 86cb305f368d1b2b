"""What is said of one object: a state, a reason in one word and a message for people."""

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from governor.kube.objects import ObjectRef


class State(enum.StrEnum):
    """How far an object has come, from the worst to the best."""

    FAILED = "failed"
    """Refused, given up or backing off: waiting alone will hardly help. It may still recover."""
    UNKNOWN = "unknown"
    """Whoever should say so does not, or says it in a way that nobody understands."""
    TERMINATING = "terminating"
    """Its removal was asked for."""
    PROGRESSING = "progressing"
    """Waiting may help."""
    READY = "ready"


class Readiness(msgspec.Struct, frozen=True):
    """The verdict; the message of a ready object may be empty."""

    state: State
    reason: str
    message: str = ""


def ready(reason: str, message: str = "") -> Readiness:
    """It does what it is there for."""
    return Readiness(State.READY, reason, message)


def progressing(reason: str, message: str = "") -> Readiness:
    """Not yet."""
    return Readiness(State.PROGRESSING, reason, message)


def failed(reason: str, message: str = "") -> Readiness:
    """Not without somebody's help."""
    return Readiness(State.FAILED, reason, message)


def unknown(reason: str, message: str = "") -> Readiness:
    """Nobody can tell."""
    return Readiness(State.UNKNOWN, reason, message)


def terminating(reason: str, message: str = "") -> Readiness:
    """Soon not there."""
    return Readiness(State.TERMINATING, reason, message)


_WORST_FIRST: Final = {state: place for place, state in enumerate(State)}
_MOST_OF_ONE: Final = 240
_MORE: Final = "; and {} more"


def summarise(verdicts: Mapping[ObjectRef, Readiness], *, most_characters: int = 1024) -> Readiness:
    """The state and reason of the worst, and a message that names as many as fit, the worst first."""
    lacking = sorted(
        ((ref, verdict) for ref, verdict in verdicts.items() if verdict.state is not State.READY),
        key=lambda pair: (_WORST_FIRST[pair[1].state], pair[0]),
    )
    if not lacking:
        return ready("AllReady", f"all {len(verdicts)} ready") if verdicts else ready("Empty", "there is nothing")
    worst = lacking[0][1]
    count = f"{len(lacking)} of {len(verdicts)} not ready: "
    lines = [_line(ref, verdict) for ref, verdict in lacking]
    return Readiness(worst.state, worst.reason, count + _fitting(lines, most_characters - len(count)))


def _line(ref: ObjectRef, verdict: Readiness) -> str:
    what = f"{ref} {verdict.state}, {verdict.reason}"
    return _cut(f"{what}: {verdict.message}" if verdict.message else what, _MOST_OF_ONE)


def _fitting(lines: list[str], most: int) -> str:
    """As many lines as fit, and how many did not."""
    text = _cut(lines[0], most - len(_MORE) - 4)
    for number, line in enumerate(lines[1:], start=1):
        more = _MORE.format(len(lines) - number)
        if len(text) + len(line) + 2 + len(more) > most:
            return text + more
        text += f"; {line}"
    return text


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: max(0, most - 1)] + "…"
