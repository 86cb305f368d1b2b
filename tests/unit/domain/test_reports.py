"""Reports: acknowledgement, overall state, and which of two reports wins."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from governor.domain.documents import ResourceRef
from governor.domain.reports import (
    Evidence,
    Report,
    ResourceReport,
    State,
    WorkloadRef,
    WorkloadReport,
    acknowledged,
    overall,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
STORE = ResourceRef("Component", "default", "store")
APP = WorkloadRef("default", "Sidecar", "app")


def report(*states: State, workloads: tuple[State, ...] = (), **fields: Any) -> Report:
    defaults = {"runtime": "r1", "sequence": 1, "attempt": 1, "digest": "sha256:1", "session": 1, "n": 1, "agent": "a"}
    return Report(
        **{**defaults, "time": NOON, **fields},
        resources=tuple(ResourceReport(resource=STORE, state=state) for state in states),
        workloads=tuple(WorkloadReport(workload=APP, state=state) for state in workloads),
    )


@pytest.mark.parametrize("state", State)
def test_a_report_acknowledges_only_if_every_part_is_verified(state: State) -> None:
    is_verified = state is State.VERIFIED
    assert acknowledged(report(state)) is is_verified
    assert acknowledged(report(State.VERIFIED, workloads=(state,))) is is_verified
    assert acknowledged(report(state, workloads=(State.VERIFIED,))) is is_verified
    assert (overall(report(State.VERIFIED, workloads=(state,))) is State.VERIFIED) is is_verified


def test_a_report_without_parts_acknowledges() -> None:
    assert acknowledged(report())
    assert overall(report()) is State.VERIFIED


WORST_FIRST = [State.FAILED, State.UNPROVEN, State.RECEIVED, State.PREFLIGHTED, State.APPLIED, State.VERIFIED]


def test_the_overall_state_is_the_worst_of_all_parts() -> None:
    assert set(WORST_FIRST) == set(State)
    for one, other in itertools.product(State, repeat=2):
        worst = min(one, other, key=WORST_FIRST.index)
        assert overall(report(one, other)) is overall(report(one, workloads=(other,))) is worst


def test_a_report_acknowledges_exactly_if_its_overall_state_is_verified() -> None:
    for states in itertools.product(State, repeat=2):
        assert acknowledged(report(*states)) is (overall(report(*states)) is State.VERIFIED)


LATER = NOON + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("new", "old", "replaces"),
    [
        (report(n=2), report(n=1), True),
        (report(n=1), report(n=1), False),
        (report(n=1), report(n=2), False),
        (report(n=2), report(n=1, time=LATER), True),
        (report(n=1, time=LATER), report(n=2), False),
        (report(attempt=2, n=1), report(attempt=1, n=9, time=LATER), True),
        (report(attempt=1, n=9), report(attempt=2, n=1), False),
        (report(sequence=2, attempt=1), report(sequence=1, attempt=5, n=9, time=LATER), True),
        (report(sequence=1, attempt=5, n=9, time=LATER), report(sequence=2, attempt=1), False),
        (report(session=2, n=1), report(session=1, n=9, time=LATER), True),
        (report(session=1, n=9, time=LATER), report(session=2, n=1), False),
    ],
    ids=[
        "a later one",
        "the same again",
        "a late one",
        "a later one after the clock was set back",
        "a late one after the clock was set forward",
        "another attempt",
        "a late one of an earlier attempt",
        "another delivery",
        "a late one of an earlier delivery",
        "a later session after the clock was set back",
        "a late one of an earlier session",
    ],
)
def test_the_newer_report_is_greater(new: Report, old: Report, replaces: bool) -> None:
    assert (new.order > old.order) is replaces


@pytest.mark.parametrize("place", [("time",), ("resources", 0, "evidence", 0, "time")])
def test_a_time_without_a_zone_is_rejected(place: tuple[str | int, ...]) -> None:
    seen = Evidence("sidecar app", NOON, "loaded")
    whole = msgspec.structs.replace(
        report(), resources=(ResourceReport(resource=STORE, state=State.APPLIED, evidence=(seen,)),)
    )
    encoded = msgspec.to_builtins(whole)
    assert msgspec.convert(encoded, Report) == whole
    part: Any = encoded
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = "2026-01-01T12:00:00"
    with pytest.raises(msgspec.ValidationError, match="timezone"):
        msgspec.convert(encoded, Report)
