"""Conditions: every state of a runtime has one, and its summary says what a person must know first."""

import itertools
from datetime import UTC, datetime

import pytest

from governor.domain.conditions import Actor, Condition, Progress, Status, connected, summarise, verified
from governor.domain.documents import ResourceRef
from governor.domain.reports import Evidence, Report, ResourceReport, State, WorkloadReport

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ISSUED = datetime(2026, 1, 1, 11, tzinfo=UTC)
PROGRESS = Progress(3, "sha256:3", ISSUED)
STORE = ResourceRef("Component", "default", "store")


def evidence(text: str, source: str = "sidecar app") -> Evidence:
    return Evidence(source, NOON, text)


def report(
    *states: State, sequence: int = 3, digest: str = "sha256:3", workloads: tuple[WorkloadReport, ...] = ()
) -> Report:
    resources = tuple(ResourceReport(resource=STORE, state=it, evidence=(evidence(f"is {it}"),)) for it in states)
    return Report("r1", sequence, 1, digest, "boot", 1, NOON, "agent", resources, workloads)


# -- Verified ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "status", "actor"),
    [
        (State.RECEIVED, Status.FALSE, Actor.NOBODY),
        (State.PREFLIGHTED, Status.FALSE, Actor.NOBODY),
        (State.APPLIED, Status.FALSE, Actor.NOBODY),
        (State.VERIFIED, Status.TRUE, Actor.NOBODY),
        (State.FAILED, Status.FALSE, Actor.EDITOR),
        (State.UNPROVEN, Status.UNKNOWN, Actor.OPERATOR),
    ],
)
def test_each_state_is_told(state: State, status: Status, actor: Actor) -> None:
    condition = verified(PROGRESS, report(state))
    assert (condition.type, condition.status, condition.reason) == ("Verified", status, state.value.capitalize())
    assert (condition.actor, condition.digest, condition.since) == (actor, "sha256:3", NOON)
    assert condition.evidence == (evidence(f"is {state}"),)
    assert condition.message


def test_only_a_report_of_verified_parts_makes_it_true() -> None:
    for states in itertools.chain.from_iterable(itertools.combinations(State, count) for count in range(1, 4)):
        condition = verified(PROGRESS, report(*states))
        assert (condition.status is Status.TRUE) is (set(states) == {State.VERIFIED})


def test_a_failure_says_which_part_failed_and_why() -> None:
    sidecar = WorkloadReport(
        workload="order-app", state=State.FAILED, evidence=(evidence("started"), evidence("exited"))
    )
    bare = WorkloadReport(workload="other-app", state=State.FAILED)
    condition = verified(PROGRESS, report(State.FAILED, State.VERIFIED, workloads=(sidecar, bare)))
    assert condition.message == "Component/default/store: is failed; order-app: exited; other-app: failed"
    assert [seen.text for seen in condition.evidence] == ["is failed", "started", "exited"]


@pytest.mark.parametrize(
    "kept", [None, report(State.VERIFIED, sequence=2), report(State.VERIFIED, digest="sha256:other")]
)
def test_a_report_of_something_else_verifies_nothing(kept: Report | None) -> None:
    condition = verified(PROGRESS, kept)
    assert (condition.status, condition.reason, condition.since) == (Status.FALSE, "Pending", ISSUED)
    assert condition.message == "delivery 3 is not confirmed by the agent yet"
    assert condition.digest == "sha256:3"


def test_nothing_to_verify_is_verified() -> None:
    assert verified(None, None).status is Status.TRUE
    assert verified(None, report(State.FAILED)).reason == "NothingToVerify"
    empty = verified(PROGRESS, report())
    assert (empty.status, empty.reason) == (Status.TRUE, "NothingToVerify")


# -- Connected -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("enrolled", "watching", "status", "reason", "actor"),
    [
        (True, True, Status.TRUE, "Watching", Actor.NOBODY),
        (True, False, Status.FALSE, "NotWatching", Actor.OPERATOR),
        (False, False, Status.FALSE, "NotEnrolled", Actor.OPERATOR),
    ],
)
def test_it_is_told_whether_the_agent_can_be_reached(
    enrolled: bool, watching: bool, status: Status, reason: str, actor: Actor
) -> None:
    condition = connected(enrolled=enrolled, watching=watching, since=NOON)
    assert (condition.type, condition.status, condition.reason, condition.actor) == ("Connected", status, reason, actor)


def test_a_revoked_key_is_told_apart_from_none() -> None:
    revoked = connected(enrolled=False, watching=False, since=None, revoked=NOON)
    anew = connected(enrolled=True, watching=True, since=NOON, revoked=NOON)
    assert (revoked.status, revoked.reason, revoked.since) == (Status.FALSE, "Revoked", NOON)
    assert (anew.status, anew.reason) == (Status.TRUE, "Watching")


# -- the summary ---------------------------------------------------------------------------------------------------

HERE = connected(enrolled=True, watching=True, since=NOON)
AWAY = connected(enrolled=True, watching=False, since=NOON)
NEVER = connected(enrolled=False, watching=False, since=None)


@pytest.mark.parametrize(
    ("about", "connection", "state", "reason", "actor"),
    [
        (verified(PROGRESS, report(State.VERIFIED)), HERE, "Verified", "Verified", Actor.NOBODY),
        (verified(PROGRESS, report(State.VERIFIED)), AWAY, "Verified,NotWatching", "NotWatching", Actor.OPERATOR),
        (verified(None, None), HERE, "NothingToVerify", "NothingToVerify", Actor.NOBODY),
        (verified(None, None), NEVER, "NothingToVerify,NotEnrolled", "NotEnrolled", Actor.OPERATOR),
        (verified(PROGRESS, None), HERE, "Pending", "Pending", Actor.NOBODY),
        (verified(PROGRESS, None), AWAY, "Pending", "NotWatching", Actor.OPERATOR),
        (verified(PROGRESS, None), NEVER, "Pending", "NotEnrolled", Actor.OPERATOR),
        (verified(PROGRESS, report(State.APPLIED)), HERE, "Applied", "Applied", Actor.NOBODY),
        (verified(PROGRESS, report(State.APPLIED)), AWAY, "Applied", "NotWatching", Actor.OPERATOR),
        (verified(PROGRESS, report(State.FAILED)), HERE, "Failed", "Failed", Actor.EDITOR),
        (verified(PROGRESS, report(State.FAILED)), AWAY, "Failed", "Failed", Actor.EDITOR),
        (verified(PROGRESS, report(State.UNPROVEN)), AWAY, "Unproven", "Unproven", Actor.OPERATOR),
    ],
)
def test_a_summary_says_how_far_it_is_and_what_keeps_it(
    about: Condition, connection: Condition, state: str, reason: str, actor: Actor
) -> None:
    summary = summarise([about, connection])
    assert (summary.state, summary.reason, summary.actor) == (state, reason, actor)
    assert summary.message == (about.message if reason == about.reason else connection.message)


def test_a_summary_does_not_depend_on_the_order_of_conditions() -> None:
    conditions = [verified(PROGRESS, report(State.VERIFIED)), AWAY, Condition("Quiet", Status.FALSE, "Loud", "m")]
    assert len({summarise(order) for order in itertools.permutations(conditions)}) == 1


def test_nothing_known_is_said_to_be_unknown() -> None:
    assert summarise([]).state == "Unknown"
