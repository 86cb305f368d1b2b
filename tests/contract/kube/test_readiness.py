"""Readiness covers all kinds of a real API server and the statuses of real controllers."""

from collections.abc import Callable
from typing import Any

import pytest

from governor.kube.client import Client, Transport
from governor.kube.objects import ApiResource, Object
from governor.kube.readiness.kinds import ALWAYS_READY, RULES_BY_KIND, compute_readiness
from governor.kube.readiness.state import Readiness, State
from testbed.kube.control_plane import ControlPlane, Options
from testbed.pytest_plugin import StartControlPlane
from testbed.waiting import until
from tests.contract.kube.bed import admin_of

ALL_FEATURES = Options(api_flags=("--runtime-config=api/all=true", "--feature-gates=AllAlpha=true,AllBeta=true"))
KNOWN = ALWAYS_READY | RULES_BY_KIND.keys()
POD = {"containers": [{"name": "web", "image": "example.com/web:1"}]}
LABELS = {"app": "web"}
RUNNING = {"phase": "Running", "conditions": [{"type": name, "status": "True"} for name in ("PodScheduled", "Ready")]}


async def _served(client: Client) -> frozenset[tuple[str, str]]:
    return frozenset((each.group, each.kind) for each in await client.discovery.preferred_resources())


async def test_each_default_kind_is_known(client: Client) -> None:
    served = {(group, kind) for group, kind in await _served(client) if "." not in group or group.endswith(".k8s.io")}
    assert sorted(served - KNOWN) == [], "neither in RULES_BY_KIND nor in ALWAYS_READY"
    assert len(served) > 50


async def test_with_all_features_each_kind_is_known_and_each_known_kind_exists(
    start_api: StartControlPlane, transport: Transport
) -> None:
    served = await _served(Client(transport, admin_of(await start_api(ALL_FEATURES))))
    assert sorted(served - KNOWN) == [], "neither in RULES_BY_KIND nor in ALWAYS_READY"
    assert sorted(KNOWN - served) == [], "no such kind"


class _Cluster:
    """Creates objects in a cluster and waits for their readiness."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def create(self, group: str, kind: str, name: str, content: Object, **metadata: Any) -> Object:
        resource = await self._client.discovery.find(group, kind)
        manifest = {
            "apiVersion": resource.api_version,
            "kind": kind,
            "metadata": {"name": name, **({"namespace": self._namespace} if resource.namespaced else {}), **metadata},
            **content,
        }
        return await self._client.create(resource, manifest, manager="tests")

    async def readiness_of(self, group: str, kind: str, name: str) -> Readiness:
        resource = await self._client.discovery.find(group, kind)
        return compute_readiness(await self._client.get(resource, name, self._namespace if resource.namespaced else ""))

    async def reaches(self, group: str, kind: str, name: str, state: State, reason: str) -> Readiness:
        """Wait for a state and reason, and return the readiness."""
        return await self._wait_for(
            group, kind, name, lambda readiness: (readiness.state, readiness.reason), (state, reason)
        )

    async def reports(self, group: str, kind: str, name: str, message: str) -> Readiness:
        """Wait for a message, and return the readiness."""
        return await self._wait_for(group, kind, name, lambda readiness: readiness.message, message)

    async def _wait_for(
        self, group: str, kind: str, name: str, aspect: Callable[[Readiness], object], expected: object
    ) -> Readiness:
        seen: list[Readiness] = []

        async def matches() -> bool:
            seen.append(await self.readiness_of(group, kind, name))
            return aspect(seen[-1]) == expected

        try:
            await until(matches)
        except TimeoutError:
            pytest.fail(f"{kind} {name} is not {expected} but {seen[-1]}")
        return seen[-1]

    async def set_status(self, group: str, kind: str, name: str, status: Object) -> None:
        resource = await self._client.discovery.find(group, kind)
        namespace = self._namespace if resource.namespaced else ""
        change = {"status": status}
        await self._client.patch(resource, name, namespace, change, manager="tests", subresource="status")

    async def pods(self, labels: str, count: int) -> list[str]:
        """Return the names of the pods with these labels if there are exactly ``count``, otherwise an empty list."""
        pods = await self._client.discovery.find("", "Pod")
        names = [each["metadata"]["name"] async for each in self._client.list(pods, self._namespace, labels=labels)]
        return names if len(names) == count else []

    async def delete(self, group: str, kind: str, name: str) -> None:
        resource = await self._client.discovery.find(group, kind)
        await self._client.delete(resource, name, self._namespace if resource.namespaced else "")


@pytest.fixture
async def bare(client: Client, namespace: str) -> _Cluster:
    """A cluster without controllers."""
    return _Cluster(client, namespace)


async def test_a_definition_is_ready_when_its_kind_is_served_and_failed_when_its_names_are_taken(
    bare: _Cluster, namespace: str
) -> None:
    group = f"{namespace}.example.com"

    async def define(plural: str) -> str:
        names = {"plural": plural, "singular": plural, "kind": "Widget", "listKind": f"{plural}List"}
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        version = {"name": "v1", "served": True, "storage": True, "schema": schema}
        spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
        await bare.create("apiextensions.k8s.io", "CustomResourceDefinition", f"{plural}.{group}", {"spec": spec})
        return f"{plural}.{group}"

    first, second = await define("widgets"), await define("gadgets")
    definition = ("apiextensions.k8s.io", "CustomResourceDefinition")
    await bare.reaches(*definition, first, State.READY, "InitialNamesAccepted")
    readiness = await bare.reaches(*definition, second, State.FAILED, "KindConflict")
    assert '"Widget" is already in use' in readiness.message


async def test_an_aggregated_api_without_its_service_is_not_ready(bare: _Cluster, namespace: str) -> None:
    spec = {
        "group": f"{namespace}.example.com",
        "version": "v1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
        "service": {"namespace": namespace, "name": "absent"},
    }
    name = f"v1.{namespace}.example.com"
    await bare.create("apiregistration.k8s.io", "APIService", name, {"spec": spec})
    try:
        readiness = await bare.reaches(
            "apiregistration.k8s.io", "APIService", name, State.PROGRESSING, "ServiceNotFound"
        )
        assert namespace in readiness.message
    finally:
        await bare.delete("apiregistration.k8s.io", "APIService", name)


async def test_a_terminating_object_reports_its_finalizers(bare: _Cluster) -> None:
    await bare.create("", "ConfigMap", "held", {}, finalizers=["example.com/hold"])
    await bare.delete("", "ConfigMap", "held")
    readiness = await bare.readiness_of("", "ConfigMap", "held")
    assert (readiness.state, readiness.reason) == (State.TERMINATING, "Finalizers")
    assert "example.com/hold" in readiness.message


@pytest.fixture
async def live(start_api: StartControlPlane, transport: Transport) -> _Cluster:
    """A separate cluster with controllers and a scheduler, without nodes."""
    plane: ControlPlane = await start_api(Options(controllers=True, scheduler=True))
    client = Client(transport, admin_of(plane))
    accounts = ApiResource("", "v1", "ServiceAccount", "serviceaccounts", namespaced=True)
    await until(lambda: _exists(client, accounts, "default"))
    return _Cluster(client, "default")


async def _exists(client: Client, resource: ApiResource, name: str) -> bool:
    return any([each["metadata"]["name"] == name async for each in client.list(resource, "default")])


def _workload(**spec: Any) -> Object:
    template = {"metadata": {"labels": LABELS}, "spec": POD}
    return {"spec": {"selector": {"matchLabels": LABELS}, "template": template} | spec}


async def test_statuses_of_real_controllers_are_recognised(live: _Cluster) -> None:
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


async def test_a_terminating_namespace_reports_what_blocks_it(live: _Cluster) -> None:
    await live.create("", "Namespace", "ending", {})
    assert (await live.readiness_of("", "Namespace", "ending")).state is State.READY
    await live.create("", "ConfigMap", "held", {}, namespace="ending", finalizers=["example.com/hold"])
    await live.delete("", "Namespace", "ending")
    readiness = await live.reaches("", "Namespace", "ending", State.TERMINATING, "SomeResourcesRemain")
    assert "example.com/hold" in readiness.message


async def test_a_deployment_is_ready_with_all_its_pods_and_a_job_when_complete(live: _Cluster) -> None:
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
