"""What is said of one object: a state, a reason in one word and a message for people."""

import enum

import msgspec


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
