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
from governor.kube.lease.elector import LIMITS, Election, master_status
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.kube.readiness.table import judge
from governor.kube.readiness.verdict import State, summarise
from governor.kube.reflector import Reflector, View
from governor.process import supervise
from governor.process.clock import Clock, SystemClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.fair_queue import Priority
from governor.process.reconcile.reconciler import Done, Failed, Outcome, ReconcileMetrics, Reconciler, Requeue, Waiting
from governor.process.telemetry import logging
from governor.process.telemetry.instruments import Registry

CONFIG_MAPS: Final = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
SETTINGS: Final = Settings(manager="pages-controller", prefix="example.dev")
INVENTORY: Final = "page-"
RECHECK_S: Final = 10.0


class Data(msgspec.Struct, frozen=True, gc=False):
    """What a page says."""

    image: str = "nginx"
    replicas: str = "1"


class Page(View, frozen=True):
    """All that is read of a ConfigMap, and all that is kept of it in memory."""

    data: Data = Data()


def wanted(page: Page) -> list[Object]:
    """The objects of one page; pure, so that it can be tested without a server."""
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
    """One program: a candidate that does the work while it leads."""

    def __init__(self, transport: Transport, access: Access, registry: Registry, clock: Clock) -> None:
        self._client = Client(transport, access)
        self._namespace = access.namespace
        self._clock = clock
        self._metrics = ReconcileMetrics(registry)
        self._election = Election(
            Client(transport, access, LIMITS),
            access.namespace,
            "pages",
            socket.gethostname(),
            clock=clock,
            status=master_status(registry),
        )

    async def run(self) -> None:
        """Wait for the Lease, work while it is ours, and give it back at the end."""
        await self._election.run(self._lead)

    async def _lead(self) -> None:
        term = _Term(self._client, self._namespace, self._metrics, self._clock)
        await term.run()


class _Term:
    """The work of one term. Made anew for each: a run that was cancelled with the last term must not be lost."""

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
            await self._add_forsaken()
            group.create_task(self._reconciler.run())

    async def _add_forsaken(self) -> None:
        """No event tells of pages that were deleted while nobody led; what they left behind does."""
        async for each in self._client.list(CONFIG_MAPS, self._namespace, labels=SETTINGS.inventory_label):
            name = each["metadata"]["name"].removeprefix(INVENTORY)
            if "." not in name:  # a dot is in the names of further parts of an inventory
                self._reconciler.add(ObjectRef("", "ConfigMap", self._namespace, name), Priority.RESYNC)

    async def _reconcile(self, key: ObjectRef) -> Outcome:
        owner = hashlib.sha256(f"{key.namespace}/{key.name}".encode()).hexdigest()[:40]
        objects = ApplySet(self._client, Owner(owner, key.namespace, INVENTORY + key.name), SETTINGS, self._clock)
        page = self._reflector.store.get(key)
        if page is None:
            return Done() if (await objects.remove_all()).complete else Requeue(RECHECK_S)
        manifests = wanted(page)
        applied = await objects.apply(manifests)
        if not applied.ok:
            errors = [result.error for result in applied.results if result.error]
            return Failed(RuntimeError("; ".join(errors)))
        if not (await objects.prune(manifests)).complete:
            return Requeue(RECHECK_S)
        return await self._readiness([result.ref for result in applied.results])

    async def _readiness(self, refs: list[ObjectRef]) -> Outcome:
        verdicts = {}
        for ref in refs:
            kind = await self._client.discovery.find(ref.group, ref.kind)
            verdicts[ref] = judge(await self._client.get(kind, ref.name, ref.namespace))
        verdict = summarise(verdicts)
        return Done() if verdict.state is State.READY else Waiting(verdict.message, RECHECK_S)


async def program() -> int:
    """Run as the person whose kubeconfig this is, until a signal comes."""
    logging.configure("pages")
    async with Transport() as transport:
        pages = Pages(transport, kubeconfig.load(), Registry(), SystemClock())
        return await supervise.run_program([supervise.Component("pages", pages.run)], grace_s=20.0)


if __name__ == "__main__":
    sys.exit(supervise.main(program))
