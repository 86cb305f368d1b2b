"""Discovery on a real API server, and how it changes."""

import asyncio
from typing import Any

import pytest

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Transport, discovery
from governor.kube.objects import ApiResource
from governor.process.telemetry.instruments import Registry
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.bed import FaultyApi, admin_of

DEFINITIONS = ApiResource(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
API_SERVICES = ApiResource("apiregistration.k8s.io", "v1", "APIService", "apiservices", namespaced=False)


def definition(group: str) -> dict[str, Any]:
    """Return the definition of a kind with two versions, the newer one with a status subresource."""
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [
        {"name": "v1", "served": True, "storage": True, "schema": anything, "subresources": {"status": {}}},
        {"name": "v1beta1", "served": True, "storage": False, "schema": anything},
    ]
    spec = {
        "group": group,
        "scope": "Namespaced",
        "names": {"kind": "Ship", "plural": "ships", "singular": "ship"},
        "versions": versions,
    }
    metadata = {"name": f"ships.{group}"}
    return {"apiVersion": DEFINITIONS.api_version, "kind": DEFINITIONS.kind, "metadata": metadata, "spec": spec}


async def find_ship(client: Client, group: str) -> ApiResource | None:
    """Return the kind if it is served."""
    client.discovery.invalidate()
    try:
        return await client.discovery.find(group, "Ship")
    except GovernorError as error:
        assert error.kind is Kind.NOT_FOUND  # noqa: PT017 - raising is optional
        return None


async def test_the_kinds_of_kubernetes_are_found(client: Client) -> None:
    deployment = await client.discovery.find("apps", "Deployment")
    assert (deployment.version, deployment.plural, deployment.namespaced) == ("v1", "deployments", True)
    assert {"status", "scale"} <= deployment.subresources
    assert {"get", "list", "watch", "patch", "delete"} <= deployment.verbs
    node = await client.discovery.find("", "Node", "v1")
    assert (node.api_version, node.namespaced) == ("v1", False)


async def test_discovery_takes_two_requests_and_unchanged_documents_are_not_transferred_again(
    api: ControlPlane,
) -> None:
    registry = Registry()
    async with Transport(registry=registry) as transport:
        client = Client(transport, admin_of(api))
        before = await client.discovery.preferred_resources()
        client.discovery.invalidate()
        assert await client.discovery.preferred_resources() == before
    counts = {
        code: registry.value("rest_client_requests_total", {"code": code, "method": "GET"}) for code in ("200", "304")
    }
    assert counts == {"200": 2.0, "304": 2.0}


async def test_the_unaggregated_discovery_of_an_older_server_is_rejected_by_name(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "_ACCEPT", "application/json")
    with pytest.raises(GovernorError, match=r"older than Kubernetes 1\.30") as caught:
        await client.discovery.preferred_resources()
    assert (caught.value.kind, caught.value.code) == (Kind.UNIMPLEMENTED, "kube-server-version")


async def test_a_kind_is_served_while_its_definition_exists(client: Client, namespace: str) -> None:
    group = f"{namespace}.example.com"
    assert await find_ship(client, group) is None
    await client.apply(DEFINITIONS, definition(group), manager="tests")

    found = await until(lambda: find_ship(client, group))
    assert found is not None
    assert (found.version, found.namespaced, found.subresources) == ("v1", True, frozenset({"status"}))
    assert (await client.discovery.find(group, "Ship", "v1beta1")).version == "v1beta1"
    assert found in await client.discovery.preferred_resources()
    ship = {"apiVersion": f"{group}/v1", "kind": "Ship", "metadata": {"name": "a", "namespace": namespace}, "masts": 3}
    assert (await client.apply(found, ship, manager="tests"))["masts"] == 3
    await client.delete(found, "a", namespace)

    await client.delete(DEFINITIONS, f"ships.{group}")
    await until(lambda: is_gone(client, group))


async def is_gone(client: Client, group: str) -> bool:
    return await find_ship(client, group) is None


async def default_kinds(client: Client) -> set[ApiResource]:
    """Return the kinds of Kubernetes itself; definitions of earlier tests may be ending."""
    found = await client.discovery.preferred_resources()
    return {each for each in found if "." not in each.group or each.group.endswith(".k8s.io")}


async def test_an_unavailable_aggregated_server_hides_no_other_group(client: Client, namespace: str) -> None:
    everything = await default_kinds(client)
    group = f"{namespace}.example.com"
    spec = {
        "group": group,
        "version": "v1",
        "service": {"name": "missing", "namespace": "default"},
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
    }
    metadata = {"name": f"v1.{group}"}
    manifest = {"apiVersion": API_SERVICES.api_version, "kind": "APIService", "metadata": metadata, "spec": spec}
    await client.create(API_SERVICES, manifest, manager="tests")

    async def is_stale() -> bool:
        client.discovery.invalidate()
        return group in await client.discovery.stale_groups()

    try:
        await until(is_stale)
        assert await default_kinds(client) == everything
        with pytest.raises(GovernorError) as caught:
            await client.discovery.find(group, "PodMetrics")
        assert (caught.value.kind, caught.value.code) == (Kind.UNAVAILABLE, "kube-group-stale")
    finally:
        await client.delete(API_SERVICES, f"v1.{group}")


async def test_concurrent_lookups_share_one_fetch(faults: FaultyApi) -> None:
    await asyncio.gather(*(faults.client.discovery.find("apps", "Deployment") for _ in range(50)))
    assert [request.path for request in faults.requests] == ["/api", "/apis"]
