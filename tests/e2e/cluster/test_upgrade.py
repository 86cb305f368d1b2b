"""An upgrade of Dapr in place: applications keep running, and get the new sidecar when their pods are replaced."""

import pytest

from testbed.builds.dapr import VERSION, VERSION_1_16
from testbed.cluster.dapr import Dapr
from testbed.cluster.workloads import OrderApp, RedisInCluster, apply, sidecar_image, state_store
from testbed.waiting import until

OLD, NEW = (f"local.test/daprd:{version}" for version in (VERSION_1_16, VERSION))


async def names(app: OrderApp) -> set[str]:
    return {pod["metadata"]["name"] for pod in await app.pods()}


@pytest.mark.parametrize("dapr", [VERSION_1_16], indirect=True)
async def test_running_pods_keep_their_sidecar_and_new_pods_get_the_new_one(
    dapr: Dapr, cluster_namespace: str, redis_in_cluster: RedisInCluster
) -> None:
    await apply(dapr.cluster, cluster_namespace, state_store(redis_in_cluster))
    app = await OrderApp(dapr.cluster, cluster_namespace, replicas=3).start()
    assert [sidecar_image(pod) for pod in await app.pods()] == [OLD] * 3
    await app.place_order("before the upgrade")
    before = await names(app)

    await dapr.bring_to(VERSION)
    assert await dapr.version() == VERSION
    assert await names(app) == before
    assert await app.has_order("before the upgrade")

    await app.restart()
    assert [sidecar_image(pod) for pod in await app.pods()] == [NEW] * 3
    assert not await names(app) & before
    await until(lambda: app.has_order("before the upgrade"))
