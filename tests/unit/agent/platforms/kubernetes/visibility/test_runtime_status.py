"""The status of each namespace from the findings of a delivery."""

import msgspec
import yaml

from governor.agent.platforms.kubernetes.visibility.runtime_status import (
    MAX_MESSAGE,
    RUNTIME_STATUSES,
    NamespaceStatus,
    statuses_of,
)
from governor.agent.verification.findings import DriftFindings, Findings, drifted, rejected, uniform, waiting
from governor.domain.bundles import Delivery
from governor.domain.reports import Cause, Evidence, State
from governor.domain.windows import WAITING_FOR_WINDOW, Restraint
from governor.kube.controller.conditions import Condition
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
from toolchain.repository import REPOSITORY
from tools.generate_crds import VISIBILITY, definition


def status_of(delivered: Delivery, result: Findings, namespace: str = "default") -> NamespaceStatus:
    return statuses_of(delivered, result, [namespace], NOW)[namespace]


def conditions(status: NamespaceStatus) -> dict[str, Condition]:
    return {each.type: each for each in status.conditions}


def brief(status: NamespaceStatus) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in status.conditions}


def test_nineteen_of_twenty_is_not_verified_and_names_the_one() -> None:
    one = delivery(component())
    status = status_of(one, of_orders(one, *[State.VERIFIED] * 19, State.UNPROVEN))
    assert (status.instances, status.digest, status.delivery) == ("19/20", DIGEST, 1)
    assert brief(status) == {"Applied": ("True", "Applied"), "Verified": ("Unknown", "Unproven")}
    message = conditions(status)["Verified"].message
    assert message.startswith("19 of 20 instances verified; ")
    assert "pod 19" in message


def test_everything_verified() -> None:
    one = delivery(component())
    status = status_of(one, of_orders(one, State.VERIFIED, State.VERIFIED))
    assert brief(status) == {"Applied": ("True", "Applied"), "Verified": ("True", "Verified")}
    assert conditions(status)["Verified"].message == "2 of 2 instances verified"


WINDOW = Restraint(WAITING_FOR_WINDOW, "outside of the maintenance window (next: x)", NOW)


def test_a_delivery_that_waits_is_shown_with_the_restraint() -> None:
    one = delivery(component())
    status = status_of(one, waiting(WINDOW, [ref()], {workload(): 2}, NOW))
    assert brief(status) == {"Applied": ("False", "WaitingForWindow"), "Verified": ("False", "WaitingForWindow")}
    assert conditions(status)["Verified"].message == f"0 of 2 instances verified; delivery 1 waits: {WINDOW.message}"


def test_a_delivery_whose_restarts_wait_is_applied() -> None:
    one = delivery(component())
    status = status_of(one, msgspec.structs.replace(of_orders(one, State.VERIFIED, State.APPLIED), restraint=WINDOW))
    assert brief(status) == {"Applied": ("True", "Applied"), "Verified": ("False", "WaitingForWindow")}


def test_each_namespace_shows_only_its_own() -> None:
    one = delivery(component(), component(namespace="other"))
    states = {
        workload(): {ref(): [State.VERIFIED]},
        workload(namespace="other"): {ref(namespace="other"): [State.FAILED, State.VERIFIED]},
    }
    shown = statuses_of(one, found(one, states), ["default", "other", "empty"], NOW)
    assert {name: each.instances for name, each in shown.items()} == {"default": "1/1", "other": "1/2", "empty": "0/0"}
    assert [brief(each)["Verified"] for each in shown.values()] == [
        ("True", "Verified"),
        ("False", "Failed"),
        ("True", "NothingToVerify"),
    ]
    assert brief(shown["empty"])["Applied"] == ("True", "NothingToApply")


def test_what_was_not_written_is_not_applied() -> None:
    one = delivery(component(), component("other"))
    refused = rejected({ref(): "a webhook denies it"}, [ref(), ref("other")], {workload(): 1}, NOW)
    shown = conditions(status_of(one, refused))
    assert (shown["Applied"].status, shown["Applied"].reason) == ("False", "Failed")
    assert "a webhook denies it" in shown["Applied"].message
    waiting = status_of(one, uniform(State.RECEIVED, [ref()], {workload(): 1}))
    assert brief(waiting)["Applied"] == ("False", "Received")


def test_trouble_of_the_agent_is_named_as_such() -> None:
    one = delivery(component())
    denied = Evidence("agent", NOW, "may not patch components")
    status = status_of(one, uniform(State.FAILED, [ref()], {workload(): 1}, denied, cause=Cause.AGENT))
    assert brief(status) == {"Applied": ("False", "AgentFailed"), "Verified": ("False", "AgentFailed")}


def test_drift_revokes_both_conditions() -> None:
    one = delivery(component())
    drift = DriftFindings({ref(): "spec was changed by kubectl"}, (workload(),), "api-server")
    status = status_of(one, drifted(of_orders(one, State.VERIFIED), drift, NOW))
    assert brief(status) == {"Applied": ("False", "Unhealthy"), "Verified": ("False", "Unhealthy")}
    assert status.instances == "0/1"
    assert "spec was changed by kubectl" in conditions(status)["Applied"].message


def test_messages_are_redacted_and_bounded() -> None:
    one = delivery(component())
    refused = rejected({ref(): "hunter2 " * 1000}, [ref()], {}, NOW)
    [status] = statuses_of(one, refused, ["default"], NOW, lambda text: text.replace("hunter2", "***")).values()
    messages = [each.message for each in status.conditions]
    assert all(len(each) == MAX_MESSAGE and "hunter2" not in each for each in messages)


def test_the_shipped_definition_is_that_of_the_struct() -> None:
    shipped = yaml.safe_load((REPOSITORY / VISIBILITY / "runtimestatuses.yaml").read_text())
    assert shipped == definition()
    assert shipped["metadata"]["name"] == f"{RUNTIME_STATUSES.plural}.{RUNTIME_STATUSES.group}"
    [version] = shipped["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    encoded = NamespaceStatus.__struct_encode_fields__
    assert set(properties) == set(encoded)
    assert set(properties["conditions"]["items"]["properties"]) == set(Condition.__struct_encode_fields__)
