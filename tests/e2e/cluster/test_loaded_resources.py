"""What real sidecars load when they start, compared with the oracle of the plan's properties and with the plan."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from governor.agent.platforms.kubernetes.plans.affected import Changes, scope_of
from governor.agent.platforms.kubernetes.workloads.observer import Observer
from governor.agent.platforms.kubernetes.workloads.workload import Pod
from governor.agent.verification.verdicts import Expected
from governor.domain.dapr.kinds import kinds
from governor.domain.documents import resource_ref
from governor.kube.client import Client, Transport
from governor.kube.config.kubeconfig import load
from governor.process.clock import SystemClock
from testbed.cluster.cluster import Cluster
from testbed.cluster.dapr import Dapr
from testbed.cluster.fixtures import new_namespace
from testbed.cluster.workloads import IdleApp, Manifest, apply, metadata_of
from tests.contract.kube.reflector.bed import running
from tests.e2e.cluster.dapr_specs import bus, configuration, scoped_resources
from tests.unit.agent.platforms.kubernetes import oracle

LISTS = {
    "components": "Component",
    "httpEndpoints": "HTTPEndpoint",
    "mcpServers": "MCPServer",
    "resiliencies": "Resiliency",
    "workflowAccessPolicies": "WorkflowAccessPolicy",
}
"""Lists of names in a sidecar's metadata, by the kind that they show."""
ANNOTATED = {"a": "tuned", "b": "plain", "c": ""}
"""The annotation `dapr.io/config` of the workloads, by app id."""
CONFIGURATIONS = ("tuned", "plain", "unused")
BUILT_IN = {("Component", "kubernetes")}
"""The secret store that each sidecar in a cluster has."""
SCOPES: tuple[tuple[str, ...], ...] = ((), ("a",), ("c", "b"), ("unknown",))


def resources(namespace: str, suffix: str = "") -> list[Manifest]:
    """Return resources of every kind, with and without scopes."""
    found = [bus(namespace)]
    for scopes in SCOPES:
        found.extend(scoped_resources(namespace, scopes, suffix))
    # A sidecar shows its Configuration by the feature with the same name.
    return [*found, *(configuration(name, namespace, name) for name in CONFIGURATIONS)]


def named(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def loaded_by(metadata: dict[str, Any]) -> set[tuple[str, str]]:
    """Return kind and name of all that a sidecar has loaded, by its own account."""
    names = {(kind, each["name"]) for field, kind in LISTS.items() for each in metadata.get(field) or ()}
    topics = {("Subscription", each["topic"]) for each in metadata.get("subscriptions") or ()}
    features = {("Configuration", name) for name in metadata.get("enabledFeatures") or () if name in CONFIGURATIONS}
    return (names | topics | features) - BUILT_IN


@asynccontextmanager
async def observed_pods(cluster: Cluster, namespace: str) -> AsyncIterator[dict[str, Pod]]:
    """Yield the pods as the agent sees them, by app id."""
    async with Transport() as transport:
        client = Client(transport, load(cluster.kubeconfig))
        observer = Observer(client, [namespace], clock=SystemClock(), on_change=lambda: None)
        async with running(observer.run()):
            await observer.synced()
            yield {pod.app_id: pod for each in observer.workloads() for pod in each.pods}


async def test_oracle_and_plan_predict_exactly_what_sidecars_load(
    dapr: Dapr, cluster: Cluster, cluster_namespace: str
) -> None:
    async with new_namespace(cluster) as elsewhere:
        made = [*resources(cluster_namespace), *resources(elsewhere, "-elsewhere")]
        assert {each["kind"] for each in made} == set(kinds())
        for namespace in (cluster_namespace, elsewhere):
            await apply(cluster, namespace, *(each for each in made if each["metadata"]["namespace"] == namespace))
        apps = {
            app_id: IdleApp(cluster, cluster_namespace, app_id, {"dapr.io/config": name} if name else {})
            for app_id, name in ANNOTATED.items()
        }
        await asyncio.gather(*(each.start() for each in apps.values()))
        loaded = {}
        for app_id, app in apps.items():
            (pod,) = await app.pods()
            loaded[app_id] = loaded_by(await metadata_of(pod))

    by_oracle = {
        app_id: {named(each) for each in made if oracle.loads(app_id, cluster_namespace, name, each)}
        for app_id, name in ANNOTATED.items()
    }
    changes = Changes([Expected(resource_ref(each, ""), each, None) for each in made])
    async with observed_pods(cluster, cluster_namespace) as pods:
        by_plan = {
            app_id: {(each.ref.kind, each.ref.name) for each in changes.seen_by(frozenset({scope_of(pod)}))}
            for app_id, pod in pods.items()
        }
    assert {app_id: each ^ loaded[app_id] for app_id, each in by_oracle.items()} == {app_id: set() for app_id in apps}
    assert by_plan == loaded
