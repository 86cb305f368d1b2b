"""Findings by sidecar are combined into a report."""

from datetime import UTC, datetime

import pytest

from governor.agent.verification.findings import combine, rejected, rolled_back, uniform
from governor.domain.documents import ResourceRef
from governor.domain.reports import Cause, Evidence, Finding, State, WorkloadRef

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE, TWO = (ResourceRef("Component", "default", name) for name in ("one", "two"))
APP = WorkloadRef("default", "Sidecar", "app")
RECEIVED = Evidence("agent", NOW, "received")


def sidecar(name: str) -> WorkloadRef:
    return WorkloadRef("default", "Sidecar", name)


def finding(state: State, text: str = "") -> Finding:
    return Finding(state=state, evidence=(Evidence("sidecar", NOW, text or state),))


@pytest.mark.parametrize(
    ("states", "worst"),
    [
        ([State.VERIFIED, State.VERIFIED], State.VERIFIED),
        ([State.VERIFIED, State.UNPROVEN], State.UNPROVEN),
        ([State.FAILED, State.UNPROVEN], State.FAILED),
        ([State.APPLIED, State.VERIFIED], State.APPLIED),
    ],
)
def test_a_resource_has_the_worst_state_of_its_sidecars_with_that_evidence_last(
    states: list[State], worst: State
) -> None:
    shown = {sidecar(f"app-{number}"): {ONE: finding(state)} for number, state in enumerate(states)}
    found = combine([ONE], shown, NOW, RECEIVED)
    assert found.resources[0].state is worst
    assert found.resources[0].evidence[0] == RECEIVED
    assert found.resources[0].all_evidence[-1].text == worst
    assert [each.state for each in found.resources[0].workloads] == states
    assert found.verified is (worst is State.VERIFIED)


def test_a_resource_outside_every_scope_is_verified_with_a_note() -> None:
    found = combine([ONE, TWO], {APP: {ONE: finding(State.UNPROVEN)}}, NOW)
    assert [each.state for each in found.resources] == [State.UNPROVEN, State.VERIFIED]
    assert "no sidecar is in its scope" in found.resources[1].evidence[-1].text
    assert found.workloads[0].state is State.UNPROVEN


def test_a_sidecar_with_nothing_in_its_scope_is_verified() -> None:
    found = combine([], {APP: {}}, NOW)
    assert found.verified


def test_a_rejection_fails_the_named_resource_and_leaves_the_rest_received() -> None:
    found = rejected({ONE: "it is foreign"}, [ONE, TWO], [APP], NOW, RECEIVED)
    assert [each.state for each in found.resources] == [State.FAILED, State.RECEIVED]
    assert found.resources[0].evidence[-1].text == "it is foreign"
    assert not found.verified


def test_uniform_findings_have_one_state() -> None:
    found = uniform(State.APPLIED, [ONE, TWO], [APP], RECEIVED)
    assert {each.state for each in (*found.resources, *found.workloads)} == {State.APPLIED}


def test_a_rollback_keeps_the_failure_and_says_what_is_used_instead() -> None:
    shown = {APP: {ONE: finding(State.FAILED, "it broke"), TWO: finding(State.VERIFIED)}}
    found = rolled_back(combine([ONE, TWO], shown, NOW, RECEIVED), NOW, "rolled back to another bundle; verified")
    assert [each.state for each in found.resources] == [State.FAILED, State.RECEIVED]
    assert [each.all_evidence[-1].text for each in found.resources] == [
        "it broke",
        "rolled back to another bundle; verified",
    ]
    assert found.workloads[0].state is State.FAILED
    assert [each.text for each in found.workloads[0].evidence] == [
        "it broke",
        "rolled back to another bundle; verified",
    ]


def test_a_rejected_delivery_leaves_the_workloads_received() -> None:
    found = rolled_back(rejected({ONE: "it is foreign"}, [ONE], [APP], NOW), NOW, "stayed at another bundle")
    assert (found.resources[0].state, found.workloads[0].state) == (State.FAILED, State.RECEIVED)


@pytest.mark.parametrize("cause", Cause)
def test_a_failure_gets_a_cause_and_only_cause_change_rejects_the_change(cause: Cause) -> None:
    shown = {
        APP: {ONE: finding(State.FAILED), TWO: finding(State.UNPROVEN)},
        sidecar("b"): {ONE: finding(State.VERIFIED)},
    }
    found = combine([ONE, TWO], shown, NOW).attributed(cause)
    assert [each.cause for each in found.resources] == [cause, Cause.RUNTIME]
    assert [each.cause for each in found.resources[0].workloads] == [cause, None]
    assert [each.cause for each in found.workloads] == [cause, None]
    assert found.rejects_change is (cause is Cause.CHANGE)


def test_a_known_cause_is_kept() -> None:
    found = uniform(State.FAILED, [ONE], [APP], RECEIVED, cause=Cause.AGENT).attributed(Cause.CHANGE)
    assert {each.cause for each in (*found.resources, *found.workloads)} == {Cause.AGENT}
    assert not found.rejects_change
