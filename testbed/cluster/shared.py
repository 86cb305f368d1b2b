"""The cluster that the tests of one process share."""

import os
from pathlib import Path

from testbed import images
from testbed.cluster import host, machine_lock
from testbed.cluster.cleanup import sweep
from testbed.cluster.cluster import LOCK_TIMEOUT_S, Cluster
from testbed.cluster.machine_lock import Notify
from testbed.cluster.snapshot import Snapshot, take_snapshot
from toolchain.errors import TestbedError, tail


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
