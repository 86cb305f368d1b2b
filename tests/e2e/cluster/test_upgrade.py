"""An upgrade of Dapr in place, and which sidecars apply a changed Component without a restart.

Applications keep running during the upgrade. They get the new sidecar, which reloads Components, when their pods are
replaced.
"""

import asyncio
import json

import pytest

from testbed.builds.dapr import VERSION, VERSION_1_16
from testbed.cluster.cluster import Cluster
from testbed.cluster.dapr import Dapr
from testbed.cluster.workloads import Manifest, OrderApp, RedisInCluster, apply, sidecar_image, state_store
from testbed.waiting import until

OLD, NEW = (f"local.test/daprd:{version}" for version in (VERSION_1_16, VERSION))
SEEN_WITHIN_S = 60.0

Stores = tuple[RedisInCluster, RedisInCluster]


@pytest.fixture
async def stores(cluster: Cluster, cluster_namespace: str) -> Stores:
    """Two stores; the Component points to the first."""
    first, second = (RedisInCluster(cluster, cluster_namespace, name) for name in ("first", "second"))
    await asyncio.gather(first.start(), second.start())
    await apply(cluster, cluster_namespace, state_store(first))
    return first, second


async def put_order(store: RedisInCluster, app: OrderApp, number: str) -> None:
    """Write an order directly into a store; an application that returns it uses this store."""
    await store.execute("HSET", f"{app.name}||order", "data", json.dumps({"orderId": number}), "version", "1")


async def order_in(store: RedisInCluster, app: OrderApp) -> str:
    order: dict[str, str] = json.loads(str(await store.execute("HGET", f"{app.name}||order", "data")))
    return order["orderId"]


async def patch(cluster: Cluster, namespace: str, store: RedisInCluster) -> None:
    """Point the Component to another store with kubectl."""
    content = json.dumps({"spec": state_store(store)["spec"]})
    where = ("component", "statestore", f"--namespace={namespace}")
    await cluster.kubectl("patch", *where, "--type=merge", f"--patch={content}")


def identity(pod: Manifest) -> tuple[str, dict[str, int], str]:
    """Return a pod's uid, how often each of its containers was restarted, and its sidecar's image."""
    restarts = {each["name"]: each["restartCount"] for each in pod["status"]["containerStatuses"]}
    return pod["metadata"]["uid"], restarts, sidecar_image(pod)


@pytest.mark.soak
@pytest.mark.parametrize("dapr", [VERSION_1_16], indirect=True)
async def test_new_sidecars_reload_and_old_ones_keep_their_store_until_their_pods_are_replaced(
    dapr: Dapr, cluster_namespace: str, stores: Stores
) -> None:
    cluster, (first, second) = dapr.cluster, stores
    old = await OrderApp(cluster, cluster_namespace, "old").start()
    await old.place_order("before the upgrade")
    (old_pod,) = await old.pods()
    assert sidecar_image(old_pod) == OLD

    await dapr.bring_to(VERSION)
    assert await dapr.version() == VERSION
    assert [identity(pod) for pod in await old.pods()] == [identity(old_pod)]
    assert await old.has_order("before the upgrade")

    new = await OrderApp(cluster, cluster_namespace, "new").start()
    await new.place_order("in first")
    (new_pod,) = await new.pods()
    assert sidecar_image(new_pod) == NEW
    for app in (old, new):
        await put_order(second, app, "in second")
    for store in (second, first, second):
        await patch(cluster, cluster_namespace, store)
        await until(lambda: new.has_order(f"in {store.name}"), within_s=SEEN_WITHIN_S)  # noqa: B023 - awaited at once
        assert await old.has_order("before the upgrade")
    await new.place_order("by the application")
    assert [await order_in(store, new) for store in stores] == ["in first", "by the application"]
    assert [identity(pod) for pod in await new.pods()] == [identity(new_pod)]
    assert identity(new_pod)[1] == {"daprd": 0, "new": 0}
    assert [identity(pod) for pod in await old.pods()] == [identity(old_pod)]
    assert identity(old_pod)[1] == {"daprd": 0, "old": 0}

    await old.restart()
    (replacement,) = await old.pods()
    assert replacement["metadata"]["uid"] != old_pod["metadata"]["uid"]
    assert sidecar_image(replacement) == NEW
    await until(lambda: old.has_order("in second"), within_s=SEEN_WITHIN_S)
    await patch(cluster, cluster_namespace, first)
    await until(lambda: old.has_order("before the upgrade"), within_s=SEEN_WITHIN_S)
