"""The order application in a real cluster: which sidecars apply a changed Component without a restart."""

import asyncio
import json

import pytest

from testbed.builds.dapr import VERSION, VERSION_1_16
from testbed.cluster.cluster import Cluster
from testbed.cluster.dapr import Dapr, sidecar
from testbed.cluster.workloads import Manifest, OrderApp, RedisInCluster, apply, sidecar_image, state_store
from testbed.waiting import until

WITHOUT_RELOAD = {"dapr.io/sidecar-image": f"local.test/daprd:{VERSION_1_16}"}
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


def restarts(pod: Manifest) -> dict[str, int]:
    return {each["name"]: each["restartCount"] for each in pod["status"]["containerStatuses"]}


async def test_a_patched_component_is_applied_without_a_restart(
    dapr: Dapr, cluster_namespace: str, stores: Stores
) -> None:
    second = stores[1]
    app = await OrderApp(dapr.cluster, cluster_namespace).start()
    await app.place_order("in the first store")
    (before,) = await app.pods()

    await put_order(second, app, "in the second store")
    await patch(dapr.cluster, cluster_namespace, second)
    await until(lambda: app.has_order("in the second store"), within_s=SEEN_WITHIN_S)

    await app.place_order("by the application")
    assert [await order_in(store, app) for store in stores] == ["in the first store", "by the application"]
    (pod,) = await app.pods()
    assert pod["metadata"]["uid"] == before["metadata"]["uid"]
    assert restarts(pod) == {"daprd": 0, "order-app": 0}
    assert sidecar_image(pod) == f"local.test/daprd:{VERSION}"


async def test_a_sidecar_without_hot_reload_keeps_its_store_until_its_pod_is_replaced(
    dapr: Dapr, cluster_namespace: str, stores: Stores
) -> None:
    cluster, (first, second) = dapr.cluster, stores
    await cluster.import_image(sidecar(VERSION_1_16))
    old = OrderApp(cluster, cluster_namespace, "old", WITHOUT_RELOAD)
    witness = OrderApp(cluster, cluster_namespace, "witness")
    await asyncio.gather(old.start(), witness.start())
    for store in stores:
        for app in (old, witness):
            await put_order(store, app, store.name)
    assert await old.has_order("first")

    for store in (second, first, second):
        await patch(cluster, cluster_namespace, store)
        await until(lambda: witness.has_order(store.name), within_s=SEEN_WITHIN_S)  # noqa: B023 - awaited at once
        assert await old.has_order("first")

    (pod,) = await old.pods()
    assert restarts(pod) == {"daprd": 0, "old": 0}
    assert sidecar_image(pod) == f"local.test/daprd:{VERSION_1_16}"
    await old.restart()
    await until(lambda: old.has_order("second"), within_s=SEEN_WITHIN_S)
