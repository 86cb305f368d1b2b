"""The inventory of what was found in the namespaces of a runtime."""

from typing import Any

from governor.agent.platforms.kubernetes.resources.inventory import inventory_of
from governor.domain.documents import ResourceRef
from governor.domain.inventories import FoundResource, ReloadingSidecars
from governor.domain.reports import WorkloadRef
from tests.unit.agent.platforms.kubernetes.bed import COLD, FACTS, pod, workload

OWNER = "runtime-governor.dev/owner"


def live(name: str, version: str = "v1alpha1", **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "labels": labels, "managedFields": [{"manager": "helm"}]}
    items = [{"name": "redisPassword", "value": "s3cret"}]
    spec = {"type": "state.redis", "version": "v1", "metadata": items}
    return {"apiVersion": f"dapr.io/{version}", "kind": "Component", "metadata": metadata, "spec": spec}


def test_only_free_resources_of_known_versions_have_a_masked_manifest() -> None:
    objects = [live("free"), live("owned", **{OWNER: "eu-1"}), live("newer", "v9")]
    found = inventory_of(["default"], [workload("b"), workload("a")], objects, OWNER, {})
    free, newer, owned = found.resources
    assert free.manifest is not None
    assert free.manifest["spec"]["metadata"] == [{"name": "redisPassword", "value": "***"}]
    assert newer == FoundResource(ResourceRef("Component", "default", "newer"), "", ("helm",))
    assert owned == FoundResource(ResourceRef("Component", "default", "owned"), "eu-1", ("helm",))
    assert [(each.app_ids, each.instances) for each in found.workloads] == [(("a",), 1), (("b",), 1)]


def test_sidecars_that_reported_hot_reload_are_grouped_by_what_they_load() -> None:
    ref = WorkloadRef("default", "Deployment", "orders")
    pods = [pod(ref, f"orders-{number}") for number in range(4)]
    pods += [pod(ref, "orders-4", configuration="traced"), pod(ref, "orders-5", deleting=True)]
    facts = {each.instance: FACTS for each in pods} | {pods[2].instance: COLD}
    del facts[pods[3].instance]
    [found] = inventory_of(["default"], [workload("orders", pods=tuple(pods))], [], OWNER, facts).workloads
    assert found.reloading == (
        ReloadingSidecars("1.18.3", "orders", "", 2, ("orders-0", "orders-1")),
        ReloadingSidecars("1.18.3", "orders", "traced", 1, ("orders-4",)),
    )
