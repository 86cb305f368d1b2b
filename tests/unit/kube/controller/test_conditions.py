"""Conditions and the status that contains them: the pure merge, in tables."""

import datetime

import pytest

from governor.kube.controller.conditions import Condition, merge, readiness_condition
from governor.kube.controller.status import is_changed, merge_status
from governor.kube.controller.views import Status
from governor.kube.readiness.state import failed, progressing, ready, terminating, unknown

NOW = datetime.datetime(2026, 5, 1, 12, 0, 0, 999, tzinfo=datetime.UTC)
NOW_TEXT = "2026-05-01T12:00:00Z"
OLD = "2020-01-01T00:00:00Z"


def stored(status: str = "True", reason: str = "R", message: str = "m", generation: int = 1) -> Condition:
    return Condition("Ready", status, reason, message, generation, OLD)


@pytest.mark.parametrize(
    ("previous", "desired", "time"),
    [
        ((), Condition("Ready", "True", "R"), NOW_TEXT),
        ((stored(),), Condition("Ready", "True", "R", "m"), OLD),
        ((stored(),), Condition("Ready", "True", "Other", "other"), OLD),
        ((stored(),), Condition("Ready", "False", "R", "m"), NOW_TEXT),
        ((stored("Unknown"),), Condition("Ready", "False", "R"), NOW_TEXT),
        ((Condition("Ready", "True", "R"),), Condition("Ready", "True", "R"), NOW_TEXT),
        ((Condition("Other", "True", "R", "", 1, OLD),), Condition("Ready", "True", "R"), NOW_TEXT),
    ],
    ids=["new", "same", "other reason", "other status", "from unknown", "stored without a time", "other type"],
)
def test_the_transition_time_changes_only_with_the_status(
    previous: tuple[Condition, ...], desired: Condition, time: str
) -> None:
    (merged,) = merge(previous, [desired], 7, NOW)
    assert merged == Condition("Ready", desired.status, desired.reason, desired.message, 7, time)


def test_only_desired_conditions_are_returned_and_the_last_of_a_type_wins() -> None:
    others = [Condition("Other", "True", "R"), stored()]
    merged = merge(others, [Condition("Ready", "False", "A"), Condition("Ready", "True", "B")], 1, NOW)
    assert [(each.type, each.reason, each.last_transition_time) for each in merged] == [("Ready", "B", OLD)]


@pytest.mark.parametrize(
    ("readiness", "status"),
    [
        (ready("Available"), "True"),
        (progressing("RollingOut"), "False"),
        (failed("Crash"), "False"),
        (terminating("Gone"), "False"),
        (unknown("NoStatus"), "Unknown"),
    ],
)
def test_a_readiness_becomes_a_condition(readiness: object, status: str) -> None:
    condition = readiness_condition(readiness)  # type: ignore[arg-type]
    assert (condition.type, condition.status) == ("Ready", status)


class _Status(Status, frozen=True):
    url: str = ""


FOREIGN = Condition("Other", "True", "R", "", 1, OLD)


@pytest.mark.parametrize(
    ("previous", "desired", "generation", "changed"),
    [
        (_Status(1, (stored(),), "u"), _Status(conditions=(Condition("Ready", "True", "R", "m"),), url="u"), 1, False),
        (_Status(1, (FOREIGN, stored()), "u"), _Status(conditions=(stored(),), url="u"), 1, False),
        (_Status(1, (stored(),), "u"), _Status(conditions=(stored(),), url="v"), 1, True),
        (_Status(1, (stored(),), "u"), _Status(conditions=(stored(),), url="u"), 2, True),
        (_Status(1, (stored(),)), _Status(conditions=(stored(message="n"),)), 1, True),
        (_Status(1), _Status(conditions=(stored(),)), 1, True),
    ],
    ids=["same", "foreign condition", "other field", "new generation", "other message", "new condition"],
)
def test_a_status_is_written_only_if_it_changes(
    previous: _Status, desired: _Status, generation: int, changed: bool
) -> None:
    merged = merge_status(previous, desired, generation, NOW)
    assert merged.observed_generation == generation
    assert is_changed(previous, merged) is changed
