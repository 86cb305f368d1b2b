"""Modules installed, changed and upgraded through Installations and Channels."""

from governor.reconciler.release.objects import SETTINGS, owner_of
from testbed.kube.api_faults import ApiRequest
from tests.contract.kube.applyset.bed import CONFIG_MAPS, NAMESPACES, config_map
from tests.contract.kube.bed import FaultyApi
from tests.contract.kube.controller.bed import until_true
from tests.contract.reconciler.bed import CountingRenderer, runs, state
from tests.contract.reconciler.steps.bed import ModuleBed, listed


async def test_a_module_is_installed_and_a_changed_value_is_applied(bed: ModuleBed) -> None:
    await bed.add("orders")
    found = await bed.deploy("orders", values=listed(config_map("a", n="1"), config_map("b", n="1")))
    assert {each["type"]: each["status"] for each in found["status"]["conditions"]} == {
        "Resolved": "True",
        "Deployed": "True",
        "Healthy": "True",
        "Ready": "True",
    }
    first = found["status"]["lastApplied"]
    assert (first["version"], found["status"]["objects"]) == ("1.0.0", 2)
    assert "attempt" not in found["status"]
    assert await bed.data("a") == {"n": "1"}
    await bed.has_event("orders", "Normal", "Ready")
    await bed.shows("Cluster", "local", lambda each: each["status"].get("ready") == "1/1" and state(each) == "Ready")
    await bed.shows("Installation", "orders", lambda each: each["status"].get("ready") == "1/1")

    found = await bed.deploy("orders", values=listed(config_map("a", n="2")))
    assert await bed.data("a") == {"n": "2"}
    assert await bed.data("b") is None
    assert found["status"]["history"] == [first]
    assert {each for each, _ in await bed.reasons("orders")} == {"Normal"}


async def version_of(bed: ModuleBed, name: str) -> int:
    found = await bed.find(CONFIG_MAPS, name)
    return int(found["metadata"]["resourceVersion"]) if found else 0


async def test_an_edit_of_a_channel_upgrades_its_modules_in_the_order_of_their_dependencies(bed: ModuleBed) -> None:
    """The names sort against the order of the dependencies."""
    needs = {"a": ["b"], "b": ["c"], "c": ["d"], "d": []}
    for version in ("1.0.0", "2.0.0"):
        for name, others in needs.items():
            await bed.add(name, version, dependsOn=others, values=listed(config_map(name, version=version)))
    await bed.apply("Channel", "stable", {"modules": dict.fromkeys(needs, "1.0.0")})
    for name in needs:
        await bed.install(name, name, channel="stable")
    for version in ("1.0.0", "2.0.0"):
        await bed.apply("Channel", "stable", {"modules": dict.fromkeys(needs, version)})
        for name in needs:
            await bed.becomes(name, "Ready", version=version)
            assert await bed.data(name) == {"version": version}
        written = [await version_of(bed, name) for name in needs]
        assert written == sorted(written, reverse=True)


async def test_a_dependency_that_is_not_ready_is_named_and_delays_no_repair(bed: ModuleBed) -> None:
    rule = {"kind": "ConfigMap", "path": "data.open", "operator": "Equals", "value": "yes"}
    await bed.add("store", readiness={"rules": [rule]}, values=listed(config_map("store")))
    await bed.add("web", dependsOn=["store"], values=listed(config_map("web", n="1")))
    await bed.install("store", "store", drift={"mode": "off"})
    await bed.install("web", "web")
    found = await bed.becomes("web", "DependencyNotReady")
    assert found["status"]["message"] == "waiting for store, which must be ready first"
    assert await bed.data("web") is None
    await bed.has_data("store", {})
    await bed.edit("store", open="yes")
    await bed.becomes("web", "Ready")
    await bed.edit("store", open="no")
    await bed.becomes("store", "Processing")
    await bed.edit("web", n="2")
    await bed.has_data("web", {"n": "1"})


def is_write(request: ApiRequest) -> bool:
    return request.method != "GET" and "/leases" not in request.path


async def test_an_unchanged_module_causes_no_write_no_rendering_and_no_read_of_its_objects(
    idle: ModuleBed, faults: FaultyApi, renderer: CountingRenderer
) -> None:
    names = [f"m{number}" for number in range(5)]
    async with idle.reconciling():
        for name in names:
            await idle.add(name)
            await idle.install(name, name, values=listed(config_map(name, n="1")))
        before = [await idle.becomes(name, "Ready") for name in names]
        await idle.shows("Cluster", "local", lambda each: each["status"].get("ready") == "5/5")
        for name in names:
            await idle.shows("Installation", name, lambda each: each["status"].get("ready") == "1/1")
    renderer.requests.clear()
    async with idle.reconciling(faults.access) as registry:
        await until_true(lambda: runs(registry, "module-instances") >= 10)
        await until_true(lambda: runs(registry, "cluster-states") >= 2)
        requests = list(faults.requests)
    assert [each for each in requests if is_write(each)] == []
    assert renderer.requests == []
    read = [each for each in requests if "/configmaps" in each.path and not each.is_watch]
    assert {each.path for each in read} <= {"/api/v1/configmaps", f"/api/v1/namespaces/{idle.namespace}/configmaps"}
    assert [await idle.get("ModuleInstance", f"{name}.local") for name in names] == before


async def test_modules_that_are_installed_at_once_share_the_namespace_that_one_of_them_creates(bed: ModuleBed) -> None:
    names, space = [f"m{number}" for number in range(8)], f"{bed.space}-new"
    for name in names:
        await bed.add(name, namespace=space, values=listed(config_map(name)))
    for name in names:
        await bed.install(name, name)
    for name in names:
        await bed.becomes(name, "Ready")
        assert {each for each, _ in await bed.reasons(name)} <= {"Normal"}, await bed.reasons(name)
    for name in names[:-1]:
        await bed.delete("Installation", name)
    for name in names[:-1]:
        await bed.shows("ModuleInstance", f"{name}.local", lambda each: each["metadata"].get("deletionTimestamp"))
    await bed.advance(60.0)  # a namespace with contents of others is watched for 30 s
    for name in names[:-1]:
        await bed.gone("ModuleInstance", f"{name}.local")
    found = await bed.find(NAMESPACES, space)
    assert found is not None
    assert "deletionTimestamp" not in found["metadata"]
    await bed.delete("Installation", names[-1])
    await bed.finalize_namespace(space)
    await bed.gone("ModuleInstance", f"{names[-1]}.local")


async def test_a_namespace_of_a_module_whose_inventory_the_watch_does_not_show_yet_is_not_taken_over(
    bed: ModuleBed,
) -> None:
    label = {SETTINGS.owner_label: owner_of("first", bed.namespace).id}
    await bed.client.patch(NAMESPACES, bed.space, "", {"metadata": {"labels": label}}, manager="tests")
    await bed.write_inventory("first", "null", labelled=False)
    await bed.add("second", values=listed(config_map("a")))
    await bed.deploy("second")
    found = await bed.find(NAMESPACES, bed.space) or {}
    assert found["metadata"]["labels"].items() >= label.items()
    await bed.client.delete(CONFIG_MAPS, "module-first", bed.namespace)
    await bed.deploy("second", values=listed(config_map("b")))
    found = await bed.find(NAMESPACES, bed.space) or {}
    assert found["metadata"]["labels"][SETTINGS.owner_label] == owner_of("second", bed.namespace).id


async def test_generated_values_and_release_facts_stay_the_same_when_a_module_is_repaired(bed: ModuleBed) -> None:
    template = """
apiVersion: v1
kind: ConfigMap
metadata: {name: generated}
data:
  password: {{ randAlphaNum 12 }}
  install: {{ .Release.IsInstall | quote }}
  note: {{ .Values.note | quote }}
"""
    await bed.add("orders", chart=bed.write_chart("orders", generated=template))
    await bed.deploy("orders", values={"note": "1"})
    first = await bed.data("generated") or {}
    assert first["install"] == "true"
    await bed.edit("generated", password="stolen")
    await bed.has_data("generated", first)
    await bed.deploy("orders", values={"note": "2"})
    second = await bed.data("generated") or {}
    assert second == first | {"note": "2", "install": "false"}
    await bed.edit("generated", install="stolen")
    await bed.has_data("generated", second)


async def test_a_map_of_values_that_becomes_empty_is_empty_and_not_null(bed: ModuleBed) -> None:
    template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {got: {{ toJson .Values.map | quote }}}\n"
    await bed.add("orders", chart=bed.write_chart("orders", a=template))
    for found in ({"x": 1}, {}):
        await bed.deploy("orders", values={"map": found, "n": len(found)}, drift={"mode": "off"} if found else {})
        assert await bed.data("a") == {"got": '{"x":1}' if found else "{}"}
