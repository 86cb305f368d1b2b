"""Failures that last: escalated by Event, condition and webhook, retried slowly, and fixed at once."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from governor.kube.objects import ApiResource, Object
from governor.reconciler import targets
from governor.reconciler.controllers import retries
from governor.reconciler.controllers.watched import RUN_ANNOTATION
from testbed.webhook_receiver import TOKEN, Receiver, receiving
from tests.contract.kube.applyset.bed import SECRETS, config_map, deployment
from tests.contract.kube.bed import FaultyApi
from tests.contract.reconciler.bed import LOCAL, condition, state
from tests.contract.reconciler.steps.bed import ModuleBed, listed

PODS = ApiResource("", "v1", "Pod", "pods", namespaced=True)
QUOTAS = ApiResource("", "v1", "ResourceQuota", "resourcequotas", namespaced=True)
NO_MEMORY = "0/3 nodes are available: 3 Insufficient memory."


@pytest.fixture
async def receiver(idle: ModuleBed) -> AsyncIterator[Receiver]:
    """A receiver, and a Secret with its URL."""
    async with receiving() as receiver:
        data = {"url": receiver.url, "token": TOKEN}
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        metadata = {"name": "tickets", "namespace": idle.namespace}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded}
        await idle.client.create(SECRETS, secret, manager="user")
        yield receiver


def escalating(**more: Any) -> Object:
    """Return the part of a Cluster's spec that escalates failures after a second, to the receiver."""
    webhook = {"urlSecret": {"name": "tickets", "key": "url"}, "tokenSecret": {"name": "tickets", "key": "token"}}
    return {"pendingTimeout": 1, "sinks": [{"name": "tickets", "webhook": webhook}]} | more


async def is_escalated(bed: ModuleBed, module: str, failure: str) -> Object:
    """Wait until the failure of a module is escalated and its sink knows it."""

    def is_so(found: Object) -> bool:
        known = found.get("status", {}).get("failure", {})
        is_known = known.get("type") == failure and known.get("notified") == ["tickets"]
        return bool(is_known) and condition(found, "Escalated").get("status") == "True"

    return await bed.shows("ModuleInstance", f"{module}.local", is_so)


async def test_a_component_that_never_becomes_ready_is_escalated_to_a_sink_that_fails_at_first(
    bed: ModuleBed, receiver: Receiver
) -> None:
    receiver.failures = [503, 500]
    await bed.apply("Cluster", "local", LOCAL | escalating())
    await bed.add("orders", values=listed(deployment("web")))
    await bed.install("orders", "orders")
    found = await is_escalated(bed, "orders", "Transient")
    assert (state(found), found["status"]["actor"]) == ("Error", "operator")
    assert "not ready for 1 s: 1 of 1 not ready: Deployment.apps" in found["status"]["message"]
    assert receiver.attempts == 3
    (received,) = receiver.accepted
    assert (received["cluster"], received["module"], received["actor"]) == ("local", "orders", "operator")
    failure = found["status"]["failure"]
    assert received["failure"] == failure["run"]
    await bed.has_event("orders", "Warning", "Escalated")
    (event,) = [each for each in await bed.events("orders") if each["reason"] == "Escalated"]
    assert event["metadata"]["annotations"][RUN_ANNOTATION] == received["run"]
    assert "the operator must act" in event["message"]

    await bed.ready_deployment("web", 1)
    found = await bed.becomes("orders", "Ready")
    assert (await receiver.has("resolved"))["failure"] == failure["run"]
    found = await bed.shows("ModuleInstance", "orders.local", lambda each: "failure" not in each["status"])
    assert condition(found, "Escalated") == {}
    await bed.has_event("orders", "Normal", "Recovered")
    assert len(receiver.accepted) == len(set(receiver.keys)) == 2


async def test_not_enough_memory_is_for_the_user_of_the_cluster(bed: ModuleBed, receiver: Receiver) -> None:
    """The pod and its condition are as controllers and the scheduler write them; e2e has real ones."""
    await bed.apply("Cluster", "local", LOCAL | escalating())
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-1", "namespace": bed.space, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": "web"}]},
    }
    await bed.client.create(PODS, pod, manager="controllers")
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_MEMORY}
    await bed.write_status(PODS, "web-1", {"phase": "Pending", "conditions": [scheduled]})
    await bed.add("orders", values=listed(deployment("web")))
    await bed.install("orders", "orders")
    found = await is_escalated(bed, "orders", "NotSchedulable")
    assert (state(found), found["status"]["actor"]) == ("Warning", "user")
    assert NO_MEMORY in found["status"]["message"]
    assert (await receiver.has("escalated", type="NotSchedulable"))["actor"] == "user"


async def test_a_cluster_whose_api_server_is_lost_is_escalated_and_resolved_when_it_answers(
    bed: ModuleBed, receiver: Receiver, faults: FaultyApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "PROBE_TIMEOUT_S", 1.0)
    monkeypatch.setattr(targets, "PROBE_INTERVAL_S", 0.2)
    monkeypatch.setattr(targets, "RETRY_INTERVAL_S", 0.1)
    await bed.add_cluster("eu", bed.plane, faults.url)
    access = {"access": {"kubeconfigSecret": {"name": "eu"}}}
    await bed.apply("Cluster", "eu", access | escalating())
    await bed.shows("Cluster", "eu", lambda each: state(each) == "Ready")
    faults.stall()
    found = await bed.shows("Cluster", "eu", lambda each: condition(each, "Escalated"))
    assert found["status"]["failure"]["type"] == "Unreachable"
    received = await receiver.has("escalated", cluster="eu")
    assert (received["module"], received["actor"], received["type"]) == ("", "operator", "Unreachable")
    faults.resume()
    await receiver.has("resolved", cluster="eu", failure=received["failure"])
    await bed.shows("Cluster", "eu", lambda each: "failure" not in each["status"] and state(each) == "Ready")


async def test_an_escalated_quota_is_retried_slowly_and_a_raised_one_is_noticed_at_once(
    bed: ModuleBed, receiver: Receiver
) -> None:
    metadata = {"name": "few", "namespace": bed.space}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata}
    await bed.client.create(QUOTAS, quota | {"spec": {"hard": {"count/configmaps": "1"}}}, manager="user")
    used = {"hard": {"count/configmaps": "1"}, "used": {"count/configmaps": "1"}}
    await bed.write_status(QUOTAS, "few", used)
    await bed.apply("Cluster", "local", LOCAL | escalating())
    await bed.add("orders", values=listed(config_map("a")))
    await bed.install("orders", "orders")
    found = await is_escalated(bed, "orders", "Quota")
    assert (state(found), found["status"]["actor"]) == ("Warning", "user")
    assert retries.SLOW_RETRY_S >= 900
    await bed.client.delete(QUOTAS, "few", bed.space)
    await bed.becomes("orders", "Ready")
    await receiver.has("resolved", type="Quota")


async def test_what_an_admission_policy_refuses_is_applied_as_soon_as_the_policy_is_gone(
    bed: ModuleBed, receiver: Receiver
) -> None:
    await bed.refuse("a")
    await bed.apply("Cluster", "local", LOCAL | escalating())
    await bed.add("orders", values=listed(config_map("a")))
    await bed.install("orders", "orders")
    await is_escalated(bed, "orders", "Admission")
    assert "not on my cluster" in (await receiver.has("escalated"))["message"]
    await bed.accept("a")
    await bed.becomes("orders", "Ready")


async def test_a_cluster_that_wants_no_retry_gives_up_until_the_spec_changes(
    bed: ModuleBed, receiver: Receiver
) -> None:
    await bed.refuse("a")
    await bed.apply("Cluster", "local", LOCAL | escalating(onTimeout="fail"))
    await bed.add("orders", values=listed(config_map("a")))
    await bed.install("orders", "orders")
    await is_escalated(bed, "orders", "Admission")
    await bed.accept("a")
    await bed.add("other", values=listed(config_map("b")))
    await bed.deploy("other")
    await bed.stop()
    await bed.start()
    await bed.deploy("other", values=listed(config_map("c")))
    assert await bed.data("a") is None, "given up, also after a restart"
    await bed.install("orders", "orders", values={"fixed": True})
    await bed.becomes("orders", "Ready")
    await receiver.has("resolved")


async def test_a_cluster_that_only_retries_escalates_nothing(bed: ModuleBed, receiver: Receiver) -> None:
    await bed.refuse("a")
    await bed.apply("Cluster", "local", LOCAL | escalating(onTimeout="retry"))
    await bed.add("orders", values=listed(config_map("a")))
    await bed.install("orders", "orders")
    await bed.becomes("orders", "NotApplied")
    await bed.advance(3600.0)
    await bed.add("other", values=listed(config_map("b")))
    await bed.deploy("other")
    found = await bed.becomes("orders", "NotApplied")
    assert "escalated" not in found["status"]["failure"]
    assert receiver.attempts == 0
    await bed.accept("a")
    await bed.becomes("orders", "Ready")


async def test_a_notification_survives_a_restart_while_the_sink_is_down(bed: ModuleBed, receiver: Receiver) -> None:
    receiver.status = 503
    await bed.apply("Cluster", "local", LOCAL | escalating())
    await bed.add("orders", values=listed(deployment("web")))
    await bed.install("orders", "orders")
    await bed.shows("ModuleInstance", "orders.local", lambda each: condition(each, "Escalated"))
    await bed.has_event("orders", "Warning", "NotNotified")
    await bed.stop()
    receiver.status = 200
    await bed.start()
    found = await is_escalated(bed, "orders", "Transient")
    (received,) = receiver.accepted
    assert received["failure"] == found["status"]["failure"]["run"]
    assert TOKEN not in json.dumps(await bed.events("orders"))


async def test_the_run_that_changed_a_status_is_in_its_events(bed: ModuleBed) -> None:
    await bed.add("orders", values=listed(config_map("a")))
    found = await bed.deploy("orders")
    await bed.has_event("orders", "Normal", "Ready")
    (event,) = [each for each in await bed.events("orders") if each["reason"] == "Ready"]
    assert event["metadata"]["annotations"][RUN_ANNOTATION] == found["status"]["run"]
    await bed.advance(5000.0)
    await bed.add("other", values=listed(config_map("b")))
    await bed.deploy("other")
    assert await bed.get("ModuleInstance", "orders.local") == found, "a run that changes nothing is not written"
