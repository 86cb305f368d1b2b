"""Conditions as they are published in the status of an object."""

from typing import Final

from governor.domain.conditions import Condition, Status
from governor.kube.controller import conditions as kube
from governor.values.printing import one_line

MAX_MESSAGE: Final = 1024
MAX_LINE: Final = 256
"""Length of a message in a list of many."""


def published(condition: Condition) -> kube.Condition:
    """Return a condition as it is stored, with a bounded message."""
    return kube.Condition(
        condition.type, condition.status.value, condition.reason, shortened(condition.message, MAX_MESSAGE)
    )


def met(condition_type: str, reason: str, message: str) -> Condition:
    """Return a condition that holds."""
    return Condition(condition_type, Status.TRUE, reason, message)


def unmet(condition_type: str, reason: str, message: str) -> Condition:
    """Return a condition that does not hold."""
    return Condition(condition_type, Status.FALSE, reason, message)


def shortened(text: str, limit: int = MAX_LINE) -> str:
    """Return a text on one line of at most this many characters."""
    line = one_line(text)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
