"""Which Events the findings of deliveries are worth."""

from governor.agent.platforms.kubernetes.visibility.notices import (
    Current,
    Subject,
    contents_of,
    drift_states,
    states_of,
    transitions,
)
from governor.agent.verification.findings import DriftFindings, Findings, rejected, uniform
from governor.domain.bundles import Delivery
from governor.domain.reports import Cause, Evidence, State
from governor.kube.controller.events import EventType
from tests.unit.agent.platforms.kubernetes.visibility.bed import (
    DIGEST,
    NOW,
    component,
    delivery,
    found,
    of_orders,
    ref,
    workload,
)


class Memory:
    """What was announced so far."""

    def __init__(self) -> None:
        self._last: dict[Subject, Current] = {}

    def report(self, delivered: Delivery, result: Findings) -> dict[str, list[str]]:
        """Return the reasons of the Events that are due, by the name of their object."""
        return self._update(states_of(delivered, contents_of(delivered, "default"), result))

    def drift(self, delivered: Delivery, text: str = "spec was changed by kubectl") -> dict[str, list[str]]:
        drift = DriftFindings({ref(): text}, (workload(),), "api-server")
        return self._update(drift_states(delivered, contents_of(delivered, "default"), drift))

    def _update(self, states: dict[Subject, Current]) -> dict[str, list[str]]:
        self._last, due = transitions(self._last, states)
        self.messages = [notice.message for _, notice in due]
        self.types = {notice.reason: notice.type for _, notice in due}
        reasons: dict[str, list[str]] = {}
        for subject, notice in due:
            reasons.setdefault(subject.name, []).append(notice.reason)
        return reasons


def test_a_change_is_announced_once_when_applied_and_with_its_workloads_when_verified() -> None:
    memory, one = Memory(), delivery(component())
    assert memory.report(one, of_orders(one, State.APPLIED, State.APPLIED)) == {"store": ["Applied"]}
    assert memory.report(one, of_orders(one, State.VERIFIED, State.APPLIED)) == {}
    assert memory.report(one, of_orders(one, State.VERIFIED, State.VERIFIED)) == {
        "store": ["Verified"],
        "orders": ["Verified"],
    }
    assert memory.messages == [
        f"delivery 1: in use by 1 workload (digest {DIGEST})",
        f"2/2 instances use digest {DIGEST}",
    ]
    # A resync, also one that has to ask a new pod first.
    assert memory.report(one, of_orders(one, State.VERIFIED, State.VERIFIED, State.APPLIED)) == {}
    assert memory.report(one, of_orders(one, State.VERIFIED, State.VERIFIED, State.VERIFIED)) == {}


def test_what_a_restarted_agent_finds_verified_is_no_transition() -> None:
    memory, one = Memory(), delivery(component())
    assert memory.report(one, of_orders(one, State.VERIFIED)) == {}
    assert memory.report(one, of_orders(one, State.FAILED)) == {"store": ["Failed"], "orders": ["Failed"]}


def test_an_unchanged_resource_and_a_workload_that_does_not_load_the_change_get_no_event() -> None:
    memory = Memory()
    store, other = component(), component("other")
    first = delivery(store, other)
    loaded = {workload(): {ref(): [State.VERIFIED]}, workload("pay"): {ref("other"): [State.VERIFIED]}}
    assert memory.report(first, found(first, loaded)) == {}
    second = delivery(store, component("other", "two"), sequence=2)
    assert memory.report(second, found(second, loaded)) == {"other": ["Verified"], "pay": ["Verified"]}


def test_a_workload_without_dapr_resources_in_its_scope_gets_no_event() -> None:
    memory, one = Memory(), delivery(component())
    for state, expected in (
        (State.APPLIED, {"store": ["Applied"]}),
        (State.VERIFIED, {"store": ["Verified"], "orders": ["Verified"]}),
    ):
        result = found(one, {workload(): {ref(): [state]}, workload("idle"): {}})
        assert memory.report(one, result) == expected


def test_a_failure_is_a_warning_with_its_reason_and_the_return_is_announced() -> None:
    memory = Memory()
    good, bad = delivery(component()), delivery(component(host="two"), sequence=2, digest="sha256:bad")
    memory.report(good, of_orders(good, State.VERIFIED))
    memory.report(bad, of_orders(bad, State.APPLIED))
    assert memory.report(bad, of_orders(bad, State.FAILED)) == {"store": ["Failed"], "orders": ["Failed"]}
    assert memory.types == {"Failed": EventType.WARNING}
    assert memory.messages == ["it is failed"] * 2
    assert memory.report(bad, of_orders(bad, State.FAILED)) == {}
    returned = memory.report(good, of_orders(good, State.APPLIED))
    assert returned == {"store": ["RolledBack"], "orders": ["RolledBack"]}
    assert memory.messages[0].startswith("rolled back to delivery 1: ")
    assert memory.report(good, of_orders(good, State.VERIFIED)) == {"store": ["Verified"], "orders": ["Verified"]}
    assert memory.report(good, of_orders(good, State.VERIFIED)) == {}


def test_a_change_that_was_never_written_is_not_rolled_back() -> None:
    memory = Memory()
    good, bad = delivery(component()), delivery(component(host="two"), sequence=2)
    memory.report(good, of_orders(good, State.VERIFIED))
    refused = rejected({ref(): "no"}, [ref()], {workload(): 1}, NOW)
    assert memory.report(bad, refused) == {"store": ["Failed"]}
    assert memory.report(good, of_orders(good, State.VERIFIED)) == {"store": ["Verified"]}


def test_a_retry_of_the_same_content_is_announced_again() -> None:
    memory = Memory()
    first, again = delivery(component()), delivery(component(), attempt=2)
    assert memory.report(first, of_orders(first, State.FAILED)) == {"store": ["Failed"], "orders": ["Failed"]}
    assert memory.report(again, of_orders(again, State.FAILED)) == {"store": ["Failed"], "orders": ["Failed"]}


def test_drift_is_announced_once_and_its_repair_like_a_change() -> None:
    memory, one = Memory(), delivery(component())
    memory.report(one, of_orders(one, State.VERIFIED))
    assert memory.drift(one) == {"store": ["DriftFound"]}
    assert memory.drift(one, "the same, repaired 2 times") == {}
    assert memory.report(one, of_orders(one, State.APPLIED)) == {"store": ["Applied"]}
    assert memory.report(one, of_orders(one, State.VERIFIED)) == {"store": ["Verified"]}
    assert memory.drift(one) == {"store": ["DriftFound"]}


def test_trouble_of_the_agent_and_what_is_only_received_are_no_events_of_objects() -> None:
    memory, one = Memory(), delivery(component())
    denied = Evidence("agent", NOW, "may not patch components")
    failed = uniform(State.FAILED, [ref()], {workload(): 1}, denied, cause=Cause.AGENT)
    assert memory.report(one, failed) == {}
    assert memory.report(one, uniform(State.RECEIVED, [ref()], {workload(): 1})) == {}


def test_a_resource_without_a_workload_in_its_scope_says_so() -> None:
    memory, one = Memory(), delivery(component())
    memory.report(one, uniform(State.APPLIED, [ref()], {}))
    assert memory.report(one, found(one, {})) == {"store": ["Verified"]}
    assert "no sidecar is in its scope" in memory.messages[0]
