"""Pruning on a real API server: which objects are deleted and which stay."""

from governor.errors import Kind
from governor.kube.applyset import PruneOutcome
from governor.kube.client import METADATA_LIST, Client, Transport
from governor.kube.objects import ApiResource, ObjectRef
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    DEFINITIONS,
    DEPLOYMENTS,
    LABEL,
    NAMESPACES,
    RecordingClient,
    apply,
    config_map,
    custom,
    definition,
    delete_until_gone,
    deployment,
    error_of,
    exists,
    kind_of,
    make_set,
    namespace_of,
    prune,
    prune_outcomes,
)
from tests.contract.kube.bed import admin_of

SERVICES = ApiResource("", "v1", "Service", "services", namespaced=True)


async def test_only_objects_no_longer_desired_are_deleted(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a"), config_map("b"), deployment("d")])
    report = await prune(objects, [config_map("b")])
    assert prune_outcomes(report) == {"a": "removed", "d": "removed"}
    assert [result.ref.kind for result in report.results] == ["Deployment", "ConfigMap"]
    assert report.complete
    assert {ref.name for ref in await objects.inventory()} == {"b"}
    assert await exists(client, CONFIG_MAPS, "b", namespace)
    assert not await exists(client, CONFIG_MAPS, "a", namespace)
    assert (await prune(objects, [config_map("b")])).results == ()


async def test_an_object_desired_under_another_group_stays(client: Client, namespace: str) -> None:
    """Two API groups serve the same Event."""
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
    assert (await apply(objects, [old])).ok
    moved = await objects.converge([new])
    assert moved.ok, moved
    report = moved.prune
    assert [(result.ref.group, result.outcome) for result in report.results] == [("events.k8s.io", PruneOutcome.KEPT)]
    assert f"is the same object as Event {namespace}/e" in report.results[0].reason
    assert await exists(client, ApiResource("", "v1", "Event", "events", namespaced=True), "e", namespace)
    assert [ref.group for ref in await objects.inventory()] == [""]


async def test_pruning_everything_is_refused_by_default(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a")])
    error = await error_of(prune(objects, []))
    assert (error.kind, error.code) == (Kind.PRECONDITION, "set-emptied")
    assert await exists(client, CONFIG_MAPS, "a", namespace)
    assert prune_outcomes(await prune(objects, [], allow_empty=True)) == {"a": "removed"}


async def test_a_set_without_inventory_has_nothing_to_prune(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    assert (await prune(objects, [])).results == ()
    assert (await objects.delete_all()).results == ()
    assert not await exists(client, CONFIG_MAPS, "inventory", namespace)


async def test_the_inventory_is_deleted_last(api: ControlPlane, transport: Transport, namespace: str) -> None:
    client = RecordingClient(transport, admin_of(api))
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a"), deployment("d")])
    client.sent.clear()
    report = await objects.delete_all()
    assert prune_outcomes(report) == {"d": "removed", "a": "removed"}
    assert client.writes == [
        f"PUT {CONFIG_MAPS.path(namespace, 'inventory')}",
        f"DELETE {DEPLOYMENTS.path(namespace, 'd')}",
        f"DELETE {CONFIG_MAPS.path(namespace, 'a')}",
        f"DELETE {CONFIG_MAPS.path(namespace, 'inventory')}",
    ]
    assert not await exists(client, CONFIG_MAPS, "inventory", namespace)
    assert await objects.inventory() == {}


async def test_an_object_re_created_by_another_client_stays(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a"), config_map("b")])
    await client.delete(CONFIG_MAPS, "a", namespace)
    copied = config_map("a", namespace, theirs="1")
    copied["metadata"]["labels"] = {LABEL: namespace}  # even with our label
    await client.create(CONFIG_MAPS, copied, manager="other-client")
    report = await prune(objects, [config_map("b")])
    assert prune_outcomes(report) == {"a": "foreign"}
    assert "was deleted and created again outside this set" in report.results[0].reason
    assert await exists(client, CONFIG_MAPS, "a", namespace)
    assert {ref.name for ref in await objects.inventory()} == {"b"}


async def test_a_shared_object_is_released_and_stays(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map("a", namespace, theirs="1"), manager="other-client")
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a", ours="1")])
    assert prune_outcomes(await objects.delete_all()) == {"a": "released"}
    live = await client.get(CONFIG_MAPS, "a", namespace)
    assert live["data"] == {"theirs": "1"}
    assert {entry["manager"] for entry in live["metadata"]["managedFields"]} == {"other-client"}


async def test_an_object_without_its_owner_label_stays(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a", x="1")])
    await client.patch(CONFIG_MAPS, "a", namespace, {"metadata": {"labels": {LABEL: None}}}, manager="other-client")
    assert prune_outcomes(await objects.delete_all()) == {"a": "released"}
    assert await exists(client, CONFIG_MAPS, "a", namespace)


async def test_an_object_with_a_keep_annotation_stays(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace, keep_annotations={"helm.sh/resource-policy": "keep"})
    kept = config_map("a")
    kept["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
    await apply(objects, [kept, config_map("b")])
    assert prune_outcomes(await objects.delete_all()) == {"a": "kept", "b": "removed"}
    assert await exists(client, CONFIG_MAPS, "a", namespace)
    assert not await exists(client, CONFIG_MAPS, "inventory", namespace)


async def test_objects_deleted_by_others_leave_the_inventory(client: Client, namespace: str) -> None:
    group = f"{namespace}.example"
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a"), definition("Thing", group), custom("Thing", group, "one")])
    await client.delete(CONFIG_MAPS, "a", namespace)
    await client.delete(DEFINITIONS, f"things.{group}")

    async def gone() -> bool:
        return not await exists(client, DEFINITIONS, f"things.{group}", terminating=True)

    await until(gone)
    report = await objects.delete_all()
    assert prune_outcomes(report) == {"a": "absent", "one": "absent", f"things.{group}": "absent"}
    assert report.complete


async def test_a_finalizer_is_reported_and_later_stages_are_skipped(client: Client, namespace: str) -> None:
    stuck = deployment("stuck")
    stuck["metadata"]["finalizers"] = ["example.com/wait"]
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a"), stuck])
    report = await objects.delete_all()
    assert prune_outcomes(report) == {"stuck": "terminating", "a": "skipped"}
    assert report.results[0].reason == "still terminating: finalizer example.com/wait"
    assert "stuck" in report.results[1].reason
    assert await exists(client, CONFIG_MAPS, "a", namespace)
    assert {ref.name for ref in await objects.inventory()} == {"stuck", "a"}
    await client.patch(DEPLOYMENTS, "stuck", namespace, {"metadata": {"finalizers": None}}, manager="other-client")
    assert prune_outcomes(await make_set(client, namespace).delete_all()) == {"stuck": "absent", "a": "removed"}


async def test_a_dry_run_reports_without_writing(api: ControlPlane, transport: Transport, namespace: str) -> None:
    client = RecordingClient(transport, admin_of(api))
    inner = f"{namespace}-inner"
    objects = make_set(client, namespace)
    await apply(objects, [namespace_of(inner), config_map("a", inner), config_map("b")])
    client.sent.clear()
    assert prune_outcomes(await objects.delete_all(dry_run=True)) == {"a": "removed", "b": "removed", inner: "removed"}
    await client.create(CONFIG_MAPS, config_map("theirs", inner), manager="other-client")
    client.sent.clear()
    assert prune_outcomes(await objects.delete_all(dry_run=True)) == {"a": "removed", "b": "removed", inner: "held"}
    plan = await objects.plan([config_map("b")])
    assert prune_outcomes(plan.prune) == {"a": "removed", inner: "held"}
    assert client.writes == []
    assert len(await objects.inventory()) == 3


async def test_a_namespace_with_objects_of_others_stays(client: Client, namespace: str) -> None:
    inner = f"{namespace}-inner"
    group = f"{namespace}.example"
    objects = make_set(client, namespace)
    await apply(objects, [namespace_of(inner), config_map("a", inner), definition("Thing", group)])
    thing = custom("Thing", group, "theirs")
    thing["metadata"]["namespace"] = inner
    await client.create(kind_of(definition("Thing", group)), thing, manager="other-client")
    report = await prune(objects, [definition("Thing", group)])
    assert prune_outcomes(report) == {"a": "removed", inner: "held"}
    held = report.results[1]
    assert held.blockers == (ObjectRef(group, "Thing", inner, "theirs"),)
    assert f"Thing.{group} {inner}/theirs" in held.reason
    assert await exists(client, NAMESPACES, inner)
    assert not report.complete
    await client.delete(kind_of(definition("Thing", group)), "theirs", inner)
    # Without controllers a namespace terminates forever.
    again = await prune(objects, [definition("Thing", group)])
    assert prune_outcomes(again) == {inner: "terminating"}
    assert "finalizer kubernetes" in again.results[0].reason


async def test_objects_of_a_new_kind_hold_a_namespace_too(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    inner = f"{namespace}-inner"
    group = f"{namespace}.example"
    objects = make_set(client, namespace)
    await apply(objects, [namespace_of(inner)])  # this client has cached discovery
    thing = custom("Thing", group, "theirs")
    thing["metadata"]["namespace"] = inner
    others = make_set(Client(transport, admin_of(api)), namespace, owner=f"{namespace}-2", name="second")
    assert (await apply(others, [definition("Thing", group), thing])).ok
    report = await objects.delete_all()
    assert prune_outcomes(report) == {inner: "held"}
    assert report.results[0].blockers == (ObjectRef(group, "Thing", inner, "theirs"),)


async def test_a_namespace_with_desired_objects_stays(client: Client, namespace: str) -> None:
    inner = f"{namespace}-inner"
    objects = make_set(client, namespace)
    await apply(objects, [namespace_of(inner), config_map("a", inner)])
    report = await prune(objects, [config_map("a", inner)])
    assert prune_outcomes(report) == {inner: "held"}
    assert report.results[0].blockers == (ObjectRef("", "ConfigMap", inner, "a"),)


async def test_a_namespace_with_kept_objects_stays(client: Client, namespace: str) -> None:
    inner = f"{namespace}-inner"
    kept = config_map("a", inner)
    kept["metadata"]["annotations"] = {"keep": "yes"}
    objects = make_set(client, namespace, keep_annotations={"keep": "yes"})
    await apply(objects, [namespace_of(inner), kept])
    assert prune_outcomes(await objects.delete_all()) == {"a": "kept", inner: "held"}
    assert await exists(client, NAMESPACES, inner)


INJECTED: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("ConfigMap", "kube-root-ca.crt", {}),
    ("ConfigMap", "istio-ca-root-cert", {}),
    ("ConfigMap", "istio-ca-crl", {}),
    ("ConfigMap", "openshift-service-ca.crt", {}),
    ("ConfigMap", "company-roots", {"trust.cert-manager.io/bundle": "company-roots"}),
    ("Secret", "registry-login", {"generate.kyverno.io/policy-name": "sync-secrets"}),
    ("ServiceAccount", "default", {}),
    ("ServiceAccount", "builder", {}),
    ("ResourceQuota", "gke-resource-quotas", {}),
)


async def test_objects_that_a_mesh_or_an_operator_puts_into_each_namespace_do_not_hold_it(
    client: Client, namespace: str
) -> None:
    inner = f"{namespace}-inner"
    objects = make_set(client, namespace)
    await objects.converge([namespace_of(inner)])
    for kind, name, labels in INJECTED:
        resource = await client.discovery.find("", kind)
        metadata = {"name": name, "namespace": inner, "labels": labels}
        await client.create(resource, {"apiVersion": "v1", "kind": kind, "metadata": metadata}, manager="operator")
    strict = make_set(client, namespace, tolerated_contents=())
    assert len((await strict.delete_all(dry_run=True)).results[0].blockers) == 5
    assert prune_outcomes(await objects.delete_all()) == {inner: "terminating"}


async def test_contents_are_listed_without_their_values(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = RecordingClient(transport, admin_of(api))
    inner = f"{namespace}-inner"
    objects = make_set(client, namespace)
    await objects.converge([namespace_of(inner)])
    client.sent.clear()
    await objects.delete_all(dry_run=True)
    lists = [request for request in client.sent if request.path.startswith(f"/api/v1/namespaces/{inner}/")]
    assert lists
    assert {request.accept for request in lists} == {METADATA_LIST}


async def test_of_many_blocking_objects_five_are_listed(client: Client, namespace: str) -> None:
    inner = f"{namespace}-inner"
    objects = make_set(client, namespace)
    await apply(objects, [namespace_of(inner)])
    for number in range(7):
        await client.create(CONFIG_MAPS, config_map(f"c{number}", inner), manager="other-client")
    result = (await objects.delete_all()).results[0]
    assert [ref.name for ref in result.blockers] == ["c0", "c1", "c2", "c3", "c4"]
    assert result.reason.endswith("and 2 more")


async def test_a_definition_with_objects_of_others_stays(client: Client, namespace: str) -> None:
    group = f"{namespace}.example"
    defined = definition("Thing", group)
    objects = make_set(client, namespace)
    await apply(objects, [defined, custom("Thing", group, "ours")])
    theirs = custom("Thing", group, "theirs")
    theirs["metadata"]["namespace"] = "default"
    await client.create(kind_of(defined), theirs, manager="other-client")
    report = await objects.delete_all()
    assert prune_outcomes(report) == {"ours": "removed", f"things.{group}": "held"}
    assert report.results[1].blockers == (ObjectRef(group, "Thing", "default", "theirs"),)
    assert await exists(client, DEFINITIONS, f"things.{group}")
    assert {ref.kind for ref in await objects.inventory()} == {"CustomResourceDefinition"}
    await client.delete(kind_of(defined), "theirs", "default")
    await delete_until_gone(objects)
    assert not await exists(client, DEFINITIONS, f"things.{group}")
    assert not await exists(client, CONFIG_MAPS, "inventory", namespace)


async def test_orphaning_deletes_only_the_inventory(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a")])
    await objects.orphan()
    assert await exists(client, CONFIG_MAPS, "a", namespace)
    assert not await exists(client, CONFIG_MAPS, "inventory", namespace)
    # The owner label makes the object owned again once it is desired again.
    assert not (await apply(objects, [config_map("a")])).results[0].shared
    assert prune_outcomes(await objects.delete_all()) == {"a": "removed"}


async def test_a_deletion_in_progress_holds_no_caller_and_is_continued(client: Client, namespace: str) -> None:
    stuck = deployment("stuck")
    stuck["metadata"]["finalizers"] = ["example.com/wait"]
    objects = make_set(client, namespace)
    await objects.converge([stuck, config_map("a"), config_map("stays")])
    for _ in range(2):
        report = await objects.converge([config_map("stays")])
        assert prune_outcomes(report.prune) == {"stuck": "terminating", "a": "skipped"}
        assert (report.ok, report.pending) == (False, True)
        assert report.problems() == (
            f"Deployment.apps {namespace}/stuck: terminating: still terminating: finalizer example.com/wait",
        )
    await client.patch(DEPLOYMENTS, "stuck", namespace, {"metadata": {"finalizers": None}}, manager="other-client")
    last = await objects.converge([config_map("stays")])
    assert prune_outcomes(last.prune) == {"stuck": "absent", "a": "removed"}
    assert (last.ok, last.pending, last.problems()) == (True, False, ())


async def test_dependents_of_an_object_that_an_earlier_run_removed_do_not_hold_its_namespace(
    client: Client, namespace: str
) -> None:
    """The garbage collector may take its time, and here it does not run."""
    inner = f"{namespace}-inner"
    workload, stuck = deployment("d"), config_map("stuck", inner)
    workload["metadata"]["namespace"] = inner
    stuck["metadata"]["finalizers"] = ["example.com/wait"]
    objects = make_set(client, namespace)
    await objects.converge([namespace_of(inner), workload, stuck])
    uid = (await client.get(DEPLOYMENTS, "d", inner))["metadata"]["uid"]
    dependent = config_map("dependent", inner)
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": uid}
    dependent["metadata"]["ownerReferences"] = [owner]
    await client.create(CONFIG_MAPS, dependent, manager="controller")
    first = await objects.delete_all()
    assert prune_outcomes(first) == {"d": "removed", "stuck": "terminating", inner: "skipped"}
    await client.patch(CONFIG_MAPS, "stuck", inner, {"metadata": {"finalizers": None}}, manager="other-client")
    assert prune_outcomes(await objects.delete_all()) == {"d": "absent", "stuck": "absent", inner: "terminating"}


async def test_nothing_is_pruned_while_an_object_cannot_be_applied(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await objects.converge([config_map("old")])
    broken = config_map("new", **{"not a key!": "1"})
    report = await objects.converge([broken])
    assert prune_outcomes(report.prune) == {"old": "skipped"}
    assert (report.ok, report.pending) == (False, False)
    assert [text.split(": ")[:2] for text in report.problems()] == [[f"ConfigMap {namespace}/new", "refused"]]
    assert await exists(client, CONFIG_MAPS, "old", namespace)
    assert prune_outcomes((await objects.converge([config_map("new")])).prune) == {"old": "removed"}
