"""A protected module beside the controllers of Kubernetes, kubectl and the governor's agent."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from governor.agent.platforms.kubernetes.restarts.restarter import Restarter
from governor.domain.reports import WorkloadRef
from governor.kube.objects import ApiResource, Object
from governor.process.clock import SystemClock
from testbed.kube.control_plane import ControlPlane, Options
from tests.contract.kube.applyset.bed import CONFIG_MAPS, DEPLOYMENTS, config_map, deployment
from tests.contract.reconciler.steps.bed import ModuleBed, listed
from tests.contract.reconciler.steps.test_protection import POLICY, grant, protected, refusal

REPLICA_SETS = ApiResource("apps", "v1", "ReplicaSet", "replicasets", namespaced=True)
BUDGETS = ApiResource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", namespaced=True)


@pytest.fixture
async def control_plane(
    kubernetes_binaries: dict[str, Path], tmp_path: Path, server_logs: list[Path]
) -> AsyncIterator[ControlPlane]:
    """A control plane with all controllers of Kubernetes."""
    async with ControlPlane(kubernetes_binaries, tmp_path / "plane", Options(controllers=True)) as plane:
        server_logs.extend(server.log for server in plane.servers)
        yield plane


def autoscaler(name: str, minimum: int) -> Object:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    spec = {"scaleTargetRef": target, "minReplicas": minimum, "maxReplicas": 5}
    kind = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


def budget(name: str, labels: Object) -> Object:
    spec = {"minAvailable": 1, "selector": {"matchLabels": labels}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}


@pytest.mark.soak
async def test_controllers_restarts_and_our_agent_work_on_a_protected_module(bed: ModuleBed) -> None:
    dev = bed.client.impersonating("dev")
    web = deployment("web", replicas=1)
    objects = [web, autoscaler("web", 3), budget("web", web["spec"]["selector"]["matchLabels"]), config_map("a")]
    space = f"{bed.namespace}-own"
    await bed.add("orders", namespace=space, **POLICY)
    bed.space = space
    await bed.install("orders", "orders", values=listed(*objects))
    await bed.is_applied("orders")
    await grant(bed, "--user=dev")
    await protected(bed, dev, "a")
    await bed.has_replicas("web", 3)
    assert "managed by" in await refusal(dev, DEPLOYMENTS, "web", space, {"spec": {"minReadySeconds": 5}})
    assert "managed by" in await refusal(dev, BUDGETS, "web", space, {"spec": {"minAvailable": 0}})

    async def has_sets(number: int) -> bool:
        return len([each async for each in bed.client.list(REPLICA_SETS, space)]) == number

    await bed.until(lambda: has_sets(1))

    async def is_counted() -> bool:
        found = await bed.find(BUDGETS, "web") or {}
        return bool(found.get("status", {}).get("observedGeneration") == 1)

    await bed.until(is_counted)
    await bed.plane.kubectl("rollout", "restart", "deployment/web", f"--namespace={space}", "--as=dev")
    await bed.until(lambda: has_sets(2))

    async def permit() -> None:
        """Allow every write."""

    workload = WorkloadRef(namespace=space, kind="Deployment", name="web")
    restarted = await Restarter(dev, SystemClock(), permit).restart(workload, "digest-1")
    assert restarted.written, restarted
    await bed.until(lambda: has_sets(3))
    live = await bed.client.get(DEPLOYMENTS, "web", space)
    assert set(live["spec"]["template"]["metadata"]["annotations"]) == {
        "kubectl.kubernetes.io/restartedAt",
        "runtime-governor.dev/restart",
    }

    await bed.plane.kubectl("delete", "role,rolebinding", "dev", f"--namespace={space}")  # others' objects hold it
    await bed.delete("Installation", "orders")
    await bed.gone("ModuleInstance", "orders.local")
    for resource, name in ((DEPLOYMENTS, "web"), (CONFIG_MAPS, "a"), (BUDGETS, "web")):
        assert await bed.find(resource, name) is None
