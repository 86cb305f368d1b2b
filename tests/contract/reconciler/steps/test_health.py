"""When a module is healthy: by the rules of its kinds or of its Module, within a time limit."""

from tests.contract.kube.applyset.bed import config_map, custom, definition, deployment, kind_of
from tests.contract.reconciler.bed import condition, state
from tests.contract.reconciler.steps.bed import ModuleBed, listed


async def test_a_module_is_ready_when_its_objects_are_and_overdue_after_its_time_limit(bed: ModuleBed) -> None:
    await bed.add("orders", readiness={"timeoutSeconds": 60}, values=listed(deployment("web")))
    await bed.install("orders", "orders")
    found = await bed.is_applied("orders")
    assert (state(found), condition(found, "Healthy")["status"]) == ("Processing", "False")
    await bed.advance(61.0)
    found = await bed.becomes("orders", "Error")
    assert found["status"]["message"].startswith("not ready within 60 s: 1 of 1 not ready: Deployment.apps")
    assert found["status"]["actor"] == "operator"
    await bed.ready_deployment("web", 1)
    found = await bed.becomes("orders", "Ready")
    assert found["status"]["lastApplied"]["version"] == "1.0.0"

    await bed.advance(1000.0)
    await bed.write_status_of_deployment("web", available=0)
    found = await bed.becomes("orders", "Processing")
    assert condition(found, "Healthy")["status"] == "False"
    await bed.advance(61.0)
    await bed.becomes("orders", "Error")


async def test_rules_of_the_module_decide_where_a_status_does_not_show_readiness(bed: ModuleBed) -> None:
    crd = definition("Engine", bed.group)
    kind = kind_of(crd)
    rules = [
        {"group": bed.group, "kind": "Engine", "path": "spec.speed", "operator": "AtLeast", "value": 3},
        {"kind": "ConfigMap", "name": "b", "path": "data.open", "operator": "Equals", "value": "yes"},
    ]
    values = listed(crd, custom("Engine", bed.group, "main", power=1), config_map("a"), config_map("b"))
    await bed.add("engines", readiness={"rules": rules}, values=values)
    await bed.install("engines", "engines")
    await bed.is_applied("engines")
    await bed.client.patch(kind, "main", bed.space, {"spec": {"speed": 4}}, manager="user")
    found = await bed.shows("ModuleInstance", "engines.local", lambda each: "data.open" in each["status"]["message"])
    assert state(found) == "Processing"
    await bed.edit("b", open="yes")
    await bed.becomes("engines", "Ready")
    await bed.client.patch(kind, "main", bed.space, {"spec": {"speed": 1}}, manager="user")
    await bed.becomes("engines", "Processing")
