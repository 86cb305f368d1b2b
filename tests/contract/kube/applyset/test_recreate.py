"""Changes of immutable fields: rejected with the field named, or made by deleting and creating the object again."""

import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from governor.errors import Kind
from governor.kube.applyset import IgnoredFields, Outcome, Recreate
from governor.kube.client import Client, Request, Transport
from governor.kube.objects import Object, ref_of
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NAMESPACES,
    PREFIX,
    RecordingClient,
    config_map,
    definition,
    error_of,
    exists,
    make_set,
    namespace_of,
    outcomes,
    prune_outcomes,
)
from tests.contract.kube.bed import admin_of

ANNOTATION = f"{PREFIX}/recreate"


def _object(api_version: str, kind: str, **content: Any) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, **content}


def _workload(kind: str, api_version: str, label: str, **spec: Any) -> Object:
    labels = {"app": label}
    pod = {"containers": [{"name": "main", "image": "example/one"}], "restartPolicy": "Always"}
    template = {"metadata": {"labels": labels}, "spec": pod}
    selector = {"selector": {"matchLabels": labels}}
    return _object(api_version, kind, spec={**selector, "template": template, **spec})


def _job(image: str) -> Object:
    pod = {"containers": [{"name": "main", "image": image}], "restartPolicy": "Never"}
    return _object("batch/v1", "Job", spec={"template": {"spec": pod}})


def _binding(role: str) -> Object:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    return _object("rbac.authorization.k8s.io/v1", "RoleBinding", roleRef=reference)


CHANGES = {
    "Deployment": (
        _workload("Deployment", "apps/v1", "old"),
        _workload("Deployment", "apps/v1", "new"),
        "spec.selector",
    ),
    "StatefulSet": (
        _workload("StatefulSet", "apps/v1", "x", serviceName="old"),
        _workload("StatefulSet", "apps/v1", "x", serviceName="new"),
        "spec",
    ),
    "Job": (_job("example/old"), _job("example/new"), "spec.template"),
    "RoleBinding": (_binding("view"), _binding("edit"), "roleRef"),
    "ConfigMap": (
        _object("v1", "ConfigMap", immutable=True, data={"x": "1"}),
        _object("v1", "ConfigMap", immutable=True, data={"x": "2"}),
        "data",
    ),
    "Secret": (
        _object("v1", "Secret", type="Opaque"),
        _object("v1", "Secret", type="example.com/other"),
        "type",
    ),
    "Service": (
        _object("v1", "Service", spec={"ports": [{"port": 80}], "clusterIP": "10.96.77.76"}),
        _object("v1", "Service", spec={"ports": [{"port": 80}], "clusterIP": "10.96.77.77"}),
        "spec.clusterIPs[0]",
    ),
    "StorageClass": (
        _object("storage.k8s.io/v1", "StorageClass", provisioner="example.com/old"),
        _object("storage.k8s.io/v1", "StorageClass", provisioner="example.com/new"),
        "provisioner",
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
async def test_an_immutable_field_is_named_and_changed_only_by_recreation(
    client: Client, namespace: str, kind: str
) -> None:
    before, after, field = copy.deepcopy(CHANGES[kind])
    before["metadata"]["name"] = after["metadata"]["name"] = namespace
    objects = make_set(client, namespace)
    assert (await objects.converge([before])).ok
    uid = next(iter((await objects.inventory()).values())).uid
    (refused,) = (await objects.converge([after])).apply.results
    assert refused.outcome is Outcome.REFUSED
    assert refused.error.startswith(f"{field} is immutable")
    permitted = make_set(client, namespace, recreate=Recreate.ON_IMMUTABLE)
    assert outcomes((await permitted.plan([after])).apply) == {namespace: Outcome.RECREATED}

    (recreated,) = (await permitted.converge([after])).apply.results
    assert recreated.outcome is Outcome.RECREATED, recreated
    assert recreated.reason == f"{field} is immutable"
    live = await client.get(await client.discovery.find(ref_of(after).group, kind), namespace, namespace)
    assert live["metadata"]["uid"] == recreated.uid != uid
    assert (await permitted.converge([after])).apply.unsent == 1
    await permitted.delete_all()


async def test_the_annotation_of_an_object_decides_for_it(client: Client, namespace: str) -> None:
    def immutable(name: str, value: str, annotation: str = "") -> Object:
        manifest = config_map(name, x=value) | {"immutable": True}
        manifest["metadata"]["annotations"] = {ANNOTATION: annotation} if annotation else {}
        return manifest

    def manifests(value: str) -> list[Object]:
        return [immutable("yes", value, "on-immutable"), immutable("no", value, "never"), immutable("default", value)]

    for default, outcome in ((Recreate.NEVER, Outcome.REFUSED), (Recreate.ON_IMMUTABLE, Outcome.RECREATED)):
        objects = make_set(client, namespace, recreate=default, owner=f"{namespace}-{default}", name=f"set-{default}")
        await objects.converge(manifests("1"))
        assert outcomes((await objects.converge(manifests("2"))).apply) == {
            "yes": Outcome.RECREATED,
            "no": Outcome.REFUSED,
            "default": outcome,
        }
        await objects.delete_all()
    error = await error_of(objects.converge([immutable("a", "1", "sometimes")]))
    assert error.kind is Kind.INVALID
    assert "must be one of never, on-immutable" in str(error)


async def test_a_shared_object_is_never_deleted(client: Client, namespace: str) -> None:
    theirs = config_map("a", namespace, x="1") | {"immutable": True}
    await client.create(CONFIG_MAPS, theirs, manager="other-client")
    objects = make_set(client, namespace, recreate=Recreate.ON_IMMUTABLE, force_conflicts=True)
    report = await objects.converge([config_map("a", x="2")])
    assert outcomes(report.apply) == {"a": Outcome.REFUSED}
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"x": "1"}


async def test_an_object_with_finalizers_is_created_again_when_it_is_gone(client: Client, namespace: str) -> None:
    def manifest(value: str) -> Object:
        stuck = config_map("a", x=value) | {"immutable": True}
        stuck["metadata"]["finalizers"] = ["example.com/wait"]
        return stuck

    objects = make_set(client, namespace, recreate=Recreate.ON_IMMUTABLE)
    await objects.converge([manifest("1"), config_map("old")])
    report = await objects.converge([manifest("2")])
    assert outcomes(report.apply) == {"a": Outcome.TERMINATING}
    assert "data is immutable" in report.apply.results[0].error
    assert report.pending
    assert prune_outcomes(report.prune) == {"old": "skipped"}
    await client.patch(CONFIG_MAPS, "a", namespace, {"metadata": {"finalizers": None}}, manager="other-client")
    again = await objects.converge([manifest("2")])
    assert outcomes(again.apply) == {"a": Outcome.CREATED}
    assert again.ok


async def test_objects_that_contain_others_are_not_recreated(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = RecordingClient(transport, admin_of(api))
    group = f"{namespace}.example"
    inner = f"{namespace}-inner"
    clustered = definition("Thing", group, scope="Cluster")
    objects = make_set(client, namespace, recreate=Recreate.ON_IMMUTABLE)
    await objects.converge([definition("Thing", group), namespace_of(inner)])
    client.sent.clear()
    report = await objects.converge([clustered, namespace_of(inner)])
    assert outcomes(report.apply)[f"things.{group}"] == Outcome.REFUSED
    assert "spec.scope is immutable" in report.apply.results[0].error
    assert not [each for each in client.writes if each.startswith("DELETE")]
    assert await exists(client, NAMESPACES, inner)


async def test_an_object_that_is_kept_since_it_was_read_is_not_deleted(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = RecordingClient(transport, admin_of(api))
    keep = {"example.com/keep": "yes"}

    def manifest(value: str) -> Object:
        return config_map("a", x=value) | {"immutable": True}

    objects = make_set(client, namespace, recreate=Recreate.ON_IMMUTABLE, keep_annotations=keep)
    await objects.converge([manifest("1")])

    async def keep_before_apply(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if request.method == "PATCH":
            client.intercept = None
            await client.patch(CONFIG_MAPS, "a", namespace, {"metadata": {"annotations": keep}}, manager="user")
        return await send(request)

    client.intercept = keep_before_apply
    (result,) = (await objects.converge([manifest("2")])).apply.results
    assert (result.outcome, "example.com/keep" in result.error) == (Outcome.REFUSED, True)
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"x": "1"}


async def test_a_re_created_object_keeps_the_live_values_of_ignored_fields(client: Client, namespace: str) -> None:
    before, after, _ = copy.deepcopy(CHANGES["Deployment"])
    before["spec"]["replicas"] = after["spec"]["replicas"] = 1
    ignored = (IgnoredFields(("spec.replicas",)),)
    objects = make_set(client, namespace, recreate=Recreate.ON_IMMUTABLE, ignored_fields=ignored)
    await objects.converge([before])
    await client.patch(DEPLOYMENTS, "x", namespace, {"spec": {"replicas": 5}}, manager="autoscaler")
    assert outcomes((await objects.converge([after])).apply) == {"x": Outcome.RECREATED}
    assert (await client.get(DEPLOYMENTS, "x", namespace))["spec"]["replicas"] == 5
