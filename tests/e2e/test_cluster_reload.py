"""The seed's order application in a real cluster: which of its sidecars take a change while they run."""

import aiohttp

from testbed.cluster.cluster import Cluster
from testbed.cluster.fixtures import Dapr
from testbed.cluster.workloads import OrderApp, RedisInCluster, apply, state_store
from testbed.waiting import until

ORDER = {"data": {"orderId": "first"}}
OTHER = {"data": {"orderId": "second"}}


async def order(session: aiohttp.ClientSession, url: str) -> str:
    """Which order the application finds; empty if it cannot tell."""
    async with session.get(f"{url}/order") as answer:
        return (await answer.json())["orderId"] if answer.status == 200 else ""


async def stores_with(cluster: Cluster, namespace: str) -> tuple[RedisInCluster, RedisInCluster]:
    first = await RedisInCluster(cluster, namespace, "first").start()
    return first, await RedisInCluster(cluster, namespace, "second").start()


async def fill(session: aiohttp.ClientSession, url: str, body: dict[str, dict[str, str]]) -> None:
    async with session.post(f"{url}/neworder", json=body) as answer:
        assert answer.status == 200, await answer.text()


async def test_a_patched_component_is_in_use_while_the_sidecar_runs_on(
    dapr: Dapr, cluster: Cluster, cluster_namespace: str
) -> None:
    first, second = await stores_with(cluster, cluster_namespace)
    await apply(cluster, cluster_namespace, state_store(first))
    app = await OrderApp(cluster, cluster_namespace).start()
    url = await app.url()
    async with aiohttp.ClientSession() as session:
        await fill(session, url, ORDER)
        await apply(cluster, cluster_namespace, state_store(second))

        async def is_empty() -> bool:
            return await order(session, url) == ""

        await until(is_empty, within_s=60)
        await fill(session, url, OTHER)
    assert [await each.ask("KEYS", "*") for each in (first, second)] == [["order-app||order"]] * 2
    (pod,) = await app.pods()
    assert {each["name"]: each["restartCount"] for each in pod["status"]["containerStatuses"]} == {
        "daprd": 0,
        "order-app": 0,
    }
