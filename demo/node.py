"""The machine's one real cluster, for the duration of a demo."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from testbed import images
from testbed.cluster import host, machine_lock
from testbed.cluster.cleanup import sweep
from testbed.cluster.cluster import LOCK_TIMEOUT_S, Cluster
from testbed.cluster.snapshot import leaks, namespaces, take_snapshot
from toolchain.errors import TestbedError


@asynccontextmanager
async def running_cluster(directory: Path, name: str) -> AsyncIterator[Cluster]:
    """Start the machine's one cluster; stop it at the end, and raise if something is left."""
    cluster = Cluster(directory, name)
    with await machine_lock.acquire(print, LOCK_TIMEOUT_S) as lock:
        sweep(lock)  # a killed cluster would count as left behind by this one
        before = take_snapshot(cluster.state)
    await cluster.start(host.programs(), [images.pause().file, images.busybox().file])
    try:
        yield cluster
    finally:
        print("\nRemoving the cluster ...", flush=True)
        entered = namespaces(cluster.state)
        await cluster.stop()
        if left := await leaks(cluster.state, before, entered, print):
            raise TestbedError("\n".join(["the cluster left on this machine:", *sorted(left)]))


def pod_session() -> aiohttp.ClientSession:
    """Return a session for requests to pods: a connection that is kept would stay with a pod that is replaced."""
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=10, sock_connect=2))
