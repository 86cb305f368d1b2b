"""Pods and their owners on a real API server without kubelets: the tests write what a kubelet would report."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from governor.agent.platforms.kubernetes.workloads.observer import (
    CRON_JOBS,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Observer,
)
from governor.agent.platforms.kubernetes.workloads.workload import Workload
from governor.kube.client import Client, Request
from governor.kube.objects import Object
from governor.process.clock import SystemClock
from tests.contract.kube.reflector.bed import running, until_true

MANAGER = "tests"
RESOURCES = {each.kind: each for each in (CRON_JOBS, DAEMON_SETS, DEPLOYMENTS, JOBS, PODS, REPLICA_SETS, STATEFUL_SETS)}


async def permitted() -> None:
    """Permit every write."""


class Watched:
    """An observer with the number of changes that it has reported."""

    def __init__(self, client: Client, *namespaces: str) -> None:
        self.changes = 0
        self.observer = Observer(client, namespaces, clock=SystemClock(), on_change=self._changed)

    def _changed(self) -> None:
        self.changes += 1

    @property
    def workloads(self) -> dict[str, Workload]:
        """The observed workloads, by kind and name."""
        return {f"{each.ref.kind}/{each.ref.name}": each for each in self.observer.workloads()}

    @property
    def pods(self) -> dict[str, list[str]]:
        """The names of the pods of each workload."""
        return {name: [pod.name for pod in each.pods] for name, each in self.workloads.items()}

    async def shows(self, pods: dict[str, list[str]]) -> None:
        """Wait until exactly these workloads with these pods are observed."""
        await until_true(lambda: self.pods == pods)


@asynccontextmanager
async def observing(client: Client, *namespaces: str) -> AsyncIterator[Watched]:
    """Run a synced observer for the duration of the block."""
    watched = Watched(client, *namespaces)
    async with running(watched.observer.run()):
        await watched.observer.synced()
        yield watched


async def create(client: Client, namespace: str, manifest: Object) -> Object:
    """Create an object in a namespace, with a uid in its owner reference that the server accepts."""
    metadata = {**manifest["metadata"], "namespace": namespace}
    for field in ("uid", "creationTimestamp"):
        metadata.pop(field, None)
    described = {key: value for key, value in manifest.items() if key != "status"}
    return await client.create(RESOURCES[manifest["kind"]], {**described, "metadata": metadata}, manager=MANAGER)


async def write_status(client: Client, namespace: str, kind: str, name: str, status: Any) -> None:
    """Write a status as a kubelet or controller does."""
    body = msgspec.json.encode({"status": status})
    path = RESOURCES[kind].path(namespace, name, "status")
    await client.send(Request("PATCH", path, body=body, content_type="application/merge-patch+json"))
