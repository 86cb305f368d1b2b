"""The cluster that the tests of one process share."""

import os
from pathlib import Path

from testbed import images
from testbed.cluster import requisites, turn
from testbed.cluster.cluster import TURN_WITHIN_S, Cluster
from testbed.cluster.leftovers import sweep
from testbed.cluster.traces import Traces, look
from testbed.cluster.turn import Say
from toolchain.errors import TestbedError, tail


class SharedCluster:
    """Started when the first test needs it; it can be given up, and is started again for the next."""

    def __init__(self, directory: Path, say: Say) -> None:
        self._directory = directory
        self._say = say
        self._cluster: Cluster | None = None
        self.before: Traces = frozenset()
        """What there was of a cluster on the machine before this one was started."""

    async def running(self) -> Cluster:
        """The cluster, started now if it does not run."""
        if self._cluster is None:
            cluster = Cluster(self._directory, f"the tests of process {os.getpid()}")
            with await turn.wait(self._say, TURN_WITHIN_S) as lock:
                sweep(lock)  # a killed one's traces would be taken for the machine's own
                self.before = look(cluster.state)
            ready_made = [images.pause().file, images.busybox().file]
            await cluster.start(requisites.programs(), ready_made, say=self._say)
            self._cluster = cluster
        return self._cluster

    async def end(self) -> None:
        """Give it up: somebody else may have it."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.stop()

    def check(self) -> None:
        """Refuse to go on with one that has ended by itself; the next test gets a new one."""
        if self._cluster is not None and not self._cluster.is_up:
            cluster, self._cluster = self._cluster, None
            raise TestbedError(f"the cluster has ended by itself; its log is {cluster.log}\n{tail(cluster.log)}")
