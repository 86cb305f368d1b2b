"""A controller built from reflector, reconciler and client keeps working when its API server is restarted."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from governor.kube.client import Client, Transport
from governor.kube.objects import ObjectRef
from governor.kube.reflector import Metadata, Reflector, View
from governor.process.clock import SystemClock
from governor.process.reconcile.reconciler import Done, Failed, Outcome, ReconcileMetrics, Reconciler
from governor.process.telemetry.instruments import Registry
from testbed.pytest_plugin import StartControlPlane
from testbed.waiting import until
from tests.contract.kube.bed import admin_of
from tests.contract.kube.reflector.bed import (
    CONFIG_MAPS,
    FAST,
    MANAGER,
    UNLIMITED,
    WITHIN_S,
    box,
    eventually,
    gather_bounded,
    running,
    until_true,
)

HERE = "default"
OURS = {"test": "controller"}
KEYS = [f"box-{number}" for number in range(50)]


class Annotations(msgspec.Struct, frozen=True, gc=False):
    done: str = msgspec.field(name="example.dev/done", default="")


class BoxMetadata(Metadata, frozen=True):
    annotations: Annotations = Annotations()


class Data(msgspec.Struct, frozen=True, gc=False):
    size: str = ""


class Box(View, frozen=True):
    metadata: BoxMetadata
    data: Data = Data()


class Controller:
    """Writes each box's size into an annotation of it."""

    def __init__(self, client: Client) -> None:
        clock = SystemClock()
        self._client = client
        self._registry = Registry()
        self.reconciler = Reconciler(
            self._reconcile,
            name="boxes",
            metrics=ReconcileMetrics(self._registry),
            clock=clock,
            backoff=FAST,
            workers=len(KEYS),
            on_outcome=lambda _, outcome: self.outcomes.update([type(outcome)]),
        )
        self.reflector = Reflector(
            client,
            CONFIG_MAPS,
            Box,
            clock=clock,
            on_event=lambda event: self.reconciler.add(event.ref),
            namespace=HERE,
            labels="test=controller",
            backoff=FAST,
        )
        self.outcomes: Counter[type[Outcome]] = Counter()
        self.gate = asyncio.Event()
        """Keys with something to write wait until it is set."""
        self.in_progress: set[ObjectRef] = set()
        self.overlapping: list[ObjectRef] = []
        """Keys that were reconciled twice at the same time."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.reflector.run())
            group.create_task(self.reconciler.run())

    async def _reconcile(self, key: ObjectRef) -> Outcome:
        with self._track(key):
            view = self.reflector.store.get(key)
            if view and view.metadata.annotations.done != view.data.size:
                await self.gate.wait()
                change = {"metadata": {"annotations": {"example.dev/done": view.data.size}}}
                await self._client.patch(CONFIG_MAPS, key.name, key.namespace, change, manager="controller")
        return Done()

    @contextmanager
    def _track(self, key: ObjectRef) -> Iterator[None]:
        if key in self.in_progress:
            self.overlapping.append(key)
        self.in_progress.add(key)
        try:
            yield
        finally:
            self.in_progress.discard(key)


async def grow(client: Client, size: int) -> None:
    """Change every box as a user would while the controller writes its annotations."""
    await gather_bounded(
        client.patch(CONFIG_MAPS, name, HERE, {"data": {"size": str(size)}}, manager=MANAGER) for name in KEYS
    )


async def done(client: Client) -> dict[str, str]:
    """Return the boxes whose annotation on the server equals their size."""
    objects = client.list(CONFIG_MAPS, HERE, labels="test=controller")
    sizes = {
        each["metadata"]["name"]: (each["data"]["size"], each["metadata"].get("annotations")) async for each in objects
    }
    return {name: size for name, (size, notes) in sizes.items() if (notes or {}).get("example.dev/done") == size}


@pytest.mark.parametrize("answered", [0, 1, 25])
async def test_a_server_restart_loses_no_key_and_reconciles_none_concurrently(
    start_api: StartControlPlane, transport: Transport, answered: int
) -> None:
    plane = await start_api()
    client = Client(transport, admin_of(plane), UNLIMITED)
    controller = Controller(client)
    async with running(controller.run()):
        await gather_bounded(
            client.create(CONFIG_MAPS, box(HERE, name, 1, labels=OURS), manager=MANAGER) for name in KEYS
        )
        await until_true(lambda: len(controller.in_progress) == len(KEYS))
        controller.gate.set()
        await until_true(lambda: controller.outcomes[Done] >= answered)
        await plane.api.kill()
        await until_true(lambda: bool(controller.reflector.last_error))
        await plane.api.start()
        await eventually(lambda: grow(client, 2))

        async def all_done() -> bool:
            return await done(client) == dict.fromkeys(KEYS, "2")

        await until(all_done, within_s=WITHIN_S)

    assert controller.overlapping == []
    assert len(controller.reflector.store) == len(KEYS)
    assert controller.outcomes[Failed] >= (len(KEYS) if not answered else 0)
    assert controller.reflector.relists <= 1
