"""Drift on a real API server: reported per field with secrets masked, repaired only if enforced."""

import datetime
import json
from collections.abc import Awaitable, Callable

from governor.errors import GovernorError, Kind
from governor.kube.applyset import DriftMode, IgnoredFields, ObjectDrift, Outcome, Repair
from governor.kube.client import Client, Request, Transport
from governor.kube.objects import ObjectRef
from governor.process.clock import VirtualClock
from governor.values.treediff import Difference, Operation
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INVENTORY,
    LABEL,
    SECRETS,
    RecordingClient,
    apply,
    config_map,
    custom,
    definition,
    delete_definition,
    deployment,
    drift,
    exists,
    kind_of,
    make_set,
    outcomes,
    prune_outcomes,
)
from tests.contract.kube.bed import admin_of


def paths(drift: ObjectDrift) -> dict[str, tuple[str, ...]]:
    return {field.difference.path: field.managers for field in drift.fields}


async def test_there_is_no_drift_after_an_apply(client: Client, namespace: str) -> None:
    group = f"{namespace}.example"
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}},
    }
    manifests = [config_map("a", x="1"), deployment("d"), service, definition("Thing", group)]
    manifests.append(custom("Thing", group, "one", deep={"list": [1, 2]}))
    objects = make_set(client, namespace)
    assert (await apply(objects, manifests)).ok
    report = await drift(objects, manifests, DriftMode.ENFORCE)
    assert (report.checked, report.objects, report.repairs) == (5, (), ())


async def test_with_mode_off_unchanged_manifests_cost_one_read(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = RecordingClient(transport, admin_of(api))
    objects = make_set(client, namespace)
    await objects.converge([config_map("a")])
    await client.delete(CONFIG_MAPS, "a", namespace)
    client.sent.clear()
    report = await objects.converge([config_map("a")], drift=DriftMode.OFF)
    assert (report.drift.checked, report.drift.objects) == (0, ())
    assert [str(request) for request in client.sent] == [f"GET {CONFIG_MAPS.path(namespace, INVENTORY)}"]


async def test_mode_warn_reports_changed_fields_with_their_managers(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = RecordingClient(transport, admin_of(api))
    manifests = [deployment("d", 2), config_map("a", x="1")]
    objects = make_set(client, namespace)
    await apply(objects, manifests)
    await api.kubectl("-n", namespace, "set", "image", "deployment/d", "main=example/other")
    await api.kubectl("-n", namespace, "scale", "deployment/d", "--replicas=7")
    client.sent.clear()
    report = await drift(objects, manifests, DriftMode.WARN)
    assert [each.ref.name for each in report.objects] == ["d"]
    (found,) = report.objects
    image = "spec.template.spec.containers[main].image"
    assert paths(found) == {image: ("kubectl-set",), "spec.replicas": ("kubectl",)}
    by_path = {field.difference.path: field.difference for field in found.fields}
    assert by_path[image] == Difference(image, Operation.CHANGED, "example/other", "example/one")
    assert found.repair is None
    assert (await client.get(DEPLOYMENTS, "d", namespace))["spec"]["replicas"] == 7
    dry = {request.query.get("dryRun") for request in client.sent if request.method != "GET"}
    assert dry == {"All"}


async def test_mode_enforce_writes_only_drifted_objects(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = RecordingClient(transport, admin_of(api))
    manifests = [config_map("a", x="1"), config_map("b", x="1")]
    objects = make_set(client, namespace)
    await apply(objects, manifests)
    await client.patch(CONFIG_MAPS, "a", namespace, {"data": {"x": "2", "more": "1"}}, manager="other-client")
    client.sent.clear()
    report = await drift(objects, manifests, DriftMode.ENFORCE)
    (found,) = report.objects
    assert paths(found) == {"data.x": ("other-client",)}
    assert found.repair is not None
    assert found.repair.outcome is Outcome.CHANGED
    # Fields added by other clients stay.
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"x": "1", "more": "1"}
    written = [request for request in client.sent if request.method != "GET" and "dryRun" not in request.query]
    assert [str(request) for request in written] == [
        f"PATCH {CONFIG_MAPS.path(namespace, 'a')}",
        f"PUT {CONFIG_MAPS.path(namespace, INVENTORY)}",  # with the new state of the object
    ]
    assert (await drift(objects, manifests, DriftMode.WARN)).objects == ()


async def test_a_removed_field_and_a_deleted_object_are_drift(client: Client, namespace: str) -> None:
    manifests = [config_map("a", x="1", y="1"), config_map("b", x="1")]
    objects = make_set(client, namespace)
    await apply(objects, manifests)
    await client.patch(CONFIG_MAPS, "a", namespace, {"data": {"y": None}}, manager="other-client")
    await client.delete(CONFIG_MAPS, "b", namespace)
    warned = await drift(objects, manifests, DriftMode.WARN)
    assert {each.ref.name: each.deleted for each in warned.objects} == {"a": False, "b": True}
    assert [field.difference.operation for field in warned.objects[0].fields] == [Operation.ADDED]
    assert not await exists(client, CONFIG_MAPS, "b", namespace)
    enforced = await drift(objects, manifests, DriftMode.ENFORCE)
    assert [each.repair.outcome for each in enforced.objects if each.repair] == [Outcome.CHANGED, Outcome.CREATED]
    assert (await drift(objects, manifests, DriftMode.WARN)).objects == ()
    # The set owns the re-created object.
    assert prune_outcomes(await objects.delete_all()) == {"a": "removed", "b": "removed"}


async def test_a_deleted_definition_is_drift_of_all_its_objects(client: Client, namespace: str) -> None:
    group = f"{namespace}.example"
    manifests = [definition("Thing", group), custom("Thing", group, "one")]
    objects = make_set(client, namespace)
    await apply(objects, manifests)
    await delete_definition(client, f"things.{group}")
    report = await drift(objects, manifests, DriftMode.ENFORCE)
    assert [(each.deleted, each.repair and each.repair.outcome) for each in report.objects] == [
        (True, Outcome.CREATED),
        (True, Outcome.CREATED),
    ]
    assert await exists(client, kind_of(manifests[0]), "one", namespace)


async def test_ignored_fields_keep_their_live_values(api: ControlPlane, client: Client, namespace: str) -> None:
    ignored = (
        IgnoredFields(("spec.replicas",), kind="Deployment"),
        IgnoredFields(('spec.template.metadata.annotations["*"]',), name="d"),
        IgnoredFields(("data",), name="never"),
    )
    desired = deployment("d", 2)
    desired["spec"]["template"]["metadata"]["annotations"] = {"a": "1"}
    objects = make_set(client, namespace, ignored_fields=ignored)
    await apply(objects, [desired])
    await api.kubectl("-n", namespace, "scale", "deployment/d", "--replicas=7")
    template = {"metadata": {"annotations": {"a": "2"}}}
    await client.patch(DEPLOYMENTS, "d", namespace, {"spec": {"template": template}}, manager="other-client")
    assert (await drift(objects, [desired], DriftMode.ENFORCE)).objects == ()
    await api.kubectl("-n", namespace, "set", "image", "deployment/d", "main=example/other")
    report = await drift(objects, [desired], DriftMode.ENFORCE)
    assert paths(report.objects[0]) == {"spec.template.spec.containers[main].image": ("kubectl-set",)}
    spec = (await client.get(DEPLOYMENTS, "d", namespace))["spec"]
    assert spec["replicas"] == 7
    assert spec["template"]["metadata"]["annotations"] == {"a": "2"}
    assert spec["template"]["spec"]["containers"][0]["image"] == "example/one"
    # A changed manifest neither conflicts over them nor resets them.
    changed = json.loads(json.dumps(desired).replace("example/one", "example/two"))
    assert (await apply(objects, [changed])).ok
    spec = (await client.get(DEPLOYMENTS, "d", namespace))["spec"]
    assert (spec["replicas"], spec["template"]["spec"]["containers"][0]["image"]) == (7, "example/two")


async def test_an_ignored_field_without_another_manager_is_not_removed(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace, ignored_fields=(IgnoredFields(("spec.replicas",)),))
    await apply(objects, [deployment("d", 3)])
    await client.patch(DEPLOYMENTS, "d", namespace, {"metadata": {"labels": {LABEL: None}}}, manager="other-client")
    await apply(objects, [deployment("d", 4, minReadySeconds=1)])
    assert (await client.get(DEPLOYMENTS, "d", namespace))["spec"]["replicas"] == 3


async def test_secrets_are_masked(client: Client, namespace: str) -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "cGxhbg=="}},
        "data": {"password": "cGxhbg=="},
    }
    objects = make_set(client, namespace)
    await apply(objects, [secret])
    theirs = {
        "data": {"password": "c3BvaWxlZA=="},
        "metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "c3BvaWxlZA=="}},
    }
    await client.patch(SECRETS, "s", namespace, theirs, manager="other-client")
    report = await drift(objects, [secret], DriftMode.WARN)
    plan = await make_set(client, namespace, force_conflicts=True).plan([secret])
    assert set(paths(report.objects[0])) == {
        "data.password",
        'metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]',
    }
    for shown in (report, plan, await drift(objects, [secret], DriftMode.ENFORCE)):
        for text in ("cGxhbg", "c3BvaWxlZA", "plan\\n", "spoiled"):
            assert text not in repr(shown)
        assert "***" in repr(shown)
    assert (await client.get(SECRETS, "s", namespace))["data"] == {"password": "cGxhbg=="}


async def test_a_field_is_not_repaired_beyond_the_limit(client: Client, namespace: str) -> None:
    manifests = [config_map("a", x="1", y="1")]
    clock = VirtualClock(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
    objects = make_set(client, namespace, clock=clock, repair_limit=2)
    await apply(objects, manifests)
    repairs: tuple[Repair, ...] = ()
    counts = []
    for value in range(4):
        change = {"data": {"x": f"other {value}"}}
        await client.patch(CONFIG_MAPS, "a", namespace, change, manager="rival")
        report = await drift(objects, manifests, DriftMode.ENFORCE, repairs)
        repairs = report.repairs
        field = report.objects[0].fields[0]
        counts.append((field.repairs, field.exhausted, field.managers))
    rival = ("rival",)
    assert counts == [(0, False, rival), (1, False, rival), (2, True, rival), (2, True, rival)]
    assert repairs == (Repair(ObjectRef("", "ConfigMap", namespace, "a"), "data.x", 2, clock.now()),)
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"]["x"] == "other 3"
    # Other fields of the object are still repaired.
    await client.patch(CONFIG_MAPS, "a", namespace, {"data": {"y": "2"}}, manager="other-client")
    report = await drift(objects, manifests, DriftMode.ENFORCE, repairs)
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"x": "other 3", "y": "1"}
    # After the window it is repaired again.
    await clock.advance(3601)
    await drift(objects, manifests, DriftMode.ENFORCE, report.repairs)
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"x": "1", "y": "1"}


async def test_an_object_that_cannot_be_compared_is_reported(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = RecordingClient(transport, admin_of(api))
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a", x="1")])
    await client.patch(CONFIG_MAPS, "a", namespace, {"data": {"x": "2"}}, manager="other-client")

    async def unreadable(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if request.path == CONFIG_MAPS.path(namespace, "a"):
            raise GovernorError(Kind.DENIED, "x", "may not read it")
        return await send(request)

    client.intercept = unreadable
    report = await objects.converge([config_map("a", x="1")])
    assert report.drift.objects[0].error == "may not read it"
    assert report.drift.objects[0].repair is None
    assert (report.ok, report.pending) == (False, False)
    assert report.problems() == (f"ConfigMap {namespace}/a: cannot be compared: may not read it",)


async def test_an_object_that_was_given_to_another_set_is_not_reported_as_converged(
    client: Client, namespace: str
) -> None:
    objects = make_set(client, namespace)
    await objects.converge([config_map("a", x="1"), config_map("b")])
    await client.patch(CONFIG_MAPS, "a", namespace, {"metadata": {"labels": {LABEL: "other"}}}, manager="user")
    report = await objects.converge([config_map("a", x="1")])
    assert not report.ok
    assert "belongs to 'other'" in report.problems()[0]
    assert prune_outcomes(report.prune) == {"b": "skipped"}


async def test_a_foreign_object_with_the_name_of_a_deleted_one_is_not_overwritten(
    client: Client, namespace: str
) -> None:
    objects = make_set(client, namespace)
    await objects.converge([config_map("theirs", x="1"), config_map("restored", x="1")])
    for name, labels in (("theirs", {}), ("restored", {LABEL: namespace})):
        await client.delete(CONFIG_MAPS, name, namespace)
        other = config_map(name, namespace, x="2")
        other["metadata"]["labels"] = labels
        await client.create(CONFIG_MAPS, other, manager="other-client")
    report = await objects.converge([config_map("theirs", x="1"), config_map("restored", x="1")])
    assert outcomes(report.apply) == {"theirs": Outcome.CONFLICT, "restored": Outcome.CHANGED}
    assert (await client.get(CONFIG_MAPS, "theirs", namespace))["data"] == {"x": "2"}
    again = await objects.converge([config_map("theirs", x="1"), config_map("restored", x="1")])
    assert outcomes(again.apply) == {"theirs": Outcome.CONFLICT, "restored": Outcome.UNCHANGED}
