"""Conditions of a runtime and their summary."""

import itertools
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from governor.domain.conditions import (
    PROBLEM_REASONS,
    RUNTIME_STATES,
    STALLED_REASONS,
    WAITING_REASONS,
    Actor,
    Condition,
    Progress,
    Status,
    Summary,
    changeable,
    connected,
    is_in_state,
    summarise,
    verified,
)
from governor.domain.documents import ResourceRef
from governor.domain.reports import (
    Cause,
    Evidence,
    Report,
    ResourceReport,
    State,
    WorkloadRef,
    WorkloadReport,
    acknowledged,
)
from governor.domain.windows import HELD, WAITING_FOR_WINDOW, Hold, Restraint

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
    return Report("r1", sequence, 1, digest, 1, 1, NOON, "agent", resources, workloads)


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
def test_each_state_has_its_condition(state: State, status: Status, actor: Actor) -> None:
    condition = verified(PROGRESS, report(state))
    assert (condition.type, condition.status, condition.reason) == ("Verified", status, state.value.capitalize())
    assert (condition.actor, condition.digest, condition.since) == (actor, "sha256:3", NOON)
    assert condition.evidence == (evidence(f"is {state}"),)
    assert condition.message


def test_verified_is_true_only_if_every_part_is_verified() -> None:
    for states in itertools.chain.from_iterable(itertools.combinations(State, count) for count in range(1, 4)):
        condition = verified(PROGRESS, report(*states))
        assert (condition.status is Status.TRUE) is (set(states) == {State.VERIFIED})


def test_a_failure_names_the_failed_parts_and_their_reasons() -> None:
    sidecar = WorkloadReport(
        workload=WorkloadRef("", "Sidecar", "order-app"),
        state=State.FAILED,
        evidence=(evidence("started"), evidence("exited")),
    )
    bare = WorkloadReport(workload=WorkloadRef("", "Sidecar", "other-app"), state=State.FAILED)
    condition = verified(PROGRESS, report(State.FAILED, State.VERIFIED, workloads=(sidecar, bare)))
    assert (
        condition.message == "Component/default/store: is failed; Sidecar/order-app: exited; Sidecar/other-app: failed"
    )
    assert [seen.text for seen in condition.evidence] == ["is failed", "started", "exited"]


@pytest.mark.parametrize(
    ("causes", "reason", "actor"),
    [
        ((None,), "Failed", Actor.EDITOR),
        ((Cause.CHANGE,), "Failed", Actor.EDITOR),
        ((Cause.AGENT,), "AgentFailed", Actor.OPERATOR),
        ((Cause.RUNTIME,), "Unhealthy", Actor.OPERATOR),
        ((Cause.AGENT, Cause.RUNTIME), "Unhealthy", Actor.OPERATOR),
        ((Cause.RUNTIME, Cause.CHANGE), "Failed", Actor.EDITOR),
    ],
)
def test_the_cause_of_a_failure_decides_who_must_act(
    causes: tuple[Cause | None, ...], reason: str, actor: Actor
) -> None:
    parts = tuple(
        WorkloadReport(workload=WorkloadRef("", "Sidecar", "app"), state=State.FAILED, cause=cause) for cause in causes
    )
    condition = verified(PROGRESS, report(workloads=parts))
    assert (condition.status, condition.reason, condition.actor) == (Status.FALSE, reason, actor)
    assert (reason in STALLED_REASONS) is (reason != "AgentFailed")
    assert reason in PROBLEM_REASONS


WINDOW = Restraint(WAITING_FOR_WINDOW, "outside of the maintenance window (next: x)", NOON)


@pytest.mark.parametrize("state", [State.RECEIVED, State.PREFLIGHTED, State.APPLIED, State.VERIFIED])
def test_what_waits_is_neither_verified_nor_a_failure(state: State) -> None:
    waiting = msgspec.structs.replace(report(state), restraint=WINDOW)
    condition = verified(PROGRESS, waiting)
    assert (condition.status, condition.reason, condition.actor) == (Status.FALSE, "WaitingForWindow", Actor.NOBODY)
    assert condition.message == "delivery 3 waits: outside of the maintenance window (next: x)"
    assert (condition.until, condition.since, condition.digest) == (NOON, NOON, "sha256:3")
    assert condition.evidence == (evidence(f"is {state}"),)
    assert condition.reason in WAITING_REASONS - PROBLEM_REASONS
    assert not acknowledged(waiting)
    assert summarise([condition]) == Summary(
        "WaitingForWindow", "WaitingForWindow", condition.message, Actor.NOBODY, NOON
    )


@pytest.mark.parametrize("reason", ["Verified", "Failed", "", "Later"])
def test_a_reason_that_is_not_known_is_only_waiting(reason: str) -> None:
    waiting = msgspec.structs.replace(report(State.RECEIVED), restraint=Restraint(reason, "x"))
    assert (verified(PROGRESS, waiting).status, verified(PROGRESS, waiting).reason) == (Status.FALSE, "Waiting")


@pytest.mark.parametrize("state", [State.FAILED, State.UNPROVEN])
def test_a_failure_comes_before_what_waits(state: State) -> None:
    plain, waiting = report(state), msgspec.structs.replace(report(state), restraint=WINDOW)
    condition = verified(PROGRESS, waiting)
    assert (condition.reason, condition.actor) == (verified(PROGRESS, plain).reason, verified(PROGRESS, plain).actor)
    assert condition.message.endswith("; delivery 3 waits: outside of the maintenance window (next: x)")


def test_a_restraint_for_which_nothing_waits_changes_no_state() -> None:
    held = msgspec.structs.replace(report(State.VERIFIED), restraint=msgspec.structs.replace(WINDOW, waits=False))
    assert verified(PROGRESS, held) == verified(PROGRESS, report(State.VERIFIED))
    assert acknowledged(held)


# -- Changeable ----------------------------------------------------------------------------------------------------

HOLD = Hold(NOON, "inventory")
REPORTED = Restraint(HELD, "held until later: by an annotation", NOON + timedelta(hours=1))


def test_a_runtime_is_not_changeable_while_it_is_held() -> None:
    held = changeable(HOLD, None, ISSUED)
    assert held is not None
    assert (held.type, held.status, held.reason, held.until) == ("Changeable", Status.FALSE, "Held", NOON)
    assert held.message == "held until 2026-01-01 12:00:00Z: inventory"
    assert changeable(HOLD, None, NOON) is changeable(None, None, ISSUED) is None


def test_of_two_holds_the_longer_one_is_shown() -> None:
    held = changeable(HOLD, REPORTED, ISSUED)
    assert held is not None
    assert held.message == REPORTED.message
    assert changeable(None, WINDOW, ISSUED) is None


# -- a report on another delivery ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stored", [None, report(State.VERIFIED, sequence=2), report(State.VERIFIED, digest="sha256:other")]
)
def test_a_report_on_another_delivery_leaves_the_condition_pending(stored: Report | None) -> None:
    condition = verified(PROGRESS, stored)
    assert (condition.status, condition.reason, condition.since) == (Status.FALSE, "Pending", ISSUED)
    assert condition.message == "delivery 3 is not confirmed by the agent yet"
    assert condition.digest == "sha256:3"


def test_a_runtime_with_nothing_to_verify_is_verified() -> None:
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
def test_connected_follows_enrolment_and_watch(
    enrolled: bool, watching: bool, status: Status, reason: str, actor: Actor
) -> None:
    condition = connected(enrolled=enrolled, watching=watching, since=NOON)
    assert (condition.type, condition.status, condition.reason, condition.actor) == ("Connected", status, reason, actor)


def test_a_revoked_key_has_its_own_reason_until_an_agent_enrols_again() -> None:
    revoked = connected(enrolled=False, watching=False, since=None, revoked=NOON)
    enrolled_again = connected(enrolled=True, watching=True, since=NOON, revoked=NOON)
    assert (revoked.status, revoked.reason, revoked.since) == (Status.FALSE, "Revoked", NOON)
    assert (enrolled_again.status, enrolled_again.reason) == (Status.TRUE, "Watching")


# -- the summary ---------------------------------------------------------------------------------------------------

ONLINE = connected(enrolled=True, watching=True, since=NOON)
OFFLINE = connected(enrolled=True, watching=False, since=NOON)
UNENROLLED = connected(enrolled=False, watching=False, since=None)


@pytest.mark.parametrize(
    ("about", "connection", "state", "reason", "actor"),
    [
        (verified(PROGRESS, report(State.VERIFIED)), ONLINE, "Verified", "Verified", Actor.NOBODY),
        (
            verified(PROGRESS, report(State.VERIFIED)),
            OFFLINE,
            "Verified,NotWatching",
            "NotWatching",
            Actor.OPERATOR,
        ),
        (verified(None, None), ONLINE, "NothingToVerify", "NothingToVerify", Actor.NOBODY),
        (verified(None, None), UNENROLLED, "NothingToVerify,NotEnrolled", "NotEnrolled", Actor.OPERATOR),
        (verified(PROGRESS, None), ONLINE, "Pending", "Pending", Actor.NOBODY),
        (verified(PROGRESS, None), OFFLINE, "Pending", "NotWatching", Actor.OPERATOR),
        (verified(PROGRESS, None), UNENROLLED, "Pending", "NotEnrolled", Actor.OPERATOR),
        (verified(PROGRESS, report(State.APPLIED)), ONLINE, "Applied", "Applied", Actor.NOBODY),
        (verified(PROGRESS, report(State.APPLIED)), OFFLINE, "Applied", "NotWatching", Actor.OPERATOR),
        (verified(PROGRESS, report(State.FAILED)), ONLINE, "Failed", "Failed", Actor.EDITOR),
        (verified(PROGRESS, report(State.FAILED)), OFFLINE, "Failed", "Failed", Actor.EDITOR),
        (verified(PROGRESS, report(State.UNPROVEN)), OFFLINE, "Unproven", "Unproven", Actor.OPERATOR),
    ],
)
def test_a_summary_has_the_state_and_the_condition_that_needs_action(
    about: Condition, connection: Condition, state: str, reason: str, actor: Actor
) -> None:
    summary = summarise([about, connection])
    assert (summary.state, summary.reason, summary.actor) == (state, reason, actor)
    assert summary.message == (about.message if reason == about.reason else connection.message)


def test_a_summary_does_not_depend_on_the_order_of_conditions() -> None:
    conditions = [
        verified(PROGRESS, report(State.VERIFIED)),
        OFFLINE,
        Condition("Quiet", Status.FALSE, "Loud", "m"),
    ]
    assert len({summarise(order) for order in itertools.permutations(conditions)}) == 1


def test_the_states_in_which_runtimes_are_listed_are_all_reasons() -> None:
    restraints = [None, *(Restraint(reason, "", NOON) for reason in (HELD, WAITING_FOR_WINDOW, "Later"))]
    reports = [
        msgspec.structs.replace(
            report(workloads=(WorkloadReport(workload=WorkloadRef("", "Sidecar", "a"), state=state, cause=cause),)),
            restraint=restraint,
        )
        for state, cause, restraint in itertools.product(State, (None, *Cause), restraints)
    ]
    found = {verified(None, None), verified(PROGRESS, None), *(verified(PROGRESS, each) for each in reports)}
    found |= {
        connected(enrolled=enrolled, watching=False, since=NOON, revoked=revoked, refusal=refusal)
        for enrolled, revoked, refusal in itertools.product((True, False), (None, NOON), ("", "too old"))
    }
    assert {each.reason for each in found} == set(RUNTIME_STATES)


def test_a_runtime_is_in_the_state_of_its_summary_and_of_each_unmet_condition() -> None:
    offline = connected(enrolled=True, watching=False, since=NOON)
    pending, done = (verified(PROGRESS, None), offline), (verified(PROGRESS, report(State.VERIFIED)), offline)
    found = [
        [state for state in RUNTIME_STATES if is_in_state(state, summarise(each), each)] for each in (pending, done)
    ]
    assert found == [["Pending", "NotWatching"], ["Verified", "NotWatching"]]


def test_a_summary_without_conditions_is_unknown() -> None:
    assert summarise([]).state == "Unknown"
