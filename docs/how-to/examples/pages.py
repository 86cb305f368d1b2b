"""A small controller: each ConfigMap with the label ``example.dev/page=yes`` gets a Deployment that serves it."""

import asyncio
import hashlib
import socket
import sys
from typing import Final

import msgspec

from governor.kube.applyset import ApplySet, Owner, Settings
from governor.kube.client import Client, Transport
from governor.kube.config import kubeconfig
from governor.kube.config.access import Access
from governor.kube.lease import LIMITS, LeaderElector, master_status_gauge
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.kube.readiness import State, compute_readiness, summarise
from governor.kube.reflector import Reflector, Unreadable, View
from governor.process import supervise
from governor.process.clock import Clock, SystemClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.fair_queue import Priority
from governor.process.reconcile.reconciler import (
    Done,
    Failed,
    Outcome,
    ReconcileMetrics,
    Reconciler,
    Requeue,
    Stalled,
    Waiting,
)
from governor.process.telemetry import logging
from governor.process.telemetry.instruments import Registry

CONFIG_MAPS: Final = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
SETTINGS: Final = Settings(manager="pages-controller", label_prefix="example.dev")
INVENTORY: Final = "page-"
RECHECK_S: Final = 10.0


class Data(msgspec.Struct, frozen=True, gc=False):
    """Content of a page."""

    image: str = "nginx"
    replicas: str = "1"


class Page(View, frozen=True):
    """The fields of a ConfigMap that are read and kept in memory."""

    data: Data = Data()


def desired(page: Page) -> list[Object]:
    """Return the manifests of one page; pure, so that it can be tested without a server."""
    labels = {"example.dev/serves": page.metadata.name}
    container = {"name": "page", "image": page.data.image}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": page.metadata.name, "namespace": page.metadata.namespace},
        "spec": {
            "replicas": int(page.data.replicas),
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    return [deployment]


class Pages:
    """The program: reconciles pages while it is the leader."""

    def __init__(self, transport: Transport, access: Access, registry: Registry, clock: Clock) -> None:
        self._client = Client(transport, access)
        self._namespace = access.namespace
        self._clock = clock
        self._metrics = ReconcileMetrics(registry)
        self._elector = LeaderElector(
            Client(transport, access, LIMITS),
            access.namespace,
            "pages",
            socket.gethostname(),
            clock=clock,
            status=master_status_gauge(registry),
        )

    async def run(self) -> None:
        """Acquire the Lease, reconcile while holding it, and release it at the end."""
        await self._elector.run(self._lead)

    async def _lead(self) -> None:
        term = _Term(self._client, self._namespace, self._metrics, self._clock)
        await term.run()


class _Term:
    """The work of one term. Re-created for each, so that work cancelled with the last term is repeated."""

    def __init__(self, client: Client, namespace: str, metrics: ReconcileMetrics, clock: Clock) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._reconciler = Reconciler[ObjectRef](
            self._reconcile,
            name="pages",
            metrics=metrics,
            clock=clock,
            backoff=Backoff(initial_s=1.0, max_s=300.0),
            workers=4,
        )
        self._reflector = Reflector(
            client,
            CONFIG_MAPS,
            Page,
            clock=clock,
            on_event=lambda event: self._reconciler.add(event.ref),
            namespace=namespace,
            labels="example.dev/page=yes",
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            await self._reflector.synced()
            await self._add_orphans()
            group.create_task(self._reconciler.run())

    async def _add_orphans(self) -> None:
        """Add the owners of all inventories: pages deleted while there was no leader cause no event."""
        async for each in self._client.list(CONFIG_MAPS, self._namespace, labels=SETTINGS.inventory_label):
            name = each["metadata"]["name"].removeprefix(INVENTORY)
            if "." not in name:  # the names of inventory chunks contain a dot
                self._reconciler.add(ObjectRef("", "ConfigMap", self._namespace, name), Priority.RESYNC)

    async def _reconcile(self, key: ObjectRef) -> Outcome:
        owner = hashlib.sha256(f"{key.namespace}/{key.name}".encode()).hexdigest()[:40]
        objects = ApplySet(self._client, Owner(owner, key.namespace, INVENTORY + key.name), SETTINGS, self._clock)
        page = self._reflector.store.get(key)
        if page is None:
            return Done() if (await objects.delete_all()).complete else Requeue(RECHECK_S)
        if isinstance(page, Unreadable):
            return Stalled(page.reason)
        report = await objects.converge(desired(page))
        if report.pending:
            return Requeue(RECHECK_S)
        if not report.ok:
            return Failed(RuntimeError("; ".join(report.problems())))
        return await self._readiness([result.ref for result in report.apply.results])

    async def _readiness(self, refs: list[ObjectRef]) -> Outcome:
        objects = {}
        for ref in refs:
            kind = await self._client.discovery.find(ref.group, ref.kind)
            objects[ref] = compute_readiness(await self._client.get(kind, ref.name, ref.namespace))
        summary = summarise(objects)
        return Done() if summary.state is State.READY else Waiting(summary.message, RECHECK_S)


async def program() -> int:
    """Run with the user's kubeconfig until a signal arrives."""
    logging.configure("pages")
    async with Transport() as transport:
        pages = Pages(transport, kubeconfig.load(), Registry(), SystemClock())
        return await supervise.run_program([supervise.Component("pages", pages.run)], grace_s=20.0)


if __name__ == "__main__":
    sys.exit(supervise.main(program))
