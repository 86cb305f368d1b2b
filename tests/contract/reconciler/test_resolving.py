"""From Installations to ModuleInstances and back to status, on a real API server."""

import datetime

import msgspec

from governor.kube.client import Request
from governor.kube.objects import Object
from governor.process.clock import SystemClock
from governor.reconciler.charts.digests import digest_of
from governor.reconciler.kinds.installation import INSTALLATION
from governor.reconciler.setup.definitions import DefinitionInstaller
from testbed.kube.api_faults import ApiRequest
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.applyset.bed import DEFINITIONS
from tests.contract.kube.bed import FaultyApi
from tests.contract.kube.controller.bed import event_reasons, until_true
from tests.contract.reconciler.bed import CHART, LOCAL, RESOURCES, HubBed, condition, reason, runs, state


def version(found: Object) -> str:
    return str(found["spec"]["version"])


async def test_an_edit_of_a_channel_moves_all_its_modules_and_a_deletion_removes_them(
    hub: HubBed, control_plane: ControlPlane
) -> None:
    async with hub.reconciling():
        await hub.apply("Cluster", "local", LOCAL, region="eu")
        for name in ("dapr", "redis"):
            await hub.add_module(name)
            await hub.add_module(name, "2.0.0")
            await hub.install(name, name, channel="stable", valuesFromLabels={"global.region": "region"})
        await hub.shows("Installation", "dapr", lambda each: reason(each) == "ChannelMissing")
        await hub.apply("Channel", "stable", {"modules": {"dapr": "1.0.0", "redis": "1.0.0"}})
        first = await hub.shows("ModuleInstance", "dapr.local", lambda each: state(each) == "Ready")
        assert first["spec"]["values"] == {"global": {"region": "eu"}}
        assert first["spec"]["chartDigest"] == digest_of(CHART)
        await hub.shows("Channel", "stable", lambda each: reason(each, "Complete") == "Complete")
        await hub.shows("Installation", "dapr", lambda each: reason(each) == "Resolved")

        await hub.apply("Channel", "stable", {"modules": {"dapr": "2.0.0", "redis": "2.0.0"}})
        for name in ("dapr.local", "redis.local"):
            moved = await hub.shows("ModuleInstance", name, lambda each: version(each) == "2.0.0")
        await hub.shows("Cluster", "local", lambda each: each["status"]["ready"] == "2/2")
        assert moved["metadata"]["uid"] == (await hub.get("ModuleInstance", "redis.local"))["metadata"]["uid"]
        listed = await control_plane.kubectl("get", "gcl", "--namespace", hub.namespace)
        assert listed.splitlines()[0].split() == ["NAME", "STATE", "MODULES", "REACHABLE", "VERSION", "AGE"]

        await hub.delete("Installation", "dapr")
        await hub.gone("ModuleInstance", "dapr.local")
        await hub.delete("Installation", "redis")
        await hub.gone("ModuleInstance", "redis.local")
        await hub.shows("Cluster", "local", lambda each: each["status"]["ready"] == "0/0" and state(each) == "Ready")
        await hub.delete("Cluster", "local")
        await hub.gone("Cluster", "local")


async def test_a_selector_places_a_module_on_each_cluster_that_has_the_labels(hub: HubBed) -> None:
    async with hub.reconciling():
        await hub.add_module("dapr")
        await hub.install("dapr", "dapr", clusterSelector={"matchLabels": {"env": "prod"}})
        await hub.shows("Installation", "dapr", lambda each: reason(each) == "NoClusters")
        for name in ("a", "b"):
            await hub.apply("Cluster", name, LOCAL, env="prod")
        await hub.shows("Installation", "dapr", lambda each: each["status"].get("ready") == "2/2")
        await hub.shows("ModuleInstance", "dapr.b", state)
        await hub.apply("Cluster", "b", LOCAL, env="test")
        await hub.gone("ModuleInstance", "dapr.b")
        assert set(await hub.instances()) == {"dapr.a"}
        await hub.shows("Installation", "dapr", lambda each: each["status"].get("ready") == "1/1")
        await hub.install("dapr", "dapr", clusterSelector={})
        await hub.shows("ModuleInstance", "dapr.b", state)


async def test_two_installations_of_a_module_are_a_conflict_on_both_and_its_end_reinstalls_nothing(hub: HubBed) -> None:
    async with hub.reconciling():
        await hub.apply("Cluster", "local", LOCAL)
        await hub.add_module("dapr")
        await hub.add_module("dapr", "2.0.0")
        await hub.install("old", "dapr")
        first = await hub.shows("ModuleInstance", "dapr.local", state)
        await hub.install("new", "dapr", "2.0.0")
        for name in ("old", "new"):
            found = await hub.shows("Installation", name, lambda each: reason(each) == "Conflict")
            assert condition(found, "Resolved")["status"] == "False"
            assert "Installations new, old enable dapr" in condition(found, "Resolved")["message"]
        held = await hub.shows("ModuleInstance", "dapr.local", lambda each: state(each) == "Warning")
        assert version(held) == "1.0.0"
        assert held["spec"]["hold"]["reason"] == "Conflict"
        assert held["status"]["actor"] == "user"

        await hub.delete("Installation", "old")
        moved = await hub.shows("ModuleInstance", "dapr.local", lambda each: version(each) == "2.0.0")
        assert "hold" not in moved["spec"]
        assert moved["metadata"]["uid"] == first["metadata"]["uid"]
        await hub.shows("Installation", "new", lambda each: reason(each) == "Resolved")
        assert "Conflict" in await event_reasons(hub.client, "new", hub.namespace)


async def test_what_can_no_longer_be_resolved_stays_as_it_is(hub: HubBed) -> None:
    async with hub.reconciling():
        await hub.apply("Cluster", "local", LOCAL)
        await hub.add_module("dapr")
        await hub.install("dapr", "dapr")
        first = await hub.shows("ModuleInstance", "dapr.local", state)
        await hub.install("dapr", "dapr", "2.0.0")
        held = await hub.shows("ModuleInstance", "dapr.local", lambda each: state(each) == "Warning")
        assert held["metadata"]["uid"] == first["metadata"]["uid"]
        assert held["spec"]["hold"]["reason"] == "ModuleMissing"
        shown = await hub.shows("Cluster", "local", lambda each: state(each) == "Warning")
        (line,) = shown["status"]["modules"]
        assert (line["module"], line["reason"], line["actor"]) == ("dapr", "ModuleMissing", "user")
        await hub.add_module("dapr", "2.0.0")
        await hub.shows("ModuleInstance", "dapr.local", lambda each: version(each) == "2.0.0")


async def test_a_cycle_of_dependencies_is_named_and_nothing_of_it_is_applied(hub: HubBed) -> None:
    async with hub.reconciling():
        await hub.apply("Cluster", "local", LOCAL)
        await hub.add_module("a", dependsOn=["b"])
        await hub.install("a", "a")
        await hub.shows("Installation", "a", lambda each: reason(each) == "DependencyMissing")
        await hub.add_module("b", dependsOn=["a"])
        await hub.install("b", "b")
        found = await hub.shows("Installation", "a", lambda each: reason(each) == "DependencyCycle")
        assert "a → b → a" in condition(found, "Resolved")["message"]
        await hub.shows("Cluster", "local", lambda each: state(each) == "Error" and each["status"]["ready"] == "0/2")
        assert not await hub.instances()
        await hub.add_module("b", "2.0.0")
        await hub.install("b", "b", "2.0.0")
        for name in ("a.local", "b.local"):
            await hub.shows("ModuleInstance", name, state)
        await hub.shows("Installation", "a", lambda each: reason(each) == "Resolved")


async def test_edits_of_a_module_instance_are_undone_and_one_that_a_user_made_is_not_worked_on(hub: HubBed) -> None:
    async with hub.reconciling():
        await hub.apply("Cluster", "local", LOCAL)
        await hub.add_module("dapr")
        await hub.install("dapr", "dapr")
        found = await hub.shows("ModuleInstance", "dapr.local", state)
        resource = RESOURCES["ModuleInstance"]
        change = {"spec": {"namespace": "elsewhere", "values": {"hacked": True}}}
        await hub.client.patch(resource, "dapr.local", hub.namespace, change, manager="user")
        await hub.shows("ModuleInstance", "dapr.local", lambda each: each["spec"]["namespace"] == "default")
        await hub.client.delete(resource, "dapr.local", hub.namespace)
        await hub.shows("ModuleInstance", "dapr.local", state)

        spec = found["spec"] | {"module": "mine"}
        await hub.apply("ModuleInstance", "mine.local", spec)
        shown = await hub.shows("ModuleInstance", "mine.local", lambda each: state(each) == "Warning")
        assert shown["status"]["reason"] == "NotManaged"


async def test_an_unreadable_module_is_a_problem_of_its_installation_alone(hub: HubBed) -> None:
    """The API server cannot check the value of a readiness rule."""
    rule = {"kind": "Site", "path": "status.n", "operator": "AtLeast", "value": "many"}
    async with hub.reconciling():
        await hub.apply("Cluster", "local", LOCAL)
        await hub.add_module("bad", readiness={"rules": [rule]})
        await hub.add_module("good")
        for name in ("bad", "good"):
            await hub.install(name, name)
        found = await hub.shows("Installation", "bad", lambda each: reason(each) == "ModuleUnreadable")
        assert "AtLeast needs a number" in condition(found, "Resolved")["message"]
        await hub.shows("ModuleInstance", "good.local", state)


async def test_a_restart_on_a_compliant_hub_writes_nothing_but_the_lease(hub: HubBed, faults: FaultyApi) -> None:
    async with hub.reconciling():
        await hub.apply("Cluster", "local", LOCAL)
        await hub.apply("Channel", "stable", {"modules": {}})
        for number in range(20):
            await hub.add_module(f"m{number}")
            await hub.install(f"m{number}", f"m{number}", values={"a": number, "b": [1.5, True, None]})
        await hub.shows("Cluster", "local", lambda each: each.get("status", {}).get("ready") == "20/20")
        for number in range(20):
            await hub.shows("Installation", f"m{number}", lambda each: reason(each) == "Resolved")
            await hub.shows("Installation", f"m{number}", lambda each: each["status"].get("ready") == "1/1")
        settled = await hub.get("Cluster", "local")
    before = await hub.instances()

    def is_write(request: ApiRequest) -> bool:
        return request.method != "GET" and "/leases" not in request.path

    async with hub.reconciling(faults.access) as registry:
        await until_true(lambda: runs(registry, "module-instances") >= 20)
        await until_true(lambda: runs(registry, "installations") >= 20 and runs(registry, "clusters") >= 1)
        await until_true(lambda: faults.count(lambda each: each.path == "/version") == 2)
        await until_true(lambda: runs(registry, "cluster-states") >= 2)
        assert [each for each in faults.requests if is_write(each)] == []
        listed = [each.path for each in faults.requests if each.path == RESOURCES["ModuleInstance"].path(hub.namespace)]
        assert len(listed) == 2, "one list and one watch"
    assert await hub.instances() == before
    assert await hub.get("Cluster", "local") == settled


async def test_a_cache_that_lacks_an_installation_removes_nothing(hub: HubBed, faults: FaultyApi) -> None:
    """The API server answers the first list of Installations with an empty one, as a lagging server may."""
    async with hub.reconciling():
        await hub.apply("Cluster", "local", LOCAL)
        await hub.add_module("dapr")
        await hub.install("dapr", "dapr")
        await hub.shows("ModuleInstance", "dapr.local", state)
    before = await hub.instances()
    path = INSTALLATION.resource.path(hub.namespace)
    listed = msgspec.json.decode(await hub.client.send(Request("GET", path)))
    content = msgspec.json.encode(listed | {"items": []})
    faults.answer(
        200,
        which=lambda each: each.path == path and not each.is_watch,
        content=content,
        headers={"Content-Type": "application/json"},
    )
    async with hub.reconciling(faults.access):
        await until_true(lambda: faults.count(lambda each: each.path == f"{path}/dapr") > 0)
        assert await hub.instances() == before
        await hub.install("dapr", "dapr", values={"seen": "again"})
        await hub.shows("ModuleInstance", "dapr.local", lambda each: each["spec"].get("values") == {"seen": "again"})
    after = await hub.get("ModuleInstance", "dapr.local")
    assert after["metadata"]["uid"] == before["dapr.local"]["metadata"]["uid"]


async def test_deleting_the_definition_of_installations_removes_no_module(hub: HubBed) -> None:
    resource = INSTALLATION.resource

    def is_lost(found: Object) -> bool:
        return bool(found["spec"].get("hold", {}).get("reason") == "InstallationLost")

    async with hub.reconciling():
        await hub.apply("Cluster", "local", LOCAL)
        for name in ("dapr", "redis"):
            await hub.add_module(name)
        await hub.install("dapr", "dapr")
        before = await hub.shows("ModuleInstance", "dapr.local", state)
        finalizers = {"metadata": {"finalizers": ["example.dev/held"]}}
        await hub.client.patch(resource, "dapr", hub.namespace, finalizers, manager="user")
        await hub.client.delete(DEFINITIONS, INSTALLATION.name)
        await hub.shows("ModuleInstance", "dapr.local", is_lost)
        await hub.client.patch(resource, "dapr", hub.namespace, {"metadata": {"finalizers": None}}, manager="user")
        await until(lambda: is_gone(hub))
        await younger(before)
        await DefinitionInstaller(hub.client, SystemClock()).install()
        await hub.install("redis", "redis")
        await hub.shows("ModuleInstance", "redis.local", state)
        lost = await hub.shows(
            "ModuleInstance", "dapr.local", lambda each: is_lost(each) and "again" in str(each["spec"])
        )
        assert lost["metadata"]["uid"] == before["metadata"]["uid"]
        advice = "create the Installation again, or delete this ModuleInstance"
        await hub.shows("Cluster", "local", lambda each: state(each) == "Error" and advice in each["status"]["message"])

        await hub.install("dapr", "dapr")
        back = await hub.shows("ModuleInstance", "dapr.local", lambda each: not is_lost(each))
        assert back["metadata"]["uid"] == before["metadata"]["uid"]
        await hub.delete("Installation", "dapr")
        await hub.gone("ModuleInstance", "dapr.local")


async def younger(found: Object) -> None:
    """Wait until a new object is younger than another by the clock of the API server, which has whole seconds."""
    created = datetime.datetime.fromisoformat(found["metadata"]["creationTimestamp"])

    async def has_passed() -> bool:
        return datetime.datetime.now(datetime.UTC) >= created + datetime.timedelta(seconds=1)

    await until(has_passed)


async def is_gone(hub: HubBed) -> bool:
    found = [each async for each in hub.client.list(DEFINITIONS, fields=f"metadata.name={INSTALLATION.name}")]
    return not found


async def test_deleting_a_cluster_removes_its_instances_first(hub: HubBed) -> None:
    async with hub.reconciling():
        await hub.apply("Cluster", "local", LOCAL)
        await hub.add_module("dapr")
        await hub.install("dapr", "dapr")
        await hub.shows("ModuleInstance", "dapr.local", state)
        held = {"metadata": {"finalizers": ["example.dev/held"]}}
        await hub.client.patch(RESOURCES["ModuleInstance"], "dapr.local", hub.namespace, held, manager="user")
        await hub.delete("Cluster", "local")
        await hub.shows("Cluster", "local", lambda each: state(each) == "Deleting")
        await hub.shows("ModuleInstance", "dapr.local", lambda each: each["metadata"].get("deletionTimestamp"))
        released = {"metadata": {"finalizers": None}}
        await hub.client.patch(RESOURCES["ModuleInstance"], "dapr.local", hub.namespace, released, manager="user")
        await hub.gone("Cluster", "local")
        await hub.shows("Installation", "dapr", lambda each: reason(each) == "ClusterMissing")
