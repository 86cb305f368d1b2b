"""One line per module, and the state of many."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.domain.conditions import Actor
from governor.reconciler.kinds.module_instance import ModuleInstance, ModuleInstanceSpec
from governor.reconciler.kinds.state import ModuleLine, Problem, State
from governor.reconciler.resolution.placement import Placement
from governor.reconciler.states.module_lines import SEVERITY, by_severity, counts_of, line_of, overall
from tests.unit.reconciler.bed import CREATED, digest, instance, unreadable

SPEC = ModuleInstanceSpec("dapr", "local", "dapr", CREATED, "1.0.0", digest("1.0.0"), "dapr", "dapr")
PROBLEM = Problem("Conflict", "two of them", Actor.USER)
WANTED = Placement("dapr", "dapr", "1.0.0", SPEC)
EDITED = Placement("dapr", "dapr", "1.0.0", msgspec.structs.replace(SPEC, values={"a": 1}))
UNRESOLVED = Placement("dapr", "dapr", "2.0.0", PROBLEM)


def reported(state: str, generation: int = 1, **more: Any) -> ModuleInstance:
    status = {"state": state, "observedGeneration": generation, "reason": "Because", "message": "it is so"}
    return instance(SPEC, status=status, **more)


@pytest.mark.parametrize(
    ("placement", "entry", "state", "reason"),
    [
        (WANTED, None, State.PENDING, "NotCreated"),
        (UNRESOLVED, None, State.WARNING, "Conflict"),
        (UNRESOLVED, reported("Ready"), State.WARNING, "Conflict"),
        (WANTED, instance(SPEC), State.PENDING, "Outdated"),
        (WANTED, reported("Ready"), State.READY, "Because"),
        (WANTED, reported("Ready", generation=0), State.PROCESSING, "Outdated"),
        (EDITED, reported("Ready"), State.PROCESSING, "Outdated"),
        (EDITED, instance(msgspec.structs.replace(SPEC, hold=PROBLEM)), State.WARNING, "Conflict"),
        (EDITED, reported("Ready", deletionTimestamp="2026-01-01T00:00:00Z"), State.DELETING, "Deleting"),
        (None, reported("Ready", deletionTimestamp="2026-01-01T00:00:00Z"), State.DELETING, "Deleting"),
        (None, instance(msgspec.structs.replace(SPEC, hold=PROBLEM)), State.WARNING, "Conflict"),
        (WANTED, unreadable("dapr.local"), State.ERROR, "Unreadable"),
    ],
)
def test_a_line_shows_what_is_wanted_and_what_is_observed(
    placement: Placement | None, entry: Any, state: State, reason: str
) -> None:
    line = line_of(placement, entry)
    assert line is not None
    assert (line.module, line.state, line.reason) == ("dapr", state, reason)


def test_what_is_neither_wanted_nor_there_has_no_line() -> None:
    assert line_of(None, None) is None


def test_messages_are_short_and_on_one_line() -> None:
    problem = Problem("Reason", "a\nb\x1b[31m" + "c" * 1000, Actor.OPERATOR)
    line = line_of(Placement("dapr", "dapr", "", problem), None)
    assert line is not None
    assert line.message.startswith("a b\\x1b[31mccc")
    assert len(line.message) == 256


LINES = st.lists(st.builds(ModuleLine, st.sampled_from(["a", "b", "c"]), st.sampled_from(State)))


def test_every_state_has_its_severity() -> None:
    assert sorted(SEVERITY) == sorted(State)


@given(LINES)
def test_the_worst_line_determines_the_state_and_every_line_is_counted_once(lines: list[ModuleLine]) -> None:
    counts = counts_of(lines)
    assert counts.total == len(lines)
    assert counts.ready + counts.progressing + counts.warning + counts.error + counts.unknown == counts.total
    state = overall(lines)
    assert state is not State.DELETING
    assert (state is State.READY) == (counts.ready == counts.total)
    assert (state is State.ERROR) == bool(counts.error)
    first = by_severity(lines)[:1]
    assert all(overall(first) is state for _ in first)
