"""How what each sidecar showed becomes what is reported."""

from datetime import UTC, datetime

import pytest

from governor.agent.verification.findings import combine, rejected, rolled_back, uniform
from governor.domain.documents import ResourceRef
from governor.domain.reports import Evidence, Finding, State

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE, TWO = (ResourceRef("Component", "default", name) for name in ("one", "two"))
RECEIVED = Evidence("agent", NOW, "received")


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
def test_a_resource_is_only_as_far_as_its_slowest_sidecar_and_says_why_last(states: list[State], worst: State) -> None:
    shown = {f"app-{number}": {ONE: finding(state)} for number, state in enumerate(states)}
    found = combine([ONE], shown, NOW, RECEIVED)
    assert found.resources[0].state is worst
    assert found.resources[0].evidence[0] == RECEIVED
    assert found.resources[0].evidence[-1].text == worst
    assert found.verified is (worst is State.VERIFIED)


def test_a_resource_that_no_sidecar_is_meant_to_load_is_verified_and_says_so() -> None:
    found = combine([ONE, TWO], {"app": {ONE: finding(State.UNPROVEN)}}, NOW)
    assert [each.state for each in found.resources] == [State.UNPROVEN, State.VERIFIED]
    assert "no sidecar is in its scope" in found.resources[1].evidence[-1].text
    assert found.workloads[0].state is State.UNPROVEN


def test_a_sidecar_with_nothing_in_its_scope_has_nothing_to_prove() -> None:
    found = combine([], {"app": {}}, NOW)
    assert found.verified


def test_a_refusal_fails_what_is_at_fault_and_leaves_the_rest_received() -> None:
    found = rejected({ONE: "it is foreign"}, [ONE, TWO], ["app"], NOW, RECEIVED)
    assert [each.state for each in found.resources] == [State.FAILED, State.RECEIVED]
    assert found.resources[0].evidence[-1].text == "it is foreign"
    assert not found.verified


def test_one_state_can_be_said_of_everything() -> None:
    found = uniform(State.APPLIED, [ONE, TWO], ["app"], RECEIVED)
    assert {each.state for each in (*found.resources, *found.workloads)} == {State.APPLIED}


def test_what_is_taken_back_is_failed_where_it_failed_and_says_what_is_used_instead() -> None:
    shown = {"app": {ONE: finding(State.FAILED, "it broke"), TWO: finding(State.VERIFIED)}}
    found = rolled_back(combine([ONE, TWO], shown, NOW, RECEIVED), NOW, "rolled back to another bundle; verified")
    assert [each.state for each in found.resources] == [State.FAILED, State.RECEIVED]
    assert [each.evidence[-1].text for each in found.resources] == [
        "it broke",
        "rolled back to another bundle; verified",
    ]
    assert found.workloads[0].state is State.FAILED
    assert [each.text for each in found.workloads[0].evidence] == [
        "it broke",
        "rolled back to another bundle; verified",
    ]


def test_a_refusal_that_is_taken_back_leaves_the_workloads_untouched() -> None:
    found = rolled_back(rejected({ONE: "it is foreign"}, [ONE], ["app"], NOW), NOW, "stayed at another bundle")
    assert (found.resources[0].state, found.workloads[0].state) == (State.FAILED, State.RECEIVED)
