"""Least privilege: the rules of the agent's chart are exactly what an agent needs.

One scenario makes an agent send every kind of request that it can send. The API server records the permissions that
these needed, and they are compared with the rules in both directions.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import pytest_asyncio

from governor.agent.loop import KEY
from governor.agent.platforms.kubernetes.permissions import GOVERNOR, PERMISSIONS, Scope
from governor.domain.reports import Report, State, acknowledged, overall
from governor.kube.objects import ApiResource
from testbed.kube.control_plane import ControlPlane
from testbed.server import free_ports
from testbed.sidecar_replay import SidecarReplay
from testbed.waiting import until
from tests.contract.agent.apply.bed import COMPONENTS, EVERY_KIND, component, host_of
from tests.contract.agent.bed import create
from tests.contract.agent.installation.bed import AgentBed, Need, Release
from tests.contract.agent.platform.bed import (
    Bed,
    Injector,
    Kubelet,
    create_namespace,
    resiliency,
    workload,
)
from tests.contract.charts.bed import Helm
from tests.contract.kube.applyset.bed import RecordingClient
from tests.contract.kube.controller.bed import events_of
from tests.contract.kube.reflector.bed import running
from tests.integration.server.bed import running as running_server
from tests.unit.agent.platforms.kubernetes.manifests import args, daprd, pod

pytestmark = pytest.mark.asyncio(loop_scope="session")

DAEMON_SETS = ApiResource("apps", "v1", "DaemonSet", "daemonsets", namespaced=True)
ELSEWHERE = "elsewhere:6379"
DRIFTED = {"spec": {"metadata": [{"name": "redisHost", "value": ELSEWHERE}]}}

TOLERATED = {Need(Scope.CLUSTER, GOVERNOR, "runtimestatuses", "list")}
"""With several namespaces the agent tries one list for all of them, and otherwise reads its objects one by one."""

PATCH_DEPLOYMENTS = Need(Scope.MANAGED, "apps", "deployments", "patch")
NEEDS = [
    Need(each.scope, each.group, resource, verb, each.name) for each in PERMISSIONS for resource, verb in each.pairs()
]

NewWorld: TypeAlias = Callable[..., AbstractAsyncContextManager["World"]]


class World:
    """A cluster with an agent: one of its namespaces has workloads of each kind, the other none."""

    def __init__(self, agent: AgentBed, cluster: Bed, release: Release) -> None:
        self.agent = agent
        self.cluster = cluster
        self.release = release
        self.busy, self.quiet = release.managed

    async def populate(self) -> None:
        """Create workloads of each kind that the agent restarts."""
        await self.cluster.deploy("orders")
        await self.cluster.deploy("stateful", kind="StatefulSet", serviceName="stateful")
        await self.cluster.deploy("replicas", kind="ReplicaSet")
        manifest = workload("DaemonSet", "daemon", self.busy)
        del manifest["spec"]["replicas"]
        # A node without a kubelet becomes unreachable.
        manifest["spec"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
        await self.cluster.client.create(DAEMON_SETS, manifest, manager="tests")
        await self.cluster.until_pods("daemon", 1)

    async def run(self) -> None:
        """Make the agent send each kind of request; raise if a step does not end as it should."""
        await self.populate()
        async with self.agent.agent() as agent:
            first = await self.agent.deliver(
                *(at(self.busy, each) for each in (resiliency(1), component("store", password="one"))),
                *(at(self.quiet, each) for each in EVERY_KIND),
                drift="enforce",
            )
            assert acknowledged(first), first
            # An Event that repeats is patched.
            await until(partial(self._has_drifted_twice, agent.reconciler.add), every_s=0.1)
        async with self.agent.agent():  # from what the first one has stored
            assert acknowledged(await self.deliver(resiliency(2)))
            self.cluster.kubelet.exits["orders"] = "the sidecar cannot start"
            assert overall(await self.deliver(resiliency(3))) is State.FAILED
            self.cluster.kubelet.exits.clear()
            await self.create_unreachable_pod()
            assert overall(await self.deliver(resiliency(4), verifyWindowSeconds=2)) is State.UNPROVEN

    async def deliver(self, *resources: Mapping[str, Any], **policy: object) -> Report:
        """Deliver resources for the namespace with workloads, and none for the other."""
        return await self.agent.deliver(*(at(self.busy, each) for each in resources), **policy)

    async def create_unreachable_pod(self) -> None:
        """Create a pod whose ready sidecar refuses connections, so that the agent tries the API server's proxy."""
        (port,) = map(str, free_ports(1))
        arguments = args("lonely", "--dapr-public-port", port, "--metrics-port", port)
        self.cluster.injector.skipped.add("")  # the app id of a pod that has its sidecar already
        await create(self.cluster.client, self.busy, pod("lonely", sidecar=daprd(arguments)))

    async def _has_drifted_twice(self, wake: Callable[[str], object]) -> bool:
        """Change a resource whenever it is repaired; what a running check repairs is not announced."""
        if host_of(await self.cluster.client.get(COMPONENTS, "store", self.quiet)) != ELSEWHERE:
            await self.cluster.client.patch(COMPONENTS, "store", self.quiet, DRIFTED, manager="somebody")
        wake(KEY)
        found = await events_of(self.cluster.client, "store", self.quiet)
        return any(each["reason"] == "DriftFound" and each["count"] > 1 for each in found)


def at(namespace: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest in a namespace."""
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}


@pytest_asyncio.fixture(loop_scope="session")
async def new_world(
    plane: ControlPlane,
    admin: RecordingClient,
    helm: Helm,
    replay: SidecarReplay,
    recorded: Mapping[str, bytes],
    injector: Injector,
    tmp_path: Path,
) -> NewWorld:
    """Returns a world with new namespaces, without some of the agent's permissions."""
    numbers = count()

    @asynccontextmanager
    async def world(*without: Need) -> AsyncIterator[World]:
        state, *managed = [await create_namespace(admin) for _ in range(3)]
        release = Release(plane, helm, state, tuple(managed))
        await release.install(*without)
        kubelet = Kubelet(admin, managed[0], replay, recorded)
        cluster = Bed(lambda: admin, managed[0], kubelet, injector)
        directory = tmp_path / str(next(numbers))
        async with running(kubelet.run()), running_server(directory / "server") as server:
            yield World(AgentBed(server, release, directory), cluster, release)

    return world


async def test_the_rules_of_the_chart_are_exactly_what_the_agent_needs(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.run()
    had, lacked = world.release.requests()
    assert lacked - TOLERATED == set(), "not in the chart: add it to PERMISSIONS"
    granted = world.release.granted()
    cluster_wide = {each for each in had if each._replace(scope=Scope.CLUSTER) in granted}
    assert granted - had == set(), "never needed: remove it from PERMISSIONS, or extend the scenario"
    assert had - cluster_wide - granted == set(), "granted by something else than the chart"
    assert granted & cluster_wide == {each for each in granted if each.scope is Scope.CLUSTER}, "granted twice"
    assert set(NEEDS) == granted


async def test_an_agent_without_a_rule_fails_and_names_it(new_world: NewWorld) -> None:
    async with new_world(PATCH_DEPLOYMENTS) as world:
        await world.cluster.deploy("orders")
        async with world.agent.agent():
            report = await world.deliver(resiliency(1))
    assert overall(report) is State.FAILED
    texts = [item.text for each in report.resources for item in each.all_evidence]
    assert any(f"the agent may not patch deployments.apps in namespace {world.busy}" in text for text in texts), texts
    assert world.release.requests()[1] - TOLERATED == {PATCH_DEPLOYMENTS}


@pytest.mark.soak
@pytest.mark.parametrize("need", NEEDS, ids=lambda need: "-".join(filter(None, need)).replace(" ", "-"))
async def test_no_rule_is_superfluous(new_world: NewWorld, need: Need) -> None:
    async with new_world(need) as world:
        scenario = asyncio.create_task(world.run())

        # A rule for the cluster may be missed in a namespace first.
        expected = {need, need._replace(scope=Scope.MANAGED)} if need.scope is Scope.CLUSTER else {need}

        async def is_decided() -> bool:
            return bool(expected & world.release.requests()[1]) or scenario.done()

        try:
            await until(is_decided)
        finally:
            scenario.cancel()
            await asyncio.wait({scenario})
    assert expected & world.release.requests()[1]
