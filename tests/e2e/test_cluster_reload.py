"""The seed's order application in a real cluster: which of its sidecars take a change while they run."""

import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from testbed.cluster.cluster import Cluster
from testbed.cluster.dapr import Dapr, sidecar
from testbed.cluster.workloads import Manifest, OrderApp, RedisInCluster, apply, sidecar_image, state_store
from testbed.daprd import VERSION, VERSION_1_16
from testbed.waiting import until

WITHOUT_RELOAD = {"dapr.io/sidecar-image": f"local.test/daprd:{VERSION_1_16}"}
SEEN_WITHIN_S = 60.0


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def stores(cluster: Cluster, cluster_namespace: str) -> tuple[RedisInCluster, RedisInCluster]:
    """Two stores, of which the first is in use."""
    first, second = (RedisInCluster(cluster, cluster_namespace, name) for name in ("first", "second"))
    await first.start()
    await second.start()
    await apply(cluster, cluster_namespace, state_store(first))
    return first, second


class Customer:
    """Who uses one order application."""

    def __init__(self, app: OrderApp, url: str, session: aiohttp.ClientSession) -> None:
        self.app = app
        self._url = url
        self._session = session

    async def orders(self, number: str) -> None:
        async with self._session.post(f"{self._url}/neworder", json={"data": {"orderId": number}}) as answer:
            assert answer.status == 200, await answer.text()

    async def sees(self, number: str) -> bool:
        """Whether that order is found now; while a sidecar changes stores there may be no answer at all."""
        async with self._session.get(f"{self._url}/order") as answer:
            return answer.status == 200 and (await answer.json())["orderId"] == number


async def customer_of(app: OrderApp, session: aiohttp.ClientSession) -> Customer:
    await app.start()
    return Customer(app, await app.url(), session)


async def put_order(store: RedisInCluster, app: OrderApp, number: str) -> None:
    """Put an order into a store behind the application's back: who sees it uses that store."""
    await store.ask("HSET", f"{app.name}||order", "data", json.dumps({"orderId": number}), "version", "1")


async def patch(cluster: Cluster, namespace: str, store: RedisInCluster) -> None:
    """Let the Component lead to another store, as a person would with kubectl."""
    content = json.dumps({"spec": state_store(store)["spec"]})
    where = ("component", "statestore", f"--namespace={namespace}")
    await cluster.kubectl("patch", *where, "--type=merge", f"--patch={content}")


def restarts(pod: Manifest) -> dict[str, int]:
    return {each["name"]: each["restartCount"] for each in pod["status"]["containerStatuses"]}


async def test_a_patched_component_is_in_use_while_the_sidecar_runs_on(
    dapr: Dapr,
    cluster_namespace: str,
    stores: tuple[RedisInCluster, RedisInCluster],
    session: aiohttp.ClientSession,
) -> None:
    first, second = stores
    customer = await customer_of(OrderApp(dapr.cluster, cluster_namespace), session)
    await customer.orders("in the first store")
    (before,) = await customer.app.pods()

    await put_order(second, customer.app, "in the second store")
    await patch(dapr.cluster, cluster_namespace, second)
    await until(lambda: customer.sees("in the second store"), within_s=SEEN_WITHIN_S)

    await customer.orders("by the application")
    kept = [await store.ask("HGET", "order-app||order", "data") for store in (first, second)]
    assert [json.loads(str(each))["orderId"] for each in kept] == ["in the first store", "by the application"]
    (pod,) = await customer.app.pods()
    assert pod["metadata"]["uid"] == before["metadata"]["uid"]
    assert restarts(pod) == {"daprd": 0, "order-app": 0}
    assert sidecar_image(pod) == f"local.test/daprd:{VERSION}"


async def test_a_sidecar_that_cannot_reload_keeps_to_what_it_had_until_its_pod_is_replaced(
    dapr: Dapr,
    cluster_namespace: str,
    stores: tuple[RedisInCluster, RedisInCluster],
    session: aiohttp.ClientSession,
) -> None:
    cluster = dapr.cluster
    await cluster.import_image(sidecar(VERSION_1_16))
    old = await customer_of(OrderApp(cluster, cluster_namespace, "old", WITHOUT_RELOAD), session)
    witness = await customer_of(OrderApp(cluster, cluster_namespace, "witness"), session)
    for store in stores:
        for customer in (old, witness):
            await put_order(store, customer.app, store.name)

    for store in (stores[1], stores[0], stores[1]):
        await patch(cluster, cluster_namespace, store)
        await until(lambda: witness.sees(store.name), within_s=SEEN_WITHIN_S)  # noqa: B023 - awaited at once
        assert await old.sees("first")

    (pod,) = await old.app.pods()
    assert restarts(pod) == {"daprd": 0, "old": 0}
    assert sidecar_image(pod) == f"local.test/daprd:{VERSION_1_16}"
    await old.app.restart()
    await until(lambda: old.sees("second"), within_s=SEEN_WITHIN_S)
