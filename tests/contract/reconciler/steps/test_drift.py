"""Objects of a module that another client changes: ignored, reported, repaired, or left to the other one."""

from governor.kube.objects import ApiResource
from tests.contract.kube.applyset.bed import CONFIG_MAPS, DEPLOYMENTS, config_map, deployment
from tests.contract.kube.bed import FaultyApi
from tests.contract.reconciler.bed import condition, state
from tests.contract.reconciler.steps.bed import ModuleBed, listed

AUTOSCALERS = ApiResource("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", namespaced=True)


async def test_drift_is_repaired_reported_or_ignored(bed: ModuleBed) -> None:
    await bed.add("orders", values=listed(config_map("a", n="1"), config_map("b", n="1")))
    await bed.deploy("orders")
    await bed.edit("a", n="2", more="kept")
    await bed.has_data("a", {"n": "1", "more": "kept"})
    await bed.client.delete(CONFIG_MAPS, "b", bed.space)
    await bed.has_data("b", {"n": "1"})

    await bed.deploy("orders", drift={"mode": "warn"})
    await bed.edit("a", "intruder", n="3")
    found = await bed.becomes("orders", "Drifted")
    assert (state(found), found["status"]["actor"]) == ("Warning", "user")
    assert found["status"]["message"] == f"ConfigMap {bed.space}/a: 1 fields were changed by intruder: data.n"
    assert condition(found, "Deployed")["status"] == "True"
    assert condition(found, "Healthy")["status"] == "False"
    await bed.has_event("orders", "Warning", "Drifted")
    await bed.edit("a", "intruder", n="1")
    await bed.becomes("orders", "Ready")
    await bed.edit("a", "intruder", n="3")
    await bed.becomes("orders", "Drifted")

    await bed.deploy("orders", drift={"mode": "off"})
    await bed.install("orders", "orders")  # enforce is the default
    await bed.has_data("a", {"n": "1", "more": "kept"})
    ignored = [{"paths": ["data.n"], "kind": "ConfigMap", "name": "a"}]
    await bed.deploy("orders", drift={"ignored": ignored})
    await bed.edit("a", n="4")
    await bed.edit("b", n="4")
    await bed.has_data("b", {"n": "1"})
    assert await bed.data("a") == {"n": "4", "more": "kept"}


async def test_a_field_that_another_manager_changes_back_each_time_is_left_to_it(bed: ModuleBed) -> None:
    await bed.add("orders", values=listed(config_map("a", n="1", m="1")))
    await bed.deploy("orders")
    for number in range(3):
        await bed.edit("a", "other-operator", n=f"again {number}")
        await bed.has_data("a", {"n": "1", "m": "1"})
    await bed.edit("a", "other-operator", n="mine")
    found = await bed.becomes("orders", "Contested")
    assert (state(found), found["status"]["actor"]) == ("Warning", "user")
    assert "changed by other-operator, and again after each repair: data.n" in found["status"]["message"]
    await bed.has_event("orders", "Warning", "Contested")
    await bed.edit("a", "user", m="2")
    await bed.has_data("a", {"n": "mine", "m": "1"})


async def test_replicas_belong_to_an_autoscaler_as_soon_as_there_is_one(bed: ModuleBed) -> None:
    await bed.add("orders", values=listed(deployment("web", replicas=1), config_map("a")))
    await bed.install("orders", "orders")
    await bed.is_applied("orders")
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    metadata = {"name": "web", "namespace": bed.space}
    spec = {"scaleTargetRef": target, "maxReplicas": 5}
    manifest = {"apiVersion": "autoscaling/v2", "kind": AUTOSCALERS.kind, "metadata": metadata, "spec": spec}
    await bed.scale("web", 2)
    await bed.has_replicas("web", 1)
    await bed.client.create(AUTOSCALERS, manifest, manager="user")
    await bed.ready_deployment("web", 1)
    await bed.becomes("orders", "Ready")
    await bed.scale("web", 4)
    await bed.edit("a", more="x")
    values = listed(deployment("web", replicas=1), config_map("a", n="2"))
    await bed.install("orders", "orders", values=values)
    await bed.has_data("a", {"n": "2", "more": "x"})
    await bed.ready_deployment("web", 4)
    await bed.becomes("orders", "Ready", values=values)
    await bed.has_replicas("web", 4)
    change = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "stolen"}]}}}}
    await bed.client.patch(DEPLOYMENTS, "web", bed.space, change, manager="user")

    async def is_repaired() -> bool:
        live = await bed.find(DEPLOYMENTS, "web") or {}
        return bool(live["spec"]["template"]["spec"]["containers"][0]["image"] == "example/one")

    await bed.until(is_repaired)
    await bed.has_replicas("web", 4)


async def test_a_comparison_that_fails_is_repeated_and_alarms_no_user(idle: ModuleBed, faults: FaultyApi) -> None:
    await idle.add("orders", values=listed(config_map("a", n="1")))
    async with idle.reconciling(faults.access):
        await idle.deploy("orders")
        is_faulty = True
        faults.answer(500, times=10_000, which=lambda each: is_faulty and "dryRun" in each.query)
        await idle.edit("a", n="2")
        await idle.becomes("orders", "NotCompared")
        is_faulty = False
        await idle.has_data("a", {"n": "1"})
        await idle.becomes("orders", "Ready")
        assert {each for each, _ in await idle.reasons("orders")} == {"Normal"}


async def test_a_module_with_drift_that_stays_can_be_upgraded(bed: ModuleBed) -> None:
    hook = config_map("hook", n="1")
    hook["metadata"]["annotations"] = {"helm.sh/hook": "post-upgrade"}
    await bed.add("orders")
    await bed.deploy("orders", drift={"mode": "warn"}, values=listed(config_map("a", n="1"), config_map("b", n="1")))
    await bed.edit("a", n="2")
    await bed.becomes("orders", "Drifted")
    values = listed(config_map("a", n="1"), config_map("c", n="1"), hook)
    await bed.install("orders", "orders", drift={"mode": "warn"}, values=values)
    found = await bed.becomes("orders", "Drifted", values=values)
    assert "attempt" not in found["status"]
    assert len(found["status"]["history"]) == 1
    assert [await bed.data(name) for name in ("a", "b", "c", "hook")] == [{"n": "2"}, None, {"n": "1"}, {"n": "1"}]
