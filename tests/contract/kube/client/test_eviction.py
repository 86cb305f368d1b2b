"""Evictions on a real API server, which itself checks the disruption budgets; no controller computes their status."""

import pytest

from governor.errors import Kind
from governor.kube.client import Client
from governor.kube.errors import ApiError
from governor.kube.objects import ApiResource, Object

PODS = ApiResource("", "v1", "Pod", "pods", namespaced=True)
BUDGETS = ApiResource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", namespaced=True)
LABELS = {"app": "web"}


@pytest.fixture
async def pod(client: Client, namespace: str) -> Object:
    """A running pod; a budget does not protect a pending one."""
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": namespace, "labels": LABELS},
        "spec": {"containers": [{"name": "web", "image": "example.com/web:1"}], "terminationGracePeriodSeconds": 0},
    }
    await client.create(PODS, manifest, manager="tests")
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return await client.patch(PODS, "web", namespace, {"status": running}, manager="tests", subresource="status")


async def budget(client: Client, namespace: str, allowed: int) -> None:
    manifest = {
        "apiVersion": BUDGETS.api_version,
        "kind": BUDGETS.kind,
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": LABELS}},
    }
    await client.create(BUDGETS, manifest, manager="tests")
    status = {
        "observedGeneration": 1,
        "disruptionsAllowed": allowed,
        "currentHealthy": 1 + allowed,
        "desiredHealthy": 1,
        "expectedPods": 2,
    }
    await client.patch(BUDGETS, "web", namespace, {"status": status}, manager="tests", subresource="status")


async def exists(client: Client, namespace: str) -> bool:
    return bool([each async for each in client.list(PODS, namespace)])


async def test_a_pod_is_evicted_while_its_budget_allows_a_disruption(
    client: Client, namespace: str, pod: Object
) -> None:
    await budget(client, namespace, allowed=1)
    await client.evict("web", namespace, uid=pod["metadata"]["uid"])
    assert not await exists(client, namespace)
    assert (await client.get(BUDGETS, "web", namespace))["status"]["disruptionsAllowed"] == 0


async def test_a_spent_budget_rejects_at_once(client: Client, namespace: str, pod: Object) -> None:
    await budget(client, namespace, allowed=0)
    with pytest.raises(ApiError) as caught:
        await client.evict("web", namespace, uid=pod["metadata"]["uid"])
    assert (caught.value.kind, caught.value.status, caught.value.retry_after_s) == (Kind.EXHAUSTED, 429, None)
    assert [cause.reason for cause in caught.value.causes] == ["DisruptionBudget"]
    assert await exists(client, namespace)


async def test_another_pod_of_the_same_name_is_not_evicted(client: Client, namespace: str, pod: Object) -> None:
    with pytest.raises(ApiError) as caught:
        await client.evict("web", namespace, uid="another")
    assert caught.value.kind is Kind.CONFLICT
    assert await exists(client, namespace)


async def test_a_pod_that_is_gone_is_not_found(client: Client, namespace: str) -> None:
    with pytest.raises(ApiError) as caught:
        await client.evict("web", namespace)
    assert caught.value.kind is Kind.NOT_FOUND
