"""Fixtures of the real cluster: started once for all tests of a process, with Dapr if one of them asks for it.

Tests keep to namespaces of their own. All that use the cluster run in one process one after another, and before all
others, for they take the longest.
"""

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from testbed import images
from testbed.cluster import dapr as dapr_in_cluster
from testbed.cluster.cluster import Cluster
from testbed.cluster.workloads import OrderApp, RedisInCluster
from testbed.daprd import VERSION

_GROUP = "cluster"
_CONTROL_PLANE_GROUPS = 2


@dataclass
class Dapr:
    """Dapr in the cluster."""

    cluster: Cluster
    version: str = ""

    async def bring_to(self, version: str) -> None:
        """Install that version, or upgrade to it in place."""
        if self.version != version:
            await dapr_in_cluster.install(self.cluster, version)
            self.version = version


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def _shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    ready_made = [images.pause().file, images.busybox().file]
    async with Cluster(tmp_path_factory.mktemp("cluster"), ready_made) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def _shared_dapr(_shared_cluster: Cluster) -> Dapr:
    return Dapr(_shared_cluster)


@pytest.fixture
def cluster(_shared_cluster: Cluster, server_logs: list[Path]) -> Cluster:
    """A real node with its control plane; one per machine."""
    server_logs.extend(_shared_cluster.logs)
    return _shared_cluster


@pytest.fixture
async def dapr(request: pytest.FixtureRequest, cluster: Cluster, _shared_dapr: Dapr) -> Dapr:
    """Dapr in the cluster, of the newest version or the one that the test is parametrized with."""
    assert _shared_dapr.cluster is cluster
    await _shared_dapr.bring_to(getattr(request, "param", VERSION))
    return _shared_dapr


@pytest.fixture
async def cluster_namespace(cluster: Cluster) -> AsyncIterator[str]:
    """A new namespace, removed in the background when the test has ended."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await cluster.kubectl("create", "namespace", name)
    yield name
    await cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
async def redis_in_cluster(cluster: Cluster, cluster_namespace: str) -> RedisInCluster:
    """A Redis in the test's namespace."""
    return await RedisInCluster(cluster, cluster_namespace, "redis").start()


@pytest.fixture
async def order_app(dapr: Dapr, cluster_namespace: str) -> OrderApp:
    """The order application with its sidecar; what it stores in is the test's to say."""
    return await OrderApp(dapr.cluster, cluster_namespace).start()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gather what shares an expensive server in few processes, and begin with the cluster."""
    for item in items:
        used = getattr(item, "fixturenames", ())
        if "_shared_cluster" in used:
            item.add_marker(pytest.mark.xdist_group(_GROUP))
        elif "_shared_control_plane" in used:
            share = sum(item.path.name.encode()) % _CONTROL_PLANE_GROUPS
            item.add_marker(pytest.mark.xdist_group(f"control-plane-{share}"))
    items.sort(key=lambda item: "_shared_cluster" not in getattr(item, "fixturenames", ()))
