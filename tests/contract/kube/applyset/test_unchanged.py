"""Runs of a caller whose watch says which objects of the set are unchanged."""

import pytest

from governor.kube.applyset import DriftMode, Outcome
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
    report = await objects.converge(manifests, drift=mode, unchanged=applied.entries.keys())
    assert (report.ok, report.apply.unsent, report.drift.objects) == (True, 3, ())
    assert (reads(recording), recording.writes) == ([SECRETS.path(namespace, "s")], [])
    assert report.entries == applied.entries == await objects.inventory()


async def test_an_object_that_is_not_unchanged_is_compared_and_repaired(
    client: Client, recording: RecordingClient, namespace: str
) -> None:
    manifests = [config_map("a", x="1"), config_map("b")]
    objects = make_set(recording, namespace, single_reads=2)
    await objects.converge(manifests)
    await client.patch(CONFIG_MAPS, "a", namespace, {"data": {"x": "2"}}, manager="other-client")
    recording.sent.clear()
    report = await objects.converge(manifests, unchanged=[ObjectRef("", "ConfigMap", namespace, "b")])
    assert [(each.ref.name, each.remains) for each in report.drift.objects] == [("a", False)]
    assert set(reads(recording)) == {CONFIG_MAPS.path(namespace, "a")}
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"x": "1"}


async def test_a_changed_manifest_is_applied_onto_the_live_object_whatever_the_watch_says(
    client: Client, recording: RecordingClient, namespace: str
) -> None:
    objects = make_set(recording, namespace)
    applied = await objects.converge([config_map("a", x="1")])
    await client.patch(CONFIG_MAPS, "a", namespace, {"metadata": {"labels": {LABEL: "other"}}}, manager="other-client")
    recording.sent.clear()
    report = await objects.converge([config_map("a", x="2")], unchanged=applied.entries.keys())
    assert outcomes(report.apply) == {"a": Outcome.REFUSED}
    assert reads(recording) == [CONFIG_MAPS.path(namespace, "a")]
