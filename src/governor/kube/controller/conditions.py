"""Conditions as in Kubernetes' ``metav1.Condition``, and the pure rule that fills their times and generations."""

import datetime
from collections.abc import Iterable
from typing import Final

import msgspec

from governor.kube.readiness import Readiness, State

TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"

_STATUS_OF_STATE: Final = {State.READY: TRUE, State.UNKNOWN: UNKNOWN}


class Condition(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """One condition of an object; all fields but ``type`` may be absent in what other writers store."""

    type: str
    """What the condition is about, as one word in CamelCase."""
    status: str = UNKNOWN
    """Whether it holds: True, False or Unknown."""
    reason: str = ""
    """Why it has this status, as one word in CamelCase; most schemas require it."""
    message: str = ""
    """The same for people."""
    observed_generation: int = 0
    """Generation of the object that the condition describes; set when the status is written."""
    last_transition_time: str = ""
    """When ``status`` changed last; set when the status is written."""


def readiness_condition(readiness: Readiness, condition_type: str = "Ready") -> Condition:
    """Return the condition that reports a readiness: True, False, or Unknown if the state is unknown."""
    status = _STATUS_OF_STATE.get(readiness.state, FALSE)
    return Condition(condition_type, status, readiness.reason, readiness.message)


def merge(
    previous: Iterable[Condition], desired: Iterable[Condition], generation: int, now: datetime.datetime
) -> tuple[Condition, ...]:
    """Return the desired conditions, each type once, with their generation and the time of their last transition.

    The time is kept from ``previous`` while the status is the same. Conditions of other types are not returned: they
    belong to other writers, or are no longer desired.
    """
    before = {each.type: each for each in previous}
    after = {each.type: each for each in desired}
    return tuple(_merged(before.get(each.type), each, generation, now) for each in after.values())


def _merged(before: Condition | None, after: Condition, generation: int, now: datetime.datetime) -> Condition:
    unchanged = before is not None and before.status == after.status and before.last_transition_time
    time = before.last_transition_time if before and unchanged else format_time(now)
    return msgspec.structs.replace(after, observed_generation=generation, last_transition_time=time)


def format_time(time: datetime.datetime) -> str:
    """Format a time as ``metav1.Time``, which has no fractions of a second."""
    return time.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
