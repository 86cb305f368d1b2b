"""Which changes of the runtime's objects are drift."""

from datetime import UTC, datetime

import pytest

from governor.agent.platforms.kubernetes.resources.object_watch import (
    ManagedFields,
    WatchedMetadata,
    WatchedObject,
    is_drift,
)
from governor.kube.objects import ObjectRef
from governor.kube.reflector import Added, Changed, Event, Removed

OWN = "governor-agent-r1"
REF = ObjectRef("", "Secret", "shop", "present")


def written(generation: int, **seconds: int) -> WatchedObject:
    """Return an object with its generation, and when each manager last wrote it."""
    fields = tuple(
        ManagedFields(OWN if name == "own" else name, datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC))
        for name, second in seconds.items()
    )
    return WatchedObject(WatchedMetadata("present", "shop", generation=generation, managed_fields=fields))


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Added(REF, written(1, own=1)), False),
        (Added(REF, written(1, own=1, kubectl=2)), True),
        (Changed(REF, written(1, own=1), written(2, own=2)), False),
        (Changed(REF, written(1, own=1), written(2, own=1, kubectl=2)), True),
        (Changed(REF, written(1, own=1), written(2, own=2, kubectl=2)), True),
        (Changed(REF, written(1, own=1), written(1, own=1, kubectl=2)), False),
        (Removed(REF, written(1, own=1)), True),
        (Removed(ObjectRef("", "Secret", "shop", "before"), written(1, own=1)), False),
    ],
    ids=[
        "created by the agent",
        "created by another client",
        "written by the agent",
        "written by another client",
        "written by both in one second",
        "only labels or a status",
        "an object of the delivery is gone",
        "an object that the delivery does not have is gone",
    ],
)
def test_drift_is_what_others_change_and_what_is_missing(event: Event[WatchedObject], expected: bool) -> None:
    assert is_drift(event, {REF}, OWN) is expected
