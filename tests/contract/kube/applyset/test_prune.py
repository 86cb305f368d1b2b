"""What is removed, and above all what is not."""

import asyncio

from governor.errors import Kind
from governor.kube.applyset import Removal
from governor.kube.client import Client, Transport
from governor.kube.objects import ApiResource, ObjectRef
from testbed.kube.control_plane import ControlPlane, Options
from testbed.pytest_plugin import StartControlPlane
from testbed.waiting import until
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    DEFINITIONS,
    DEPLOYMENTS,
    LABEL,
    NAMESPACES,
    Interposed,
    config_map,
    custom,
    definition,
    deployment,
    exists,
    kind_of,
    make_set,
    namespace_of,
    refused,
    removals,
)
from tests.contract.kube.bed import admin_of

SERVICES = ApiResource("", "v1", "Service", "services", namespaced=True)


async def test_what_is_no_longer_wanted_is_removed_and_the_rest_stays(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await objects.apply([config_map("a"), config_map("b"), deployment("d")])
    report = await objects.prune([config_map("b")])
    assert removals(report) == {"a": "removed", "d": "removed"}
    assert [result.ref.kind for result in report.results] == ["Deployment", "ConfigMap"]
    assert report.complete
    assert {ref.name for ref in await objects.inventory()} == {"b"}
    assert await exists(client, CONFIG_MAPS, "b", namespace)
    assert not await exists(client, CONFIG_MAPS, "a", namespace)
    assert (await objects.prune([config_map("b")])).results == ()


async def test_an_object_that_is_wanted_by_another_name_stays(client: Client, namespace: str) -> None:
    """Two groups serve one and the same Event."""
    reference = {"kind": "Pod", "name": "p", "namespace": namespace}
    new = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": reference}
    old = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "regarding": reference,
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "example.com/tests",
        "reportingInstance": "one",
        "action": "Try",
        "reason": "Trying",
        "type": "Normal",
    }
    objects = make_set(client, namespace)
    assert (await objects.apply([old])).ok
    moved = await objects.apply([new])
    assert moved.ok, moved
    report = await objects.prune([new])
    assert [(result.ref.group, result.outcome) for result in report.results] == [("events.k8s.io", Removal.KEPT)]
    assert f"is the same object as Event {namespace}/e" in report.results[0].reason
    assert await exists(client, ApiResource("", "v1", "Event", "events", namespaced=True), "e", namespace)
    assert [ref.group for ref in await objects.inventory()] == [""]


async def test_an_emptied_set_is_refused(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await objects.apply([config_map("a")])
    error = await refused(objects.prune([]))
    assert (error.kind, error.code) == (Kind.PRECONDITION, "set-emptied")
    assert await exists(client, CONFIG_MAPS, "a", namespace)
    assert removals(await objects.prune([], allow_empty=True)) == {"a": "removed"}


async def test_a_set_that_never_was_has_nothing_to_remove(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    assert (await objects.prune([])).results == ()
    assert (await objects.remove_all()).results == ()
    assert not await exists(client, CONFIG_MAPS, "inventory", namespace)


async def test_removing_all_removes_the_inventory_last(api: ControlPlane, transport: Transport, namespace: str) -> None:
    client = Interposed(transport, admin_of(api))
    objects = make_set(client, namespace)
    await objects.apply([config_map("a"), deployment("d")])
    client.sent.clear()
    report = await objects.remove_all()
    assert removals(report) == {"d": "removed", "a": "removed"}
    assert client.writes == [
        f"PUT {CONFIG_MAPS.path(namespace, 'inventory')}",
        f"DELETE {DEPLOYMENTS.path(namespace, 'd')}",
        f"DELETE {CONFIG_MAPS.path(namespace, 'a')}",
        f"DELETE {CONFIG_MAPS.path(namespace, 'inventory')}",
    ]
    assert not await exists(client, CONFIG_MAPS, "inventory", namespace)
    assert await objects.inventory() == {}


async def test_an_object_made_anew_by_somebody_else_stays(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await objects.apply([config_map("a"), config_map("b")])
    await client.delete(CONFIG_MAPS, "a", namespace)
    copied = config_map("a", namespace, theirs="1")
    copied["metadata"]["labels"] = {LABEL: namespace}  # even if they copied our label
    await client.create(CONFIG_MAPS, copied, manager="somebody")
    report = await objects.prune([config_map("b")])
    assert removals(report) == {"a": "foreign"}
    assert "somebody removed ours" in report.results[0].reason
    assert await exists(client, CONFIG_MAPS, "a", namespace)
    assert {ref.name for ref in await objects.inventory()} == {"b"}


async def test_a_shared_object_is_released_and_stays(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map("a", namespace, theirs="1"), manager="somebody")
    objects = make_set(client, namespace)
    await objects.apply([config_map("a", ours="1")])
    assert removals(await objects.remove_all()) == {"a": "released"}
    live = await client.get(CONFIG_MAPS, "a", namespace)
    assert live["data"] == {"theirs": "1"}
    assert {entry["manager"] for entry in live["metadata"]["managedFields"]} == {"somebody"}


async def test_an_object_whose_label_somebody_took_off_stays(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await objects.apply([config_map("a", x="1")])
    await client.patch(CONFIG_MAPS, "a", namespace, {"metadata": {"labels": {LABEL: None}}}, manager="somebody")
    assert removals(await objects.remove_all()) == {"a": "released"}
    assert await exists(client, CONFIG_MAPS, "a", namespace)


async def test_an_annotation_keeps_an_object(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace, keep={"helm.sh/resource-policy": "keep"})
    kept = config_map("a")
    kept["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
    await objects.apply([kept, config_map("b")])
    assert removals(await objects.remove_all()) == {"a": "kept", "b": "removed"}
    assert await exists(client, CONFIG_MAPS, "a", namespace)
    assert not await exists(client, CONFIG_MAPS, "inventory", namespace)


async def test_objects_removed_by_hand_are_forgotten(client: Client, namespace: str) -> None:
    group = f"{namespace}.example"
    objects = make_set(client, namespace)
    await objects.apply([config_map("a"), definition("Thing", group), custom("Thing", group, "one")])
    await client.delete(CONFIG_MAPS, "a", namespace)
    await client.delete(DEFINITIONS, f"things.{group}")

    async def gone() -> bool:
        return not await exists(client, DEFINITIONS, f"things.{group}", terminating=True)

    await until(gone)
    report = await objects.remove_all()
    assert removals(report) == {"a": "absent", "one": "absent", f"things.{group}": "absent"}
    assert report.complete


async def test_a_finalizer_is_named_and_what_has_to_wait_is_not_touched(client: Client, namespace: str) -> None:
    stuck = deployment("stuck")
    stuck["metadata"]["finalizers"] = ["example.com/wait"]
    objects = make_set(client, namespace, removed_within_s=0.2)
    await objects.apply([config_map("a"), stuck])
    report = await objects.remove_all()
    assert removals(report) == {"stuck": "terminating", "a": "skipped"}
    assert report.results[0].reason == "still terminating: finalizer example.com/wait"
    assert "stuck" in report.results[1].reason
    assert await exists(client, CONFIG_MAPS, "a", namespace)
    assert {ref.name for ref in await objects.inventory()} == {"stuck", "a"}
    await client.patch(DEPLOYMENTS, "stuck", namespace, {"metadata": {"finalizers": None}}, manager="somebody")
    assert removals(await make_set(client, namespace).remove_all()) == {"stuck": "absent", "a": "removed"}


async def test_a_dry_run_tells_and_does_nothing(api: ControlPlane, transport: Transport, namespace: str) -> None:
    client = Interposed(transport, admin_of(api))
    inner = f"{namespace}-inner"
    objects = make_set(client, namespace)
    await objects.apply([namespace_of(inner), config_map("a", inner), config_map("b")])
    client.sent.clear()
    assert removals(await objects.remove_all(dry_run=True)) == {"a": "removed", "b": "removed", inner: "removed"}
    await client.create(CONFIG_MAPS, config_map("theirs", inner), manager="somebody")
    client.sent.clear()
    assert removals(await objects.remove_all(dry_run=True)) == {"a": "removed", "b": "removed", inner: "held"}
    plan = await objects.plan([config_map("b")])
    assert removals(plan.removal) == {"a": "removed", inner: "held"}
    assert client.writes == []
    assert len(await objects.inventory()) == 3


async def test_a_namespace_with_objects_of_others_stays(client: Client, namespace: str) -> None:
    inner = f"{namespace}-inner"
    group = f"{namespace}.example"
    objects = make_set(client, namespace)
    await objects.apply([namespace_of(inner), config_map("a", inner), definition("Thing", group)])
    thing = custom("Thing", group, "theirs")
    thing["metadata"]["namespace"] = inner
    await client.create(kind_of(definition("Thing", group)), thing, manager="somebody")
    report = await objects.prune([definition("Thing", group)])
    assert removals(report) == {"a": "removed", inner: "held"}
    held = report.results[1]
    assert held.holds == (ObjectRef(group, "Thing", inner, "theirs"),)
    assert f"Thing.{group} {inner}/theirs" in held.reason
    assert await exists(client, NAMESPACES, inner)
    assert not report.complete
    await client.delete(kind_of(definition("Thing", group)), "theirs", inner)
    # Without controllers a namespace never ends.
    again = await make_set(client, namespace, removed_within_s=0.1).prune([definition("Thing", group)])
    assert removals(again) == {inner: "terminating"}
    assert "finalizer kubernetes" in again.results[0].reason


async def test_a_kind_that_came_a_moment_ago_holds_a_namespace_too(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    inner = f"{namespace}-inner"
    group = f"{namespace}.example"
    objects = make_set(client, namespace)
    await objects.apply([namespace_of(inner)])  # this client has read which kinds there are
    thing = custom("Thing", group, "theirs")
    thing["metadata"]["namespace"] = inner
    others = make_set(Client(transport, admin_of(api)), namespace, owner=f"{namespace}-2", name="second")
    assert (await others.apply([definition("Thing", group), thing])).ok
    report = await objects.remove_all()
    assert removals(report) == {inner: "held"}
    assert report.results[0].holds == (ObjectRef(group, "Thing", inner, "theirs"),)


async def test_a_namespace_in_which_the_set_still_wants_something_stays(client: Client, namespace: str) -> None:
    inner = f"{namespace}-inner"
    objects = make_set(client, namespace)
    await objects.apply([namespace_of(inner), config_map("a", inner)])
    report = await objects.prune([config_map("a", inner)])
    assert removals(report) == {inner: "held"}
    assert report.results[0].holds == (ObjectRef("", "ConfigMap", inner, "a"),)


async def test_a_namespace_stays_for_what_an_annotation_keeps_in_it(client: Client, namespace: str) -> None:
    inner = f"{namespace}-inner"
    kept = config_map("a", inner)
    kept["metadata"]["annotations"] = {"keep": "yes"}
    objects = make_set(client, namespace, keep={"keep": "yes"})
    await objects.apply([namespace_of(inner), kept])
    assert removals(await objects.remove_all()) == {"a": "kept", inner: "held"}
    assert await exists(client, NAMESPACES, inner)


async def test_many_objects_of_others_are_told_by_examples(client: Client, namespace: str) -> None:
    inner = f"{namespace}-inner"
    objects = make_set(client, namespace)
    await objects.apply([namespace_of(inner)])
    for number in range(7):
        await client.create(CONFIG_MAPS, config_map(f"c{number}", inner), manager="somebody")
    result = (await objects.remove_all()).results[0]
    assert [ref.name for ref in result.holds] == ["c0", "c1", "c2", "c3", "c4"]
    assert result.reason.endswith("and 2 more")


async def test_a_definition_with_objects_of_others_stays(client: Client, namespace: str) -> None:
    group = f"{namespace}.example"
    defined = definition("Thing", group)
    objects = make_set(client, namespace)
    await objects.apply([defined, custom("Thing", group, "ours")])
    theirs = custom("Thing", group, "theirs")
    theirs["metadata"]["namespace"] = "default"
    await client.create(kind_of(defined), theirs, manager="somebody")
    report = await objects.remove_all()
    assert removals(report) == {"ours": "removed", f"things.{group}": "held"}
    assert report.results[1].holds == (ObjectRef(group, "Thing", "default", "theirs"),)
    assert await exists(client, DEFINITIONS, f"things.{group}")
    assert {ref.kind for ref in await objects.inventory()} == {"CustomResourceDefinition"}
    await client.delete(kind_of(defined), "theirs", "default")
    assert removals(await objects.remove_all()) == {f"things.{group}": "removed"}
    assert not await exists(client, CONFIG_MAPS, "inventory", namespace)


async def test_a_set_may_be_forgotten_without_touching_its_objects(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await objects.apply([config_map("a")])
    await objects.forget()
    assert await exists(client, CONFIG_MAPS, "a", namespace)
    assert not await exists(client, CONFIG_MAPS, "inventory", namespace)
    # What carries our label is ours again as soon as it is wanted again.
    assert not (await objects.apply([config_map("a")])).results[0].shared
    assert removals(await objects.remove_all()) == {"a": "removed"}


async def test_a_whole_namespace_with_running_controllers_goes(
    start_api: StartControlPlane, transport: Transport
) -> None:
    plane = await start_api(Options(controllers=True))
    client = Client(transport, admin_of(plane))
    await client.create(NAMESPACES, namespace_of("home"), manager="tests")
    objects = make_set(client, "home", removed_within_s=120)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s", "namespace": "inner"},
        "spec": {"selector": {"app": "d"}, "ports": [{"port": 80}]},
    }
    workload = deployment("d", 2)
    workload["metadata"]["namespace"] = "inner"
    assert (await objects.apply([namespace_of("inner"), service, workload])).ok
    pods = ApiResource("", "v1", "Pod", "pods", namespaced=True)
    slices = ApiResource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", namespaced=True)

    async def all_made() -> bool:
        found = [[each async for each in client.list(kind, "inner")] for kind in (pods, slices, CONFIG_MAPS)]
        return len(found[0]) == 2 and all(found)

    await until(all_made)
    planned = await objects.remove_all(dry_run=True)
    assert planned.counts() == {Removal.REMOVED: 3}, planned
    report = await objects.remove_all()
    assert report.counts() == {Removal.REMOVED: 3}, report
    assert not await exists(client, NAMESPACES, "inner", terminating=True)


async def test_cancelled_removal_can_be_taken_up_again(client: Client, namespace: str) -> None:
    stuck = config_map("stuck")
    stuck["metadata"]["finalizers"] = ["example.com/wait"]
    objects = make_set(client, namespace)
    await objects.apply([stuck])
    removing = asyncio.create_task(objects.remove_all())

    async def asked() -> bool:
        return not await exists(client, CONFIG_MAPS, "stuck", namespace)

    await until(asked)
    removing.cancel()
    assert isinstance((await asyncio.gather(removing, return_exceptions=True))[0], asyncio.CancelledError)
    await client.patch(CONFIG_MAPS, "stuck", namespace, {"metadata": {"finalizers": None}}, manager="somebody")
    assert removals(await objects.remove_all()) == {"stuck": "absent"}
