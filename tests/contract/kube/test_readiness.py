"""The tables of readiness cover what a real API server serves, and real controllers' statuses are understood."""

from collections.abc import Callable
from typing import Any

import pytest

from governor.kube.client import Client, Transport
from governor.kube.objects import ApiResource, Object
from governor.kube.readiness.table import ALWAYS_READY, RULES, judge
from governor.kube.readiness.verdict import Readiness, State
from testbed.kube.control_plane import ControlPlane, Options
from testbed.pytest_plugin import StartControlPlane
from testbed.waiting import until
from tests.contract.kube.bed import admin_of

EVERYTHING = Options(api_flags=("--runtime-config=api/all=true", "--feature-gates=AllAlpha=true,AllBeta=true"))
TABLES = ALWAYS_READY | RULES.keys()
POD = {"containers": [{"name": "web", "image": "example.com/web:1"}]}
LABELS = {"app": "web"}
UP = {"phase": "Running", "conditions": [{"type": name, "status": "True"} for name in ("PodScheduled", "Ready")]}


async def _served(client: Client) -> frozenset[tuple[str, str]]:
    return frozenset((each.group, each.kind) for each in await client.discovery.preferred_resources())


async def test_each_kind_of_a_server_as_delivered_has_a_rule_or_is_always_ready(client: Client) -> None:
    served = {(group, kind) for group, kind in await _served(client) if "." not in group or group.endswith(".k8s.io")}
    assert sorted(served - TABLES) == [], "neither in RULES nor in ALWAYS_READY"
    assert len(served) > 50


async def test_each_kind_of_a_server_with_everything_on_has_a_rule_and_no_rule_is_for_nothing(
    start_api: StartControlPlane, transport: Transport
) -> None:
    served = await _served(Client(transport, admin_of(await start_api(EVERYTHING))))
    assert sorted(served - TABLES) == [], "neither in RULES nor in ALWAYS_READY"
    assert sorted(TABLES - served) == [], "no such kind"


class _Cluster:
    """What tests do with a cluster: put an object, and see how it is judged."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def put(self, group: str, kind: str, name: str, content: Object, **metadata: Any) -> Object:
        resource = await self._client.discovery.find(group, kind)
        manifest = {
            "apiVersion": resource.api_version,
            "kind": kind,
            "metadata": {"name": name, **({"namespace": self._namespace} if resource.namespaced else {}), **metadata},
            **content,
        }
        return await self._client.create(resource, manifest, manager="tests")

    async def judged(self, group: str, kind: str, name: str) -> Readiness:
        resource = await self._client.discovery.find(group, kind)
        return judge(await self._client.get(resource, name, self._namespace if resource.namespaced else ""))

    async def reaches(self, group: str, kind: str, name: str, state: State, reason: str) -> Readiness:
        """The first verdict with this state and reason."""
        return await self._judged_so(
            group, kind, name, lambda verdict: (verdict.state, verdict.reason), (state, reason)
        )

    async def says(self, group: str, kind: str, name: str, message: str) -> Readiness:
        """The first verdict with this message."""
        return await self._judged_so(group, kind, name, lambda verdict: verdict.message, message)

    async def _judged_so(
        self, group: str, kind: str, name: str, aspect: Callable[[Readiness], object], wanted: object
    ) -> Readiness:
        verdicts: list[Readiness] = []

        async def look() -> bool:
            verdicts.append(await self.judged(group, kind, name))
            return aspect(verdicts[-1]) == wanted

        try:
            await until(look)
        except TimeoutError:
            pytest.fail(f"{kind} {name} is not judged {wanted} but {verdicts[-1]}")
        return verdicts[-1]

    async def set_status(self, group: str, kind: str, name: str, status: Object) -> None:
        resource = await self._client.discovery.find(group, kind)
        namespace = self._namespace if resource.namespaced else ""
        change = {"status": status}
        await self._client.patch(resource, name, namespace, change, manager="tests", subresource="status")

    async def pods(self, labels: str, count: int) -> list[str]:
        """The names of the pods with these labels, once there are so many."""
        pods = await self._client.discovery.find("", "Pod")
        names = [each["metadata"]["name"] async for each in self._client.list(pods, self._namespace, labels=labels)]
        return names if len(names) == count else []

    async def remove(self, group: str, kind: str, name: str) -> None:
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
        await bare.put("apiextensions.k8s.io", "CustomResourceDefinition", f"{plural}.{group}", {"spec": spec})
        return f"{plural}.{group}"

    first, second = await define("widgets"), await define("gadgets")
    definition = ("apiextensions.k8s.io", "CustomResourceDefinition")
    await bare.reaches(*definition, first, State.READY, "InitialNamesAccepted")
    verdict = await bare.reaches(*definition, second, State.FAILED, "KindConflict")
    assert '"Widget" is already in use' in verdict.message


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
    await bare.put("apiregistration.k8s.io", "APIService", name, {"spec": spec})
    try:
        verdict = await bare.reaches("apiregistration.k8s.io", "APIService", name, State.PROGRESSING, "ServiceNotFound")
        assert namespace in verdict.message
    finally:
        await bare.remove("apiregistration.k8s.io", "APIService", name)


async def test_an_object_whose_finalizer_nobody_removes_names_it(bare: _Cluster) -> None:
    await bare.put("", "ConfigMap", "held", {}, finalizers=["example.com/hold"])
    await bare.remove("", "ConfigMap", "held")
    verdict = await bare.judged("", "ConfigMap", "held")
    assert (verdict.state, verdict.reason) == (State.TERMINATING, "Finalizers")
    assert "example.com/hold" in verdict.message


@pytest.fixture
async def live(start_api: StartControlPlane, transport: Transport) -> _Cluster:
    """A cluster of the test's own with controllers and a scheduler, and without nodes."""
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


async def test_the_statuses_that_real_controllers_write_are_understood(live: _Cluster) -> None:
    await live.put("apps", "Deployment", "web", _workload(replicas=2, progressDeadlineSeconds=1, minReadySeconds=0))
    await live.put("apps", "Deployment", "none", _workload(replicas=0))
    await live.put("apps", "StatefulSet", "web", _workload(replicas=1, serviceName="web"))
    await live.put("apps", "DaemonSet", "web", _workload())
    await live.put("", "ResourceQuota", "quota", {"spec": {"hard": {"configmaps": "1000"}}})
    budget = {"minAvailable": 1, "selector": {"matchLabels": LABELS}}
    await live.put("policy", "PodDisruptionBudget", "web", {"spec": budget})
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await live.put("", "PersistentVolumeClaim", "data", {"spec": claim})
    job = {"template": {"spec": POD | {"restartPolicy": "Never"}}}
    await live.put("batch", "Job", "once", {"spec": job})
    await live.put("batch", "Job", "later", {"spec": job | {"suspend": True}})
    await live.put("", "Pod", "lonely", {"spec": POD})
    await live.put("", "Service", "lb", {"spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}})

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


async def test_a_namespace_that_does_not_end_names_what_keeps_it(live: _Cluster) -> None:
    await live.put("", "Namespace", "ending", {})
    assert (await live.judged("", "Namespace", "ending")).state is State.READY
    await live.put("", "ConfigMap", "held", {}, namespace="ending", finalizers=["example.com/hold"])
    await live.remove("", "Namespace", "ending")
    verdict = await live.reaches("", "Namespace", "ending", State.TERMINATING, "SomeResourcesRemain")
    assert "example.com/hold" in verdict.message


async def test_a_deployment_is_ready_with_the_last_of_its_pods_and_a_job_with_its_end(live: _Cluster) -> None:
    await live.put("apps", "Deployment", "web", _workload(replicas=2))
    await live.put("batch", "Job", "once", {"spec": {"template": {"spec": POD | {"restartPolicy": "Never"}}}})
    first, second = await until(lambda: live.pods("app=web", 2))
    (worker,) = await until(lambda: live.pods("job-name=once", 1))

    await live.set_status("", "Pod", first, UP)
    verdict = await live.says("apps", "Deployment", "web", "1 of 2 available")
    assert verdict.state is State.PROGRESSING
    await live.set_status("", "Pod", second, UP)
    assert (await live.reaches("apps", "Deployment", "web", State.READY, "Available")).message == "2 available"

    await live.set_status("", "Pod", worker, {"phase": "Succeeded"})
    await live.reaches("batch", "Job", "once", State.READY, "CompletionsReached")
    assert (await live.judged("", "Pod", worker)).state is State.READY
