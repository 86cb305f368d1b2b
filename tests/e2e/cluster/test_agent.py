"""The Kubernetes agent with real Dapr in the real cluster: what it applies, restarts and acknowledges.

The tests share an agent, its server and the applications; each begins with a delivery of its own.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from governor.domain.reports import Instances, Report, State, acknowledged, overall
from testbed.builds.dapr import VERSION
from testbed.cluster.cluster import Cluster
from testbed.cluster.dapr import Dapr
from testbed.cluster.fixtures import SharedCluster, new_namespace, show_pods_of
from testbed.cluster.workloads import Manifest, OrderApp, RedisInCluster, apply, manifest, sidecar_image, wait_rollout
from testbed.waiting import until
from tests.e2e.cluster.agent_bed import AgentBed, governed

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEAD = "127.0.0.1:1"


def store(redis: RedisInCluster, scopes: tuple[str, ...] = ()) -> Manifest:
    """Return a state store with its password inline, as an administrator may write it."""
    return component("statestore", scopes, redisHost=redis.address, redisPassword=redis.password)


def component(name: str, scopes: tuple[str, ...] = (), **metadata: object) -> Manifest:
    items = [{"name": key, "value": value} for key, value in metadata.items()]
    spec = {"type": "state.redis", "version": "v1", "metadata": items}
    scoped = {"scopes": list(scopes)} if scopes else {}
    return {**manifest("dapr.io/v1alpha1", "Component", name, spec=spec), **scoped}


def resiliency() -> Manifest:
    """Return a resource that a sidecar loads only when it starts."""
    policies = {"timeouts": {"short": "7s"}}
    targets = {"components": {"statestore": {"outbound": {"timeout": "short"}}}}
    spec = {"policies": policies, "targets": targets}
    return manifest("dapr.io/v1alpha1", "Resiliency", "limits", spec=spec, scopes=["orders"])


async def found(bed: AgentBed, name: str) -> Manifest:
    """Return an object of the governed namespace."""
    text = await bed.cluster.kubectl("get", name, f"--namespace={bed.namespace}", "--output=json")
    content: Manifest = json.loads(text)
    return content


def evidence(report: Report) -> list[str]:
    return [item.text for each in report.resources for item in each.all_evidence]


async def uids(app: OrderApp) -> list[str]:
    return sorted(pod["metadata"]["uid"] for pod in await app.pods())


@contextmanager
def paused_operator() -> Iterator[None]:
    """Stop dapr-operator with SIGSTOP: it sends nothing to the sidecars meanwhile."""
    pids = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and (entry / "comm").exists() and (entry / "comm").read_text().strip() == "operator"
    ]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


class Shop(NamedTuple):
    """An agent with its server, two applications and two stores in its namespace."""

    bed: AgentBed
    first: RedisInCluster
    second: RedisInCluster
    orders: OrderApp
    other: OrderApp


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_shop(shared_cluster: SharedCluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    """The shop of all tests."""
    cluster = await shared_cluster.running()
    await Dapr(cluster).bring_to(VERSION)
    async with new_namespace(cluster) as name, governed(tmp_path_factory.mktemp("shop"), cluster, name) as bed:
        first, second = (RedisInCluster(cluster, name, each) for each in ("first", "second"))
        orders, other = OrderApp(cluster, name, "orders", replicas=2), OrderApp(cluster, name, "other")
        await asyncio.gather(first.start(), second.start(), orders.start(), other.start())
        yield Shop(bed, first, second, orders, other)


@pytest.fixture
def shop(request: pytest.FixtureRequest, shared_shop: Shop, cluster: Cluster) -> Shop:
    """The shared shop, in a cluster that runs."""
    show_pods_of(request, shared_shop.bed.namespace)
    return shared_shop


async def test_a_change_that_ends_the_sidecars_is_rejected_with_their_error_and_taken_back(shop: Shop) -> None:
    bed, other, scopes = shop.bed, shop.other, ("other",)
    assert acknowledged(await bed.deliver([store(shop.first, scopes)]))
    await other.place_order("kept")

    report = await bed.deliver([component("statestore", scopes, redisHost=DEAD)])

    assert overall(report) is State.FAILED
    texts = evidence(report)
    # By how fast it fails, Dapr says that the connection was refused or that the time was over.
    assert any("statestore" in text and f"error connecting to redis at {DEAD}" in text for text in texts), texts
    await until(lambda: other.has_order("kept"), within_s=120.0)


async def test_a_change_is_applied_proven_by_the_sidecars_and_restarts_only_what_must(shop: Shop) -> None:
    bed, (first, second), orders, other = shop.bed, (shop.first, shop.second), shop.orders, shop.other
    # The application had no store: the sidecars load the new component without a restart.
    one = await bed.deliver([store(first, scopes=("orders",))])
    assert acknowledged(one)
    await orders.place_order("in first")
    before = await uids(orders), await uids(other)

    two = await bed.deliver([store(second, scopes=("orders",))])
    assert acknowledged(two)
    counts = {each.workload.name: each.instances for each in two.workloads}
    assert counts["orders"] == Instances(total=2, verified=2)
    assert not await orders.has_order("in first")
    await orders.place_order("in second")
    assert (await uids(orders), await uids(other)) == before

    live = await found(bed, "component/statestore")
    items = {item["name"]: item for item in live["spec"]["metadata"]}
    assert "value" not in items["redisPassword"]
    secret = await found(bed, f"secret/{items['redisPassword']['secretKeyRef']['name']}")
    assert secret["immutable"] is True

    # A Resiliency is loaded at the start only.
    three = await bed.deliver([store(second, scopes=("orders",)), resiliency()])
    assert acknowledged(three)
    assert not set(await uids(orders)) & set(before[0])
    assert await uids(other) == before[1]
    assert await orders.orders() == ["in second"] * 2


async def test_what_the_operator_does_not_send_is_never_acknowledged(shop: Shop) -> None:
    bed, scopes = shop.bed, ("orders", "other")
    # The applications have the Resiliency already, if another test ran before: without it they would restart.
    assert acknowledged(await bed.deliver([store(shop.first, scopes), resiliency()]))

    with paused_operator():
        report = await bed.deliver([store(shop.second, scopes), resiliency()], unproven="report", verifyWindowSeconds=5)

    assert overall(report) is State.UNPROVEN
    states = {each.resource.kind: each.state for each in report.resources}
    assert states == {"Component": State.UNPROVEN, "Resiliency": State.VERIFIED}
    texts = evidence(report)
    assert any("state.redis was initialised 0 times since the write, expected 1" in text for text in texts)


async def test_a_pod_that_started_without_a_sidecar_gets_one_with_the_change(shop: Shop) -> None:
    bed, other = shop.bed, shop.other
    async with Dapr(bed.cluster).without_injector():
        await bed.cluster.kubectl("rollout", "restart", "deployment/other", f"--namespace={bed.namespace}")
        await wait_rollout(bed.cluster, bed.namespace, "other")
        assert [sidecar_image(pod) for pod in await other.pods()] == [""]

    report = await bed.deliver([store(shop.second, ("other",))])

    assert acknowledged(report), evidence(report)
    await other.wait_ready()  # with a sidecar
    await other.place_order("through its sidecar")


async def test_an_agent_killed_between_apply_and_restart_ends_verified_with_one_restart(shop: Shop) -> None:
    bed, orders = shop.bed, shop.orders
    assert acknowledged(await bed.deliver([store(shop.first, ("orders",))]))
    before = await uids(orders), await revision(bed, orders)
    async with no_disruption(bed, orders):
        # The budget keeps the agent from restarting what it has applied.
        await bed.apply([store(shop.first, ("orders",)), resiliency()])
        await until(lambda: exists(bed, "resiliency/limits"))
        await bed.agent.kill()
        assert (await uids(orders), await revision(bed, orders)) == before

    await bed.agent.start()

    report = await bed.decided()
    assert acknowledged(report), evidence(report)
    assert not set(await uids(orders)) & set(before[0])
    assert await revision(bed, orders) == before[1] + 1


@asynccontextmanager
async def no_disruption(bed: AgentBed, app: OrderApp) -> AsyncIterator[None]:
    """Allow no disruption of an application meanwhile."""
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": app.name}}}
    await apply(bed.cluster, bed.namespace, manifest("policy/v1", "PodDisruptionBudget", "none", spec=spec))
    yield
    await bed.cluster.kubectl("delete", "poddisruptionbudget/none", f"--namespace={bed.namespace}")


async def exists(bed: AgentBed, name: str) -> bool:
    return bool(await bed.cluster.kubectl("get", name, f"--namespace={bed.namespace}", "--ignore-not-found"))


async def revision(bed: AgentBed, app: OrderApp) -> int:
    """Return how many templates a Deployment has had."""
    deployment = await found(bed, f"deployment/{app.name}")
    return int(deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"])
