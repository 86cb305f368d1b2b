"""Behaviour beside real controllers: the statuses that they set, and the deletion of namespaces.

The tests share one control plane with controllers, a scheduler and beta features, without nodes; each has a namespace.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from governor.kube.applyset import PruneOutcome
from governor.kube.client import Client, Transport
from governor.kube.objects import ApiResource, Object
from governor.kube.readiness.state import State
from testbed.kube.control_plane import ControlPlane, Options
from testbed.waiting import until
from tests.contract.kube.applyset.bed import CONFIG_MAPS, NAMESPACES, deployment, exists, make_set, namespace_of
from tests.contract.kube.bed import admin_of
from tests.contract.kube.readiness_bed import KNOWN, Cluster, served_kinds

pytestmark = pytest.mark.asyncio(loop_scope="module")

BETA_FEATURES = ("--runtime-config=api/beta=true", "--feature-gates=AllBeta=true")
ACCOUNTS = ApiResource("", "v1", "ServiceAccount", "serviceaccounts", namespaced=True)
PODS = ApiResource("", "v1", "Pod", "pods", namespaced=True)
SLICES = ApiResource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", namespaced=True)
POD = {"containers": [{"name": "web", "image": "example.com/web:1"}]}
LABELS = {"app": "web"}
RUNNING = {"phase": "Running", "conditions": [{"type": name, "status": "True"} for name in ("PodScheduled", "Ready")]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _plane(
    kubernetes_binaries: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ControlPlane]:
    options = Options(controllers=True, scheduler=True, api_flags=BETA_FEATURES)
    async with ControlPlane(kubernetes_binaries, tmp_path_factory.mktemp("controllers"), options) as plane:
        yield plane


@pytest_asyncio.fixture(loop_scope="module")
async def client(_plane: ControlPlane, server_logs: list[Path]) -> AsyncIterator[Client]:
    """An administrator's client."""
    server_logs.extend(server.log for server in _plane.servers)
    async with Transport() as transport:
        yield Client(transport, admin_of(_plane))


@pytest_asyncio.fixture(loop_scope="module")
async def namespace(client: Client) -> str:
    """The name of a new namespace in which pods can be created."""
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-", "name": ""}}
    created = await client.create(NAMESPACES, manifest, manager="tests")
    name = str(created["metadata"]["name"])
    await until(lambda: exists(client, ACCOUNTS, "default", name))
    return name


@pytest.fixture
def live(client: Client, namespace: str) -> Cluster:
    """The objects of that namespace."""
    return Cluster(client, namespace)


async def test_with_beta_features_each_kind_is_known_and_each_known_kind_exists(client: Client) -> None:
    served = await served_kinds(client)
    assert sorted(served - KNOWN) == [], "neither in RULES_BY_KIND nor in ALWAYS_READY"
    assert sorted(KNOWN - served) == [], "no such kind"


def _workload(**spec: Any) -> Object:
    template = {"metadata": {"labels": LABELS}, "spec": POD}
    return {"spec": {"selector": {"matchLabels": LABELS}, "template": template} | spec}


async def test_statuses_of_real_controllers_are_recognised(live: Cluster) -> None:
    await live.create("apps", "Deployment", "web", _workload(replicas=2, progressDeadlineSeconds=1, minReadySeconds=0))
    await live.create("apps", "Deployment", "none", _workload(replicas=0))
    await live.create("apps", "StatefulSet", "web", _workload(replicas=1, serviceName="web"))
    await live.create("apps", "DaemonSet", "web", _workload())
    await live.create("", "ResourceQuota", "quota", {"spec": {"hard": {"configmaps": "1000"}}})
    budget = {"minAvailable": 1, "selector": {"matchLabels": LABELS}}
    await live.create("policy", "PodDisruptionBudget", "web", {"spec": budget})
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await live.create("", "PersistentVolumeClaim", "data", {"spec": claim})
    job = {"template": {"spec": POD | {"restartPolicy": "Never"}}}
    await live.create("batch", "Job", "once", {"spec": job})
    await live.create("batch", "Job", "later", {"spec": job | {"suspend": True}})
    await live.create("", "Pod", "lonely", {"spec": POD})
    await live.create("", "Service", "lb", {"spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}})

    await live.reaches("apps", "Deployment", "web", State.FAILED, "ProgressDeadlineExceeded")
    await live.reaches("apps", "Deployment", "none", State.READY, "ScaledToZero")
    await live.reaches("apps", "StatefulSet", "web", State.PROGRESSING, "RollingOut")
    await live.reaches("apps", "DaemonSet", "web", State.READY, "NoNodes")
    await live.reaches("", "ResourceQuota", "quota", State.READY, "Computed")
    await live.reaches("policy", "PodDisruptionBudget", "web", State.READY, "InsufficientPods")
    await live.reaches("", "PersistentVolumeClaim", "data", State.PROGRESSING, "Pending")
    running = await live.reaches("batch", "Job", "once", State.PROGRESSING, "Running")
    assert "succeeded" in running.message
    await live.reaches("batch", "Job", "later", State.PROGRESSING, "Suspended")
    lonely = await live.reaches("", "Pod", "lonely", State.PROGRESSING, "Unschedulable")
    assert "no nodes available" in lonely.message
    await live.reaches("", "Service", "lb", State.PROGRESSING, "LoadBalancerPending")


async def test_a_terminating_namespace_reports_what_blocks_it(live: Cluster, namespace: str) -> None:
    assert (await live.readiness_of("", "Namespace", namespace)).state is State.READY
    await live.create("", "ConfigMap", "held", {}, finalizers=["example.com/hold"])
    await live.delete("", "Namespace", namespace)
    readiness = await live.reaches("", "Namespace", namespace, State.TERMINATING, "SomeResourcesRemain")
    assert "example.com/hold" in readiness.message


async def test_a_deployment_is_ready_with_all_its_pods_and_a_job_when_complete(live: Cluster) -> None:
    await live.create("apps", "Deployment", "web", _workload(replicas=2))
    await live.create("batch", "Job", "once", {"spec": {"template": {"spec": POD | {"restartPolicy": "Never"}}}})
    first, second = await until(lambda: live.pods("app=web", 2))
    (worker,) = await until(lambda: live.pods("job-name=once", 1))

    await live.set_status("", "Pod", first, RUNNING)
    readiness = await live.reports("apps", "Deployment", "web", "1 of 2 available")
    assert readiness.state is State.PROGRESSING
    await live.set_status("", "Pod", second, RUNNING)
    assert (await live.reaches("apps", "Deployment", "web", State.READY, "Available")).message == "2 available"

    await live.set_status("", "Pod", worker, {"phase": "Succeeded"})
    await live.reaches("batch", "Job", "once", State.READY, "CompletionsReached")
    assert (await live.readiness_of("", "Pod", worker)).state is State.READY


async def test_an_apply_set_deletes_its_namespace(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    inner = f"{namespace}-inner"
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s", "namespace": inner},
        "spec": {"selector": {"app": "d"}, "ports": [{"port": 80}]},
    }
    workload = deployment("d", 2)
    workload["metadata"]["namespace"] = inner
    assert (await objects.converge([namespace_of(inner), service, workload])).ok

    async def all_created() -> bool:
        found = [[each async for each in client.list(kind, inner)] for kind in (PODS, SLICES, CONFIG_MAPS)]
        return len(found[0]) == 2 and all(found)

    await until(all_created)
    planned = await objects.delete_all(dry_run=True)
    assert planned.counts() == {PruneOutcome.REMOVED: 3}, planned

    async def deleted() -> bool:
        report = await objects.delete_all()
        assert PruneOutcome.HELD not in report.counts(), report
        return report.complete

    await until(deleted)
    assert not await exists(client, NAMESPACES, inner, terminating=True)
