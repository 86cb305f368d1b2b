"""Whether clusters answer: with kubeconfigs from Secrets, wrong ones, and API servers that hang or are gone."""

import base64

import pytest
import yaml

from governor.kube.objects import Object
from governor.reconciler import targets
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import SECRETS
from tests.contract.kube.bed import FaultyApi
from tests.contract.reconciler.bed import LOCAL, HubBed, condition, reason, state

REMOTE = {"access": {"kubeconfigSecret": {"name": "eu"}}}


def kubeconfig(plane: ControlPlane, server: str = "", **user: str) -> str:
    """Return the administrator's kubeconfig with everything inline, of another server or with another user."""
    found = yaml.safe_load(plane.kubeconfig.read_text())
    if server:
        found["clusters"][0]["cluster"]["server"] = server
    if user:
        found["users"][0]["user"] = user
    return yaml.safe_dump(found)


async def put(hub: HubBed, text: str, key: str = "kubeconfig") -> None:
    data = {key: base64.b64encode(text.encode()).decode()}
    metadata = {"name": "eu", "namespace": hub.namespace}
    manifest: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
    await hub.client.apply(SECRETS, manifest, manager="user", force=True)


@pytest.fixture(autouse=True)
def _frequent_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "PROBE_INTERVAL_S", 0.2)
    monkeypatch.setattr(targets, "RETRY_INTERVAL_S", 0.1)


async def test_a_remote_cluster_is_reached_as_soon_as_its_kubeconfig_is_right(
    hub: HubBed, control_plane: ControlPlane
) -> None:
    async with hub.reconciling():
        await hub.apply("Cluster", "eu", REMOTE)
        found = await hub.shows("Cluster", "eu", lambda each: reason(each, "Reachable") == "AccessMissing")
        assert "there is no Secret eu with a kubeconfig" in condition(found, "Reachable")["message"]
        await put(hub, "x: 1", key="other")
        await hub.shows("Cluster", "eu", lambda each: reason(each, "Reachable") == "AccessMissing")
        await put(hub, kubeconfig(control_plane, tokenFile="/etc/passwd"))
        found = await hub.shows("Cluster", "eu", lambda each: reason(each, "Reachable") == "AccessDenied")
        assert "no files, programs or insecure connections" in condition(found, "Reachable")["message"]
        await put(hub, kubeconfig(control_plane, token="wrong"))
        await hub.shows("Cluster", "eu", lambda each: "nauthorized" in condition(each, "Reachable").get("message", ""))
        await put(hub, kubeconfig(control_plane))
        found = await hub.shows("Cluster", "eu", lambda each: reason(each, "Reachable") == "Answers")
        assert found["status"]["version"].startswith("v1.")
        assert len(found["status"]["uid"]) == 36
        assert state(found) == "Ready"


async def test_a_cluster_that_does_not_answer_ages_to_unknown_and_delays_no_other(
    hub: HubBed, control_plane: ControlPlane, faults: FaultyApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "PROBE_TIMEOUT_S", 1.0)
    await put(hub, kubeconfig(control_plane, faults.url))
    async with hub.reconciling(unknown_after=1.0):
        await hub.apply("Cluster", "eu", REMOTE)
        await hub.apply("Cluster", "local", LOCAL)
        await hub.add_module("dapr")
        await hub.install("dapr", "dapr", clusterSelector={})
        await hub.shows("Cluster", "eu", lambda each: reason(each, "Reachable") == "Answers")
        await hub.shows("Cluster", "eu", lambda each: each["status"]["ready"] == "1/1")
        faults.stall()
        found = await hub.shows("Cluster", "eu", lambda each: state(each) == "Unknown")
        (line,) = found["status"]["modules"]
        assert (line["state"], line["message"]) == ("Unknown", "last known state: Ready")
        version = found["metadata"]["resourceVersion"]
        await hub.add_module("redis")
        await hub.install("redis", "redis")
        await hub.shows("ModuleInstance", "redis.local", state)
        await hub.shows("Cluster", "local", lambda each: each["status"]["ready"] == "2/2")
        assert (await hub.get("Cluster", "eu"))["metadata"]["resourceVersion"] == version, "nothing new was written"
        faults.resume()
        await hub.shows("Cluster", "eu", lambda each: state(each) == "Ready")
