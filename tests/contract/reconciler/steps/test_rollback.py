"""Changes that are rolled back by request or by policy, refused as a downgrade, or held back by a pause."""

from typing import Any

from governor.kube.objects import Object
from governor.reconciler.kinds.module_instance import MODULE_INSTANCE, ROLLBACK
from tests.contract.kube.applyset.bed import config_map, deployment
from tests.contract.reconciler.bed import LOCAL, condition, state
from tests.contract.reconciler.kill_bed import hooked
from tests.contract.reconciler.steps.bed import ModuleBed, listed


def versioned(number: int) -> Object:
    hook = hooked(config_map("hook", n=str(number)), "post-rollback")
    return listed(config_map("a", n=str(number)), config_map(f"only-{number}"), hook)


async def two_versions(bed: ModuleBed, **installation: Any) -> Object:
    """Install version 1.0.0 and upgrade to 2.0.0."""
    await bed.add("orders", "1.0.0", values=versioned(1))
    await bed.add("orders", "2.0.0", values=versioned(2))
    await bed.deploy("orders", "1.0.0", **installation)
    return await bed.deploy("orders", "2.0.0", **installation)


async def request(bed: ModuleBed, value: str | None) -> None:
    change = {"metadata": {"annotations": {ROLLBACK: value}}}
    await bed.client.patch(MODULE_INSTANCE.resource, "orders.local", bed.namespace, change, manager="user")


async def test_a_module_is_rolled_back_by_request_until_that_is_withdrawn_or_the_spec_changes(bed: ModuleBed) -> None:
    found = await two_versions(bed)
    await request(bed, str(found["metadata"]["generation"]))
    found = await bed.becomes("orders", "RolledBack")
    assert (state(found), found["status"]["actor"]) == ("Warning", "user")
    assert "2.0.0 was rolled back to 1.0.0 on request" in found["status"]["message"]
    assert found["status"]["lastApplied"]["version"] == "1.0.0"
    assert found["status"]["lastApplied"]["operation"] == "rollback"
    assert (await bed.data("a"), await bed.data("only-2")) == ({"n": "1"}, None)
    assert await bed.data("hook") == {"n": "1"}, "the rollback hook of the version that it goes back to"
    assert (condition(found, "Deployed")["status"], condition(found, "Healthy")["status"]) == ("False", "True")

    await bed.edit("a", n="drifted")
    await bed.has_data("a", {"n": "1"})
    await request(bed, None)
    await bed.becomes("orders", "Ready", version="2.0.0")
    assert await bed.data("a") == {"n": "2"}

    found = await bed.get("ModuleInstance", "orders.local")
    await request(bed, str(found["metadata"]["generation"]))
    await bed.becomes("orders", "RolledBack")
    await bed.add("orders", "2.0.1", values=versioned(3))
    found = await bed.deploy("orders", "2.0.1")
    assert "rollback" not in found["status"]
    assert await bed.data("a") == {"n": "3"}


async def test_a_failed_change_is_rolled_back_by_policy_with_its_values(bed: ModuleBed) -> None:
    await bed.apply("Cluster", "local", LOCAL | {"pendingTimeout": 1})
    await bed.add("orders")
    good, bad = listed(config_map("a", n="1")), listed(config_map("a", n="2"), deployment("never"))
    await bed.deploy("orders", values=good, onFailure="rollback")
    await bed.install("orders", "orders", values=bad, onFailure="rollback")
    found = await bed.becomes("orders", "RolledBack", values=bad)
    assert (state(found), found["status"]["actor"]) == ("Error", "operator")
    assert "1.0.0 failed and was rolled back to its earlier settings" in found["status"]["message"]
    assert found["status"]["rollback"]["cause"] == "policy"
    assert condition(found, "Escalated")["status"] == "True"
    assert await bed.data("a") == {"n": "1"}
    await bed.stop()
    await bed.start()
    await bed.edit("a", n="drifted")
    await bed.has_data("a", {"n": "1"})
    fixed = listed(config_map("a", n="3"))
    found = await bed.deploy("orders", values=fixed, onFailure="rollback")
    assert "failure" not in found["status"]
    assert await bed.data("a") == {"n": "3"}


async def test_the_first_version_has_nothing_to_go_back_to_and_a_later_failure_is_no_change(bed: ModuleBed) -> None:
    await bed.apply("Cluster", "local", LOCAL | {"pendingTimeout": 1})
    await bed.add("orders", values=listed(deployment("web")))
    await bed.install("orders", "orders", onFailure="rollback")
    await bed.shows("ModuleInstance", "orders.local", lambda each: condition(each, "Escalated"))
    await bed.ready_deployment("web", 1)
    await bed.becomes("orders", "Ready")
    await bed.write_status_of_deployment("web", available=0)
    found = await bed.shows("ModuleInstance", "orders.local", lambda each: condition(each, "Escalated"))
    assert "rollback" not in found["status"]


async def test_an_older_version_is_refused_unless_it_is_allowed(bed: ModuleBed) -> None:
    await two_versions(bed)
    await bed.install("orders", "orders", "1.0.0")
    found = await bed.becomes("orders", "Downgrade", version="1.0.0")
    assert (state(found), found["status"]["actor"]) == ("Warning", "user")
    assert "1.0.0 is older than 2.0.0, which is applied: set allowDowngrade" in found["status"]["message"]
    assert await bed.data("a") == {"n": "2"}
    await bed.deploy("orders", "1.0.0", allowDowngrade=True)
    assert await bed.data("a") == {"n": "1"}


async def test_nothing_of_a_paused_module_is_changed_and_it_can_be_removed(bed: ModuleBed) -> None:
    await bed.add("orders")
    await bed.deploy("orders", values=listed(config_map("a", n="1")))
    changed = listed(config_map("a", n="2"))
    await bed.install("orders", "orders", values=changed, paused=True)
    found = await bed.becomes("orders", "Paused", values=changed)
    assert state(found) == "Ready"
    await bed.edit("a", n="drifted")
    await bed.add("other", values=listed(config_map("b")))
    await bed.deploy("other")
    assert await bed.data("a") == {"n": "drifted"}
    await bed.install("orders", "orders", values=changed)
    await bed.has_data("a", {"n": "2"})
    await bed.install("orders", "orders", values=changed, paused=True)
    await bed.becomes("orders", "Paused")
    await bed.delete("Installation", "orders")
    await bed.gone("ModuleInstance", "orders.local")
    assert await bed.data("a") is None
