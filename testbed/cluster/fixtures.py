"""Fixtures of the real cluster: started once for all tests of a process, with Dapr if one of them asks for it.

Tests keep to namespaces of their own. All that use the machine's one cluster run in one process one after another,
and before all others, for they take the longest: first those that need the machine for a cluster of their own, then
those that install Dapr themselves and remove it, then the older versions of Dapr, so that it is upgraded rarely and
never put back, last who ends the cluster.
"""

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from testbed import images
from testbed.builds.dapr import VERSION
from testbed.cluster import host, machine_lock
from testbed.cluster.cleanup import sweep
from testbed.cluster.cluster import LOCK_TIMEOUT_S, Cluster
from testbed.cluster.dapr import NAMESPACE as DAPR_NAMESPACE
from testbed.cluster.dapr import Dapr
from testbed.cluster.machine_lock import Notify
from testbed.cluster.snapshot import Snapshot, take_snapshot
from testbed.distribution import CLUSTER, group_of
from toolchain.errors import TestbedError, tail

_TIMEOUT_S = 1200  # the turn of a run comes when another's tests have ended
_LOG_LINES = 15
_CLUSTER = pytest.StashKey[Cluster]()
_NAMESPACE = pytest.StashKey[str]()


class SharedCluster:
    """A cluster that is started for the first test that needs it, and started again after it was stopped."""

    def __init__(self, directory: Path, notify: Notify) -> None:
        self._directory = directory
        self._notify = notify
        self._cluster: Cluster | None = None
        self.before: Snapshot = frozenset()
        """The host's cluster resources before this one was started."""

    async def running(self) -> Cluster:
        """Return the cluster, started now if it is not running."""
        if self._cluster is None:
            cluster = Cluster(self._directory, f"the tests of process {os.getpid()}")
            with await machine_lock.acquire(self._notify, LOCK_TIMEOUT_S) as lock:
                sweep(lock)  # the snapshot must not contain what a killed cluster has left
                self.before = take_snapshot(cluster.state)
            preloaded = [images.pause().file, images.busybox().file]
            await cluster.start(host.programs(), preloaded, notify=self._notify)
            self._cluster = cluster
        return self._cluster

    async def end(self) -> None:
        """Stop the cluster if it is running; other processes may then start theirs."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.stop()

    def check(self) -> None:
        """Raise if the cluster has exited unexpectedly; the next test gets a new one."""
        if self._cluster is not None and not self._cluster.is_up:
            cluster, self._cluster = self._cluster, None
            raise TestbedError(f"the cluster exited unexpectedly; its log is {cluster.log}\n{tail(cluster.log)}")


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[SharedCluster]:
    """Return the cluster of all tests of this process, for tests that start or stop it themselves."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        """Tell who watches: what tests print is otherwise kept from them."""
        with capture.global_and_fixture_disabled():
            print(f"\n{text}", file=sys.stderr, flush=True)

    shared = SharedCluster(tmp_path_factory.mktemp("cluster"), say)
    yield shared
    asyncio.run(shared.end())


@pytest.fixture
async def no_cluster(shared_cluster: SharedCluster) -> None:
    """Stop the tests' cluster for a test that starts its own."""
    await shared_cluster.end()


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, shared_cluster: SharedCluster) -> AsyncIterator[Cluster]:
    """A real node with its control plane; one per machine."""
    request.node.stash[_CLUSTER] = running = await shared_cluster.running()
    yield running
    shared_cluster.check()


@pytest.fixture
async def bare_cluster(cluster: Cluster) -> Cluster:
    """The cluster before Dapr is installed in it; the test removes what it installs cluster-wide."""
    assert not await Dapr(cluster).version(), "Dapr is installed: this test must run first"
    return cluster


@pytest.fixture
async def dapr(request: pytest.FixtureRequest, cluster: Cluster) -> Dapr:
    """Dapr in the cluster, of the newest version or the one that the test is parametrized with."""
    installed = Dapr(cluster)
    await installed.bring_to(getattr(request, "param", VERSION))
    return installed


@pytest.fixture
async def cluster_namespace(request: pytest.FixtureRequest, cluster: Cluster) -> AsyncIterator[str]:
    """Yield a new namespace, which is removed in the background after the test."""
    async with new_namespace(cluster) as name:
        show_pods_of(request, name)
        yield name


@asynccontextmanager
async def new_namespace(cluster: Cluster) -> AsyncIterator[str]:
    """Yield a new namespace, which is removed in the background afterwards: for tests that share one."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await cluster.kubectl("create", "namespace", name)
    yield name
    await cluster.kubectl("delete", "namespace", name, "--wait=false")


def show_pods_of(request: pytest.FixtureRequest, namespace: str) -> None:
    """Show the logs of a namespace's pods if the test fails."""
    request.node.stash[_NAMESPACE] = namespace


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the cluster's tests first and in the order above, and allow for waiting for the cluster."""
    for item in items:
        if "shared_cluster" in _fixtures(item):
            assert group_of(item.nodeid) == CLUSTER, f"{item.nodeid} uses the cluster: move it to tests/e2e/cluster"
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[int, str]:
    """When a test runs: see above."""
    used = _fixtures(item)
    if "shared_cluster" not in used:
        return 3, ""
    if "bare_cluster" in used:
        return 1, ""
    if "cluster" in used:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        return 1, parameters.get("dapr", VERSION)
    return (0 if "no_cluster" in used else 2), ""


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of the logs of the test's pods, Dapr's and the cluster's servers below a failure."""
    report = yield
    cluster = item.stash.get(_CLUSTER, None)
    if report.failed and cluster is not None:
        namespaces = [name for name in (item.stash.get(_NAMESPACE, ""), DAPR_NAMESPACE) if name]
        pods = [log for namespace in namespaces for log in cluster.pod_logs(namespace)]
        for log in [*pods, *cluster.logs]:
            report.sections.append((f"end of {log}", tail(log, _LOG_LINES)))
    return report
