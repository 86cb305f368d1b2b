"""The definitions of the kinds on a real API server: which objects it accepts, and what kubectl shows of them."""

import copy
from typing import Any

import pytest

from governor.errors import GovernorError, Kind
from governor.kube.client import Client
from governor.kube.objects import Object
from governor.reconciler.kinds import DEFINITIONS
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.reconciler.bed import DIGESTS, LOCAL, RESOURCES, HubBed, installation_spec, manifest, module_spec

DIGEST = DIGESTS["1.0.0"]
OCI = {"oci": "oci://registry.example.com/charts/dapr", "digest": DIGEST}
LONG = "a" * 64
INSTANCE = {
    "module": "dapr",
    "cluster": "local",
    "installation": "dapr",
    "installationCreated": "2026-01-01T00:00:00Z",
    "version": "1.0.0",
    "chartDigest": DIGEST,
    "namespace": "dapr",
    "releaseName": "dapr",
}
ACCEPTED: list[Object] = [
    manifest("Cluster", "local", LOCAL),
    manifest("Cluster", "eu.prod-1", {"access": {"kubeconfigSecret": {"name": "eu"}}, "paused": True}, region="eu"),
    manifest(
        "Module", "dapr-1.0.0", module_spec("dapr", chart=OCI, dependsOn=["a", "b"], values={"any": [1, {"x": None}]})
    ),
    manifest("Module", "dapr-v1.0.0-rc.1-b", module_spec("dapr") | {"version": "v1.0.0-RC.1+b"}),
    manifest(
        "Module",
        "dapr-1.0.0",
        module_spec(
            "dapr",
            chart={"archive": "file:///charts/dapr.tgz", "digest": DIGEST, "caSecret": {"name": "ca", "key": "ca.crt"}},
            readiness={
                "timeoutSeconds": 5,
                "rules": [{"kind": "Site", "path": "status.n", "operator": "In", "value": [1]}],
            },
            drift={"mode": "off", "ignored": [{"paths": ["spec.replicas"], "kind": "Deployment"}]},
            customResources="cascade",
        ),
    ),
    manifest("Channel", "stable", {"modules": {"dapr": "1.0.0"}}),
    manifest("Channel", "empty", {"modules": {}}),
    manifest("Installation", "dapr", installation_spec("dapr")),
    manifest(
        "Installation",
        "dapr",
        installation_spec(
            "dapr",
            channel="stable",
            clusterSelector={"matchExpressions": [{"key": "region", "operator": "In", "values": ["eu"]}]},
            valuesFrom=[{"secretRef": {"name": "s"}}, {"configMapRef": {"name": "c", "key": "k"}}],
            valuesFromLabels={"global.region": "region"},
            deletionPolicy="orphan",
        ),
    ),
    manifest("Installation", "everywhere", installation_spec("dapr", clusterSelector={})),
    manifest("ModuleInstance", "dapr.local", INSTANCE),
]
REJECTED: list[tuple[Object, str]] = [
    (manifest("Cluster", "local", {"access": {}}), "set exactly one of inCluster and kubeconfigSecret"),
    (manifest("Cluster", "local", {"access": {"inCluster": {}, "kubeconfigSecret": {"name": "s"}}}), "set exactly one"),
    (manifest("Cluster", "local", {}), "spec.access: Required value"),
    (manifest("Cluster", LONG, LOCAL), "the name must have at most 63 characters"),
    (manifest("Module", "dapr", module_spec("dapr")), "the name must be that of the module, a hyphen and the version"),
    (manifest("Module", "dapr-1.0.0", module_spec("dapr", chart={"digest": DIGEST})), "set exactly one of directory"),
    (manifest("Module", "dapr-1.0.0", module_spec("dapr", chart=OCI | {"directory": "/x"})), "set exactly one of"),
    (manifest("Module", "dapr-1.0.0", module_spec("dapr", chart=OCI | {"digest": "sha256:abc"})), "spec.chart.digest"),
    (manifest("Module", "dapr-1.0.0", module_spec("dapr", chart={"directory": "/x"})), "digest: Required value"),
    (
        manifest("Module", "dapr-1.0.0", module_spec("dapr", chart=OCI | {"oci": f"{OCI['oci']}@{DIGEST}"})),
        "spec.chart.oci",
    ),
    (manifest("Module", "dapr-1.0", module_spec("dapr") | {"version": "1.0"}), "spec.version"),
    (manifest("Module", "dapr-1.0.0", module_spec("dapr", dependsOn=["a", "a"])), "Duplicate value"),
    (manifest("Module", "dapr-1.0.0", module_spec("dapr", drift={"mode": "maybe"})), "spec.drift.mode"),
    (manifest("Module", "dapr-1.0.0", module_spec("dapr", readiness={"timeoutSeconds": 0})), "timeoutSeconds"),
    (manifest("Module", "a.b-1.0.0", module_spec("a.b")), "spec.module"),
    (manifest("Channel", "stable", {"modules": {"dapr": "latest"}}), "spec.modules.dapr"),
    (
        manifest("Installation", "dapr", {"module": "dapr", "cluster": "local"}),
        "set exactly one of version and channel",
    ),
    (
        manifest("Installation", "dapr", installation_spec("dapr", channel="c") | {"version": "1.0.0"}),
        "version and channel",
    ),
    (
        manifest("Installation", "dapr", {"module": "dapr", "version": "1.0.0"}),
        "set exactly one of cluster and clusterSelector",
    ),
    (
        manifest("Installation", "dapr", installation_spec("dapr", clusterSelector={}) | {"cluster": "local"}),
        "set exactly one of cluster and clusterSelector",
    ),
    (
        manifest(
            "Installation",
            "dapr",
            installation_spec("dapr", clusterSelector={"matchExpressions": [{"key": "region", "operator": "In"}]}),
        ),
        "In and NotIn need values",
    ),
    (
        manifest("Installation", "dapr", installation_spec("dapr", valuesFrom=[{}])),
        "set exactly one of secretRef and configMapRef",
    ),
    (manifest("Installation", LONG, installation_spec("dapr")), "the name must have at most 63 characters"),
    (manifest("ModuleInstance", "dapr-local", INSTANCE), "the name must be that of the module, a dot and the name"),
]


async def dry_run(client: Client, namespace: str, found: Object) -> Object:
    placed = copy.deepcopy(found)
    placed["metadata"]["namespace"] = namespace
    return await client.create(RESOURCES[found["kind"]], placed, manager="user", dry_run=True)


async def test_valid_objects_are_accepted_and_nothing_of_them_is_dropped(client: Client, namespace: str) -> None:
    for each in ACCEPTED:
        assert (await dry_run(client, namespace, each))["spec"] == each["spec"]


async def test_invalid_objects_are_rejected_with_the_reason(client: Client, namespace: str) -> None:
    for each, expected in REJECTED:
        with pytest.raises(GovernorError) as caught:
            await dry_run(client, namespace, each)
        assert caught.value.kind is Kind.INVALID, each
        assert expected in str(caught.value), each


@pytest.mark.parametrize(
    "change",
    [
        {"values": {"a": 2}},
        {"values": None},
        {"dependsOn": ["other"]},
        {"chart": {"digest": DIGESTS["1.1.0"]}},
        {"readiness": {"rules": [{"kind": "Site", "path": "status.n", "operator": "Equals", "value": 2}]}},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_a_module_cannot_be_changed(hub: HubBed, change: dict[str, Any]) -> None:
    rules = [{"kind": "Site", "path": "status.n", "operator": "Equals", "value": 1}]
    await hub.add_module("dapr", values={"a": 1}, readiness={"rules": rules})

    with pytest.raises(GovernorError, match="a Module is immutable"):
        await hub.client.patch(
            RESOURCES["Module"], "dapr-1.0.0", hub.namespace, {"spec": change}, manager="user", subresource=""
        )
    labels = {"metadata": {"labels": {"team": "x"}}}
    await hub.client.patch(RESOURCES["Module"], "dapr-1.0.0", hub.namespace, labels, manager="user")


async def test_kubectl_lists_all_kinds_by_their_category_and_explains_every_level(
    hub: HubBed, control_plane: ControlPlane
) -> None:
    await hub.apply("Cluster", "local", LOCAL)
    await hub.add_module("dapr", dependsOn=["redis"])
    await hub.install("dapr", "dapr")

    async def discovered() -> bool:
        names = await control_plane.kubectl("api-resources", "--categories=governor", "--output=name")
        return len(names.split()) == len(DEFINITIONS)

    # The server lists a kind's category a moment after it serves the kind.
    await until(discovered)
    listed = await control_plane.kubectl("get", "governor", "--namespace", hub.namespace)
    assert {"cluster.runtime-governor.dev/local", "installation.runtime-governor.dev/dapr"} <= set(listed.split())
    for short in ("gcl", "gmod", "gch", "gin", "gmi"):
        await control_plane.kubectl("get", short, "--namespace", hub.namespace)
    modules = await control_plane.kubectl("get", "gmod", "--namespace", hub.namespace)
    assert modules.splitlines()[0].split() == ["NAME", "MODULE", "VERSION", "DEPENDS", "ON", "AGE"]
    explained = await control_plane.kubectl("explain", "installation.spec.valuesFromLabels")
    assert "A Cluster without the label is an error." in " ".join(explained.split())
    assert "<no value>" not in await control_plane.kubectl("explain", "cluster", "--recursive")
