"""Requests to an application under constant load that fail while the agent restarts it. Each has its own connection."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from demo.prober import Prober
from demo.world import read_order
from governor.domain.reports import acknowledged
from testbed.cluster.cluster import Cluster
from testbed.cluster.dapr import Dapr
from testbed.cluster.workloads import OrderApp, RedisInCluster, apply, manifest
from testbed.waiting import until
from tests.e2e.cluster.agent_bed import AgentBed, governed

pytestmark = pytest.mark.soak

EVERY_S = 0.02
DRAIN_S = 5
ROUNDS = 4
REQUESTS = 50
COLD = manifest(
    "dapr.io/v1alpha1", "Configuration", "cold", spec={"features": [{"name": "HotReload", "enabled": False}]}
)


class Shop(NamedTuple):
    """An application with two replicas that has an order, and the agent that governs it."""

    bed: AgentBed
    app: OrderApp
    redis: RedisInCluster

    async def deliver(self, retries: int) -> None:
        """Deliver the store with another setting, which these sidecars load only when they start."""
        values = {"redisHost": self.redis.address, "redisPassword": self.redis.password, "maxRetries": str(retries)}
        items = [{"name": name, "value": value} for name, value in values.items()]
        spec = {"type": "state.redis", "version": "v1", "metadata": items}
        store = manifest("dapr.io/v1alpha1", "Component", "statestore", spec=spec)
        assert acknowledged(await self.bed.deliver([store]))


@asynccontextmanager
async def opened_shop(directory: Path, cluster: Cluster, namespace: str, drain_s: int) -> AsyncIterator[Shop]:
    """Start the application, its store and the agent, and place an order."""
    # Sidecars with hot reload would take a change all at once, before the agent restarts them one after another.
    await apply(cluster, namespace, COLD)
    redis = await RedisInCluster(cluster, namespace, "store").start()
    app = OrderApp(cluster, namespace, "orders", {"dapr.io/config": "cold"}, replicas=2, drain_s=drain_s)
    async with governed(directory, cluster, namespace) as bed:
        shop = Shop(bed, app, redis)
        await shop.deliver(0)
        await app.start()
        await app.place_order("foo")
        yield shop


async def failures_during(app: OrderApp, restart: Callable[[], Awaitable[None]]) -> list[tuple[float, str]]:
    """Return the requests that fail from before a restart until the pods from before are gone."""
    before = await names(app)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0)) as http,
        Prober(lambda: read_order(http, app.url), EVERY_S) as prober,
    ):
        await prober.more(REQUESTS)
        await restart()

        async def are_replaced() -> bool:
            return not await names(app) & before

        await until(are_replaced, every_s=0.2)
        await prober.more(REQUESTS)
    return prober.failures()


async def names(app: OrderApp) -> set[str]:
    """Return the names of all pods, with those that are terminating."""
    where = ("pods", f"--namespace={app.namespace}", f"--selector=app={app.name}", "--output=name")
    return set((await app.cluster.kubectl("get", *where)).split())


async def test_a_restart_of_two_replicas_that_drain_fails_no_request(
    dapr: Dapr, cluster_namespace: str, tmp_path: Path
) -> None:
    async with opened_shop(tmp_path, dapr.cluster, cluster_namespace, DRAIN_S) as shop:
        assert await failures_during(shop.app, lambda: shop.deliver(1)) == []


async def test_a_restart_by_the_agent_fails_about_as_many_requests_as_one_by_kubectl(
    dapr: Dapr, cluster_namespace: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    failed: dict[str, list[int]] = {"agent": [], "kubectl": []}
    async with opened_shop(tmp_path, dapr.cluster, cluster_namespace, 0) as shop:
        for number in range(1, ROUNDS + 1):
            ways: dict[str, Callable[[], Awaitable[None]]] = {
                "agent": partial(shop.deliver, number),
                "kubectl": shop.app.restart,
            }
            for name in sorted(ways, reverse=number % 2 == 0):
                failed[name].append(len(await failures_during(shop.app, ways[name])))
    record_property("failed requests", failed)
    by_agent, by_kubectl = map(sum, (failed["agent"], failed["kubectl"]))
    # Which requests meet a pod that ends is random in both: three standard deviations.
    assert by_agent <= by_kubectl + 3 * sqrt(by_agent + by_kubectl), failed
