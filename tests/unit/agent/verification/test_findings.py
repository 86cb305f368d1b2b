"""Findings by sidecar are combined into a report."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import msgspec
import pytest

from governor.agent.verification.findings import (
    DriftFindings,
    Findings,
    InstanceFindings,
    beside,
    combine,
    drifted,
    postponed,
    rejected,
    rolled_back,
    uniform,
    waiting,
)
from governor.domain.documents import ResourceRef
from governor.domain.reports import Cause, Evidence, Finding, Instances, State, WorkloadRef
from governor.domain.windows import WAITING_FOR_WINDOW, Restraint

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE, TWO, THREE = (ResourceRef("Component", "default", name) for name in ("one", "two", "three"))
APP, OTHER = (WorkloadRef("default", "Sidecar", name) for name in ("app", "other"))
RECEIVED = Evidence("agent", NOW, "received")


def sidecar(name: str) -> WorkloadRef:
    return WorkloadRef("default", "Sidecar", name)


def finding(state: State, text: str = "") -> Finding:
    return Finding(state=state, evidence=(Evidence("sidecar", NOW, text or state),))


def instance(found: Mapping[ResourceRef, Finding]) -> list[InstanceFindings]:
    """Return the only instance of a workload."""
    return [InstanceFindings("process 1", found)]


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
    shown = {sidecar(f"app-{number}"): instance({ONE: finding(state)}) for number, state in enumerate(states)}
    found = combine([ONE], shown, NOW, RECEIVED)
    assert found.resources[0].state is worst
    assert found.resources[0].evidence[0] == RECEIVED
    assert found.resources[0].all_evidence[-1].text == worst
    assert [each.state for each in found.resources[0].workloads] == states
    assert found.verified is (worst is State.VERIFIED)


def test_a_resource_outside_every_scope_is_verified_with_a_note() -> None:
    found = combine([ONE, TWO], {APP: instance({ONE: finding(State.UNPROVEN)})}, NOW)
    assert [each.state for each in found.resources] == [State.UNPROVEN, State.VERIFIED]
    assert "no sidecar is in its scope" in found.resources[1].evidence[-1].text
    assert found.workloads[0].state is State.UNPROVEN


def test_a_sidecar_with_nothing_in_its_scope_is_verified() -> None:
    found = combine([], {APP: instance({})}, NOW)
    assert found.verified


def test_a_rejection_fails_the_named_resource_and_leaves_the_rest_received() -> None:
    found = rejected({ONE: "it is foreign"}, [ONE, TWO], {APP: 1}, NOW, RECEIVED)
    assert [each.state for each in found.resources] == [State.FAILED, State.RECEIVED]
    assert found.resources[0].evidence[-1].text == "it is foreign"
    assert not found.verified


def test_uniform_findings_have_one_state() -> None:
    found = uniform(State.APPLIED, [ONE, TWO], {APP: 1}, RECEIVED)
    assert {each.state for each in (*found.resources, *found.workloads)} == {State.APPLIED}


def test_a_rollback_keeps_the_failure_and_says_what_is_used_instead() -> None:
    shown = {APP: instance({ONE: finding(State.FAILED, "it broke"), TWO: finding(State.VERIFIED)})}
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
    found = rolled_back(rejected({ONE: "it is foreign"}, [ONE], {APP: 1}, NOW), NOW, "stayed at another bundle")
    assert (found.resources[0].state, found.workloads[0].state) == (State.FAILED, State.RECEIVED)


@pytest.mark.parametrize("cause", Cause)
def test_a_failure_gets_a_cause_and_only_cause_change_rejects_the_change(cause: Cause) -> None:
    shown = {
        APP: instance({ONE: finding(State.FAILED), TWO: finding(State.UNPROVEN)}),
        sidecar("b"): instance({ONE: finding(State.VERIFIED)}),
    }
    found = combine([ONE, TWO], shown, NOW).attributed(cause)
    assert [each.cause for each in found.resources] == [cause, Cause.RUNTIME]
    assert [each.cause for each in found.resources[0].workloads] == [cause, None]
    assert [each.cause for each in found.workloads] == [cause, None]
    assert found.rejects_change is (cause is Cause.CHANGE)


def test_a_known_cause_is_kept() -> None:
    found = uniform(State.FAILED, [ONE], {APP: 1}, RECEIVED, cause=Cause.AGENT).attributed(Cause.CHANGE)
    assert {each.cause for each in (*found.resources, *found.workloads)} == {Cause.AGENT}
    assert not found.rejects_change


# -- several instances of one workload -----------------------------------------------------------------------------

ORDERS = WorkloadRef("shop", "Deployment", "orders")


def pods(*states: State, cause: Cause | None = None) -> list[InstanceFindings]:
    """Return instances that found the resource in these states, each a second after the one before."""
    return [
        InstanceFindings(f"pod-{number}", {ONE: Finding(state=state, evidence=(seen(number, state),), cause=cause)})
        for number, state in enumerate(states)
    ]


def seen(number: int, text: str) -> Evidence:
    return Evidence(f"sidecar pod-{number}", NOW + timedelta(seconds=number), f"it is {text}")


@pytest.mark.parametrize(
    ("states", "state", "counts", "text"),
    [
        ([State.VERIFIED] * 20, State.VERIFIED, (20, 20, 0, 0), "20 of 20 instances verified"),
        (
            [State.VERIFIED] * 19 + [State.UNPROVEN],
            State.UNPROVEN,
            (20, 19, 0, 1),
            "19 of 20 instances verified; pod-19: it is unproven",
        ),
        (
            [State.UNPROVEN, State.VERIFIED, State.FAILED],
            State.FAILED,
            (3, 1, 1, 1),
            "1 of 3 instances verified; pod-2: it is failed; pod-0: it is unproven",
        ),
        (
            [State.FAILED] * 5,
            State.FAILED,
            (5, 0, 5, 0),
            "0 of 5 instances verified; pod-0: it is failed; pod-1: it is failed; pod-2: it is failed; and 2 more",
        ),
        ([State.VERIFIED] * 17 + [State.APPLIED] * 3, State.APPLIED, (20, 17, 0, 0), "17 of 20 instances verified"),
        (
            [State.VERIFIED, State.FAILED, State.UNPROVEN, State.APPLIED],
            State.APPLIED,
            (4, 1, 1, 1),
            "1 of 4 instances verified; pod-1: it is failed; pod-2: it is unproven",
        ),
    ],
    ids=["all verified", "one stuck", "failed before unproven", "many failed", "under way", "under way, one failed"],
)
def test_several_instances_are_one_line_that_counts_them_and_names_those_that_stalled(
    states: list[State], state: State, counts: tuple[int, ...], text: str
) -> None:
    found = combine([ONE], {ORDERS: pods(*states)}, NOW, RECEIVED)
    last = NOW + timedelta(seconds=len(states) - 1)
    [resource], [workload] = found.resources, found.workloads
    assert (resource.state, resource.evidence) == (state, (RECEIVED,))
    for each in (resource.workloads[0], workload):
        assert (each.workload, each.state, each.evidence) == (ORDERS, state, (Evidence("agent", last, text),))
    assert workload.instances == Instances(*counts)


def test_the_only_instance_of_a_workload_speaks_for_it() -> None:
    found = combine([ONE], {ORDERS: pods(State.FAILED)}, NOW)
    assert found.resources[0].workloads[0].evidence == found.workloads[0].evidence == (seen(0, State.FAILED),)


def test_an_instance_is_in_the_worst_state_of_its_resources_unless_one_is_not_judged() -> None:
    failed, verified, applied = (finding(state) for state in (State.FAILED, State.VERIFIED, State.APPLIED))
    instances = [
        InstanceFindings("a", {ONE: verified, TWO: verified}),
        InstanceFindings("b", {ONE: verified, TWO: failed}),
        InstanceFindings("c", {ONE: failed, TWO: applied}),
    ]
    found = combine([ONE, TWO], {ORDERS: instances}, NOW)
    assert found.workloads[0].instances == Instances(3, 1, 1, 0)
    assert [each.state for each in found.resources] == [State.FAILED, State.APPLIED]
    assert found.workloads[0].evidence[0].text == "1 of 3 instances verified; b: failed"


def test_counts_grow_while_a_change_is_under_way() -> None:
    shown = [
        combine([ONE], {ORDERS: pods(*[State.VERIFIED] * done, *[State.APPLIED] * (3 - done))}, NOW)
        for done in range(4)
    ]
    assert [each.workloads[0].instances.verified for each in shown] == [0, 1, 2, 3]
    assert [each.verified for each in shown] == [False, False, False, True]
    assert not any(one.equals(two) for one, two in pairwise(shown))


def test_instances_share_a_cause_only_if_all_that_are_in_the_worst_state_have_it() -> None:
    same = pods(State.FAILED, State.FAILED, cause=Cause.RUNTIME)
    mixed = [*same, *pods(State.FAILED)]
    assert combine([ONE], {ORDERS: same}, NOW).workloads[0].cause is Cause.RUNTIME
    assert combine([ONE], {ORDERS: mixed}, NOW).workloads[0].cause is None


def test_a_workload_without_instances_is_verified_with_a_note() -> None:
    found = combine([ONE], {ORDERS: []}, NOW)
    assert found.verified
    assert found.workloads[0].instances == Instances()
    assert found.workloads[0].evidence[-1].text == "it has no instance: nothing to verify"


def test_instances_with_nothing_in_their_scope_are_verified_with_one_note() -> None:
    found = combine([ONE], {ORDERS: [InstanceFindings(name, {}) for name in "ab"]}, NOW)
    assert (found.workloads[0].state, found.workloads[0].instances) == (State.VERIFIED, Instances(2, 2))
    assert found.workloads[0].evidence[-1].text == "no resource of this delivery is in its scope"


def test_drift_and_rollback_concern_every_instance() -> None:
    found = combine([ONE], {ORDERS: pods(*[State.VERIFIED] * 3)}, NOW)
    drift = drifted(found, DriftFindings({ONE: "it differs"}, (ORDERS,), "cluster"), NOW)
    assert drift.workloads[0].instances == Instances(3, 0, 0, 3)
    assert {each.evidence[-1].source for each in (*drift.resources, *drift.workloads)} == {"cluster"}
    assert rolled_back(found, NOW, "rolled back").workloads[0].instances == Instances(3, 0, 3, 0)
    assert uniform(State.RECEIVED, [ONE], {ORDERS: 3}).workloads[0].instances == Instances(3)


# -- what waits ----------------------------------------------------------------------------------------------------

WINDOW = Restraint(WAITING_FOR_WINDOW, "outside of the maintenance window (next: x)", NOW)


def test_a_delivery_that_waits_is_received_with_the_restraint_as_evidence() -> None:
    found = waiting(WINDOW, [ONE, TWO], {APP: 2}, NOW, Evidence("agent", NOW, "received"))
    assert {each.state for each in (*found.resources, *found.workloads)} == {State.RECEIVED}
    assert {each.evidence[-1].text for each in found.resources} == {WINDOW.message}
    assert (found.waits_for, found.applied, found.verified, found.workloads[0].instances.total) == (
        WINDOW,
        False,
        False,
        2,
    )


def test_nothing_is_verified_while_a_part_waits() -> None:
    verified = uniform(State.VERIFIED, [ONE], {APP: 1})
    assert not msgspec.structs.replace(verified, restraint=WINDOW).verified
    held = msgspec.structs.replace(verified, restraint=msgspec.structs.replace(WINDOW, waits=False))
    assert (held.verified, held.waits_for) == (True, None)
    assert not held.equals(verified)


def test_what_stalls_of_the_delivery_in_use_is_shown_beside_the_one_that_waits() -> None:
    found = waiting(WINDOW, [ONE, TWO], {APP: 1, OTHER: 1}, NOW)
    stalled = uniform(State.FAILED, [ONE, THREE], {APP: 1}, Evidence("file", NOW, "differs"), cause=Cause.RUNTIME)
    fine = uniform(State.VERIFIED, [TWO], {OTHER: 1})
    current = Findings((*stalled.resources, *fine.resources), (*stalled.workloads, *fine.workloads), applied=True)
    shown = beside(found, current)
    assert {each.resource: each.state for each in shown.resources} == {ONE: State.FAILED, TWO: State.RECEIVED}
    assert {each.workload: each.state for each in shown.workloads} == {APP: State.FAILED, OTHER: State.RECEIVED}
    assert (shown.waits_for, shown.applied) == (WINDOW, False)


@pytest.mark.parametrize(
    ("state", "expected", "text"),
    [
        (State.UNPROVEN, State.APPLIED, f"seen; not restarted: {WINDOW.message}"),
        (State.APPLIED, State.APPLIED, f"seen; not restarted: {WINDOW.message}"),
        (State.VERIFIED, State.VERIFIED, "seen"),
        (State.FAILED, State.FAILED, "seen"),
    ],
)
def test_what_only_a_postponed_restart_proves_is_applied_until_then(state: State, expected: State, text: str) -> None:
    evidence = (Evidence("a", NOW, "first"), Evidence("b", NOW, "seen"))
    found = postponed({ONE: Finding(state=state, evidence=evidence)}, WINDOW)[ONE]
    assert (found.state, [each.text for each in found.evidence]) == (expected, ["first", text])
