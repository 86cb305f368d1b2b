"""Least privilege: the rules of the agent's chart are exactly what an agent needs.

One scenario makes an agent send every kind of request that it can send. The API server records the permissions that
these needed, and they are compared with the rules in both directions.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from governor.agent.loop import KEY
from governor.agent.platforms.kubernetes.permissions import GOVERNOR, PERMISSIONS, Scope
from governor.agent.state.chunks import SECRETS, Place, Value
from governor.domain.reports import State, acknowledged, overall
from governor.errors import GovernorError
from governor.kube.objects import ApiResource
from testbed.server import free_ports
from testbed.waiting import until
from tests.contract.agent.apply.bed import COMPONENTS, EVERY_KIND, component, host_of
from tests.contract.agent.bed import create
from tests.contract.agent.installation.bed import RUNTIME, Need, NewWorld, World, at
from tests.contract.agent.platform.bed import (
    resiliency,
    workload,
)
from tests.contract.kube.controller.bed import events_of
from tests.unit.agent.platforms.kubernetes.manifests import args, daprd, pod

pytestmark = pytest.mark.asyncio(loop_scope="session")

DAEMON_SETS = ApiResource("apps", "v1", "DaemonSet", "daemonsets", namespaced=True)
ELSEWHERE = "elsewhere:6379"
FOREIGN_PASSWORD = "password-of-helm"
"""In a Component of another tool, which the agent's inventory names."""
DRIFTED = {"spec": {"metadata": [{"name": "redisHost", "value": ELSEWHERE}]}}

TOLERATED = {Need(Scope.CLUSTER, GOVERNOR, "runtimestatuses", "list")}
"""With several namespaces the agent tries one list for all of them, and otherwise reads its objects one by one."""

PATCH_DEPLOYMENTS = Need(Scope.MANAGED, "apps", "deployments", "patch")
NEEDS = [
    Need(each.scope, each.group, resource, verb, each.name) for each in PERMISSIONS for resource, verb in each.pairs()
]


class Scenario:
    """What makes an agent send every kind of request that it can send."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._agent, self._cluster = world.agent, world.cluster

    async def run(self) -> None:
        """Make the agent send each kind of request; raise if a step does not end as it should."""
        world = self._world
        await self._populate()
        theirs = at(world.quiet, component("theirs", password=FOREIGN_PASSWORD))
        await self._cluster.client.create(COMPONENTS, theirs, manager="helm")
        async with self._agent.agent() as agent:
            await until(self._has_inventory, every_s=0.1)
            first = await self._agent.deliver(
                *(at(world.busy, each) for each in (resiliency(1), component("store", password="one"))),
                *(at(world.quiet, each) for each in EVERY_KIND),
                drift="enforce",
            )
            assert acknowledged(first), first
            # An Event that repeats is patched.
            await until(partial(self._has_drifted_twice, agent.reconciler.add), every_s=0.1)
        await self._leave_chunk()
        async with self._agent.agent():  # from what the first one has stored
            assert acknowledged(await world.deliver(resiliency(2)))
            await self._try_in_vain()
            self._cluster.kubelet.exits["orders"] = "the sidecar cannot start"
            assert overall(await world.deliver(resiliency(3))) is State.FAILED
            self._cluster.kubelet.exits.clear()
            await self._create_unreachable_pod()
            assert overall(await world.deliver(resiliency(4), verifyWindowSeconds=2)) is State.UNPROVEN

    async def _leave_chunk(self) -> None:
        """Leave state behind as an agent does that was killed during a large write: the next one removes it."""
        place = Place(self._world.release.namespace, "governor-agent")
        [name] = place.chunk_names(Value.of(b"large", [b"chunk"]))
        await self._cluster.client.create(SECRETS, place.chunk_manifest(name, "newest.json", b"chunk"), manager="tests")

    async def _try_in_vain(self) -> None:
        """Deliver a change that a preflight rejects because its sidecar cannot connect to something."""
        self._cluster.kubelet.preflight_exit = "cannot init {}: dial tcp 10.0.0.1:6379: connection refused"
        changed = resiliency(2), component("store", password="two")
        assert overall(await self._world.deliver(*changed, preflight="sidecar")) is State.FAILED
        self._cluster.kubelet.preflight_exit = ""

    async def _has_inventory(self) -> bool:
        """Return whether the server has the agent's inventory."""
        async with self._agent.server.client() as admin:
            try:
                found = (await admin.inventory(RUNTIME)).inventory
            except GovernorError:
                return False
        return "theirs" in {each.resource.name for each in found.resources}

    async def _populate(self) -> None:
        """Create workloads of each kind that the agent restarts."""
        await self._cluster.deploy("orders")
        await self._cluster.deploy("stateful", kind="StatefulSet", serviceName="stateful")
        await self._cluster.deploy("replicas", kind="ReplicaSet")
        manifest = workload("DaemonSet", "daemon", self._world.busy)
        del manifest["spec"]["replicas"]
        # A node without a kubelet becomes unreachable.
        manifest["spec"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
        await self._cluster.client.create(DAEMON_SETS, manifest, manager="tests")
        await self._cluster.until_pods("daemon", 1)

    async def _create_unreachable_pod(self) -> None:
        """Create a pod whose ready sidecar refuses connections, so that the agent tries the API server's proxy."""
        (port,) = map(str, free_ports(1))
        arguments = args("lonely", "--dapr-public-port", port, "--metrics-port", port)
        self._cluster.injector.skipped.add("")  # the app id of a pod that has its sidecar already
        await create(self._cluster.client, self._world.busy, pod("lonely", sidecar=daprd(arguments)))

    async def _has_drifted_twice(self, wake: Callable[[str], object]) -> bool:
        """Change a resource whenever it is repaired; what a running check repairs is not announced."""
        client, quiet = self._cluster.client, self._world.quiet
        if host_of(await client.get(COMPONENTS, "store", quiet)) != ELSEWHERE:
            await client.patch(COMPONENTS, "store", quiet, DRIFTED, manager="somebody")
        wake(KEY)
        found = await events_of(client, "store", quiet)
        return any(each["reason"] == "DriftFound" and each["count"] > 1 for each in found)


async def test_the_rules_of_the_chart_are_exactly_what_the_agent_needs(new_world: NewWorld) -> None:
    async with new_world() as world:
        await Scenario(world).run()
    stored = [path for path in world.agent.server.data_dir.rglob("*") if path.is_file()]
    assert [path for path in stored if FOREIGN_PASSWORD.encode() in path.read_bytes()] == []
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
        scenario = asyncio.create_task(Scenario(world).run())

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
