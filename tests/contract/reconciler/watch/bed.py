"""A target cluster with modules that were applied, and a watch of it that records the modules it reports."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from governor.kube.applyset import ApplySet, Owner, Settings
from governor.kube.client import Client
from governor.kube.objects import Object, ObjectRef, ref_of
from governor.process.clock import Clock, SystemClock, VirtualClock
from governor.reconciler.watch import ClusterWatch
from testbed.waiting import until
from tests.contract.kube.applyset import bed
from tests.contract.kube.applyset.bed import delete_until_gone
from tests.contract.kube.reflector.bed import running

WITHIN_S = 60.0


class Watched:
    """A watch, and the modules that it has reported."""

    def __init__(self, client: Client, settings: Settings, namespace: str, clock: Clock) -> None:
        self.changes: list[str] = []
        self.watch = ClusterWatch(client, settings, namespace, clock, self.changes.append)

    async def until(self, condition: Callable[[], object], clock: VirtualClock | None = None) -> None:
        """Wait for a condition on the watch, while a virtual clock advances."""

        async def holds() -> bool:
            if clock:
                await clock.advance(1.0)
            return bool(condition())

        await until(holds, within_s=WITHIN_S)

    async def reports(self, module: str) -> None:
        """Wait until a module is reported, and forget what was reported."""
        await self.until(lambda: module in self.changes)
        self.changes.clear()

    async def synced(self) -> None:
        """Wait until the watch is synced."""
        async with asyncio.timeout(WITHIN_S):
            await self.watch.synced()


class TargetBed:
    """One target cluster; the labels of its modules are its own, because tests share the server."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.settings = Settings(
            manager="modules", label_prefix=f"{namespace}.example", default_namespace=namespace, force_conflicts=True
        )

    def set_of(self, owner: str, client: Client | None = None) -> ApplySet:
        """Return the apply set of an owner."""
        return ApplySet(client or self.client, Owner(owner, self.namespace, f"module-{owner}"), self.settings)

    async def apply(self, owner: str, *manifests: Object, client: Client | None = None) -> None:
        """Apply these objects, and prune all others of the owner."""
        report = await self.set_of(owner, client).converge(manifests, allow_empty=True)
        assert report.ok, report

    async def remove(self, owner: str) -> None:
        """Remove all objects of an owner, and its inventory."""
        await delete_until_gone(self.set_of(owner))

    def placed(self, manifest: Object) -> Object:
        """Return a manifest with the namespace."""
        return {**manifest, "metadata": {**manifest["metadata"], "namespace": self.namespace}}

    def ref(self, manifest: Object) -> ObjectRef:
        """Return the reference of an object in the namespace."""
        return ref_of(self.placed(manifest))

    @asynccontextmanager
    async def watching(self, client: Client | None = None, clock: Clock | None = None) -> AsyncIterator[Watched]:
        """Run a watch for the duration of the block, and yield it when it is synced."""
        watched = Watched(client or self.client, self.settings, self.namespace, clock or SystemClock())
        async with running(watched.watch.run()):
            await watched.synced()
            yield watched


def secret(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"password": "x"}}


def cluster_role(name: str) -> Object:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    api_version = "rbac.authorization.k8s.io/v1"
    return {"apiVersion": api_version, "kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]}


def definition(kind: str, group: str, *, subresources: Object | None = None, version: str = "v1") -> Object:
    """Return a CustomResourceDefinition with subresources, by default a status."""
    found = bed.definition(kind, group)
    found["spec"]["versions"][0] |= {
        "name": version,
        "subresources": {"status": {}} if subresources is None else subresources,
    }
    return found
