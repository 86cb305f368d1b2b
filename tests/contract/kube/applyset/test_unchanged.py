"""Runs of a caller whose watch says which objects of the set are unchanged."""

import pytest

from governor.kube.applyset import ConvergeReport, DriftMode, Outcome, Recreate
from governor.kube.client import Client, Transport
from governor.kube.objects import Object, ObjectRef
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    INVENTORY,
    LABEL,
    SECRETS,
    RecordingClient,
    config_map,
    deployment,
    make_set,
    outcomes,
)
from tests.contract.kube.bed import admin_of


@pytest.fixture
def recording(api: ControlPlane, transport: Transport) -> RecordingClient:
    return RecordingClient(transport, admin_of(api))


def secret(name: str, password: str = "cGxhbg==") -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"password": password}}


def versions(report: ConvergeReport) -> dict[ObjectRef, str]:
    """Return the resourceVersions that a watch knows after a run."""
    return {ref: entry.seen.version for ref, entry in report.entries.items()}


def reads(client: RecordingClient) -> list[str]:
    """Return the paths of all reads but that of the inventory, which comes first."""
    paths = [request.path for request in client.sent if request.method == "GET"]
    assert paths[0].endswith(f"/configmaps/{INVENTORY}")
    return paths[1:]


@pytest.mark.parametrize("mode", DriftMode)
async def test_only_the_inventory_and_secrets_are_read(
    recording: RecordingClient, namespace: str, mode: DriftMode
) -> None:
    manifests = [config_map("c"), secret("s"), deployment("d")]
    objects = make_set(recording, namespace, single_reads=1)
    applied = await objects.converge(manifests)
    recording.sent.clear()
    report = await objects.converge(manifests, drift=mode, unchanged=versions(applied))
    assert (report.ok, report.apply.unsent, report.drift.objects) == (True, 3, ())
    assert (reads(recording), recording.writes) == ([SECRETS.path(namespace, "s")], [])
    assert report.entries == applied.entries == await objects.inventory()


async def test_an_object_that_is_not_unchanged_is_compared_and_repaired(
    client: Client, recording: RecordingClient, namespace: str
) -> None:
    manifests = [config_map("a", x="1"), config_map("b")]
    objects = make_set(recording, namespace, single_reads=2)
    applied = await objects.converge(manifests)
    await client.patch(CONFIG_MAPS, "a", namespace, {"data": {"x": "2"}}, manager="other-client")
    recording.sent.clear()
    ref = ObjectRef("", "ConfigMap", namespace, "b")
    report = await objects.converge(manifests, unchanged={ref: versions(applied)[ref]})
    assert [(each.ref.name, each.remains) for each in report.drift.objects] == [("a", False)]
    assert set(reads(recording)) == {CONFIG_MAPS.path(namespace, "a")}
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"x": "1"}


async def test_a_changed_manifest_is_applied_without_a_read_at_the_watched_version(
    recording: RecordingClient, namespace: str
) -> None:
    objects = make_set(recording, namespace, single_reads=1)
    applied = await objects.converge([config_map("c"), secret("s"), deployment("d")])
    recording.sent.clear()
    manifests = [config_map("c", x="2"), secret("s", "bmV3"), deployment("d", replicas=3)]
    report = await objects.converge(manifests, unchanged=versions(applied))
    assert (report.ok, set(outcomes(report.apply).values())) == (True, {Outcome.CHANGED})
    assert reads(recording) == [SECRETS.path(namespace, "s")]
    assert report.entries == await objects.inventory()


async def test_an_immutable_field_is_recognised_without_a_read(recording: RecordingClient, namespace: str) -> None:
    objects = make_set(recording, namespace, recreate=Recreate.ON_IMMUTABLE)
    applied = await objects.converge([deployment("d")])
    recording.sent.clear()
    selector = {"matchLabels": {"app": "d", "tier": "web"}}
    template = {"metadata": {"labels": selector["matchLabels"]}, "spec": deployment("d")["spec"]["template"]["spec"]}
    manifest = deployment("d", selector=selector, template=template)
    report = await objects.converge([manifest], unchanged=versions(applied))
    assert outcomes(report.apply) == {"d": Outcome.RECREATED}


@pytest.mark.parametrize("force", [False, True])
async def test_a_late_watch_is_noticed_before_anything_is_written(
    client: Client, recording: RecordingClient, namespace: str, force: bool
) -> None:
    objects = make_set(recording, namespace, force_conflicts=force)
    applied = await objects.converge([config_map("a", x="1")])
    await client.patch(CONFIG_MAPS, "a", namespace, {"metadata": {"labels": {LABEL: "other"}}}, manager="other-client")
    recording.sent.clear()
    report = await objects.converge([config_map("a", x="2")], unchanged=versions(applied))
    assert outcomes(report.apply) == {"a": Outcome.REFUSED}
    assert reads(recording) == [CONFIG_MAPS.path(namespace, "a")]
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"x": "1"}
