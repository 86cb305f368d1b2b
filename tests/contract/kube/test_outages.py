"""Reflectors, controllers and leader electors while etcd is paused or the API server is down.

The tests share one control plane, which each of them breaks and repairs.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from governor.errors import GovernorError
from governor.kube.client import Client, Transport
from governor.kube.objects import ObjectRef
from governor.kube.reflector import Metadata, Reflector, View
from governor.process.clock import SystemClock
from governor.process.reconcile.reconciler import Done, Failed, Outcome, ReconcileMetrics, Reconciler
from governor.process.telemetry.instruments import Registry
from testbed.kube.control_plane import ControlPlane, Options
from testbed.waiting import until
from tests.contract.kube.bed import admin_of
from tests.contract.kube.lease.bed import Election
from tests.contract.kube.reflector.bed import (
    CONFIG_MAPS,
    FAST,
    MANAGER,
    NAMESPACES,
    UNLIMITED,
    WITHIN_S,
    Watcher,
    box,
    eventually,
    gather_bounded,
    running,
    until_true,
    watching,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HERE = "default"
BOXES = 50
ELECTED_WITHIN_S = 3.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _plane(
    kubernetes_binaries: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ControlPlane]:
    options = Options(api_flags=("--request-timeout=5s",))
    async with ControlPlane(kubernetes_binaries, tmp_path_factory.mktemp("outages"), options) as plane:
        yield plane


@pytest.fixture
def plane(_plane: ControlPlane, server_logs: list[Path]) -> Iterator[ControlPlane]:
    """A control plane that each test of this module breaks and repairs."""
    server_logs.extend(server.log for server in _plane.servers)
    yield _plane
    _plane.etcd.resume()  # a failed test may have left it paused


@pytest_asyncio.fixture(loop_scope="module")
async def client(plane: ControlPlane) -> AsyncIterator[Client]:
    """An administrator's client that is not limited."""
    async with Transport() as transport:
        yield Client(transport, admin_of(plane), UNLIMITED)


@pytest_asyncio.fixture(loop_scope="module")
async def namespace(client: Client) -> str:
    """The name of a new namespace."""
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-", "name": ""}}
    created = await client.create(NAMESPACES, manifest, manager=MANAGER)
    return str(created["metadata"]["name"])


async def put(client: Client, namespace: str, name: str, size: int = 0) -> None:
    await client.apply(CONFIG_MAPS, box(namespace, name, size), manager=MANAGER, force=True)


async def test_a_paused_etcd_delays_events_and_loses_none(plane: ControlPlane, client: Client, namespace: str) -> None:
    await put(client, namespace, "a")
    late = Watcher(client, namespace)
    async with watching(client, namespace) as before:
        await plane.etcd.pause()
        async with running(late.reflector.run()):
            with pytest.raises(GovernorError):
                await client.get(CONFIG_MAPS, "a", namespace)
            await until_true(lambda: bool(late.reflector.last_error))
            plane.etcd.resume()
            await eventually(lambda: put(client, namespace, "b"))
            for watcher in (before, late):
                await watcher.converges({"a": "0", "b": "0"})
                assert watcher.recorder.summary == [("Added", "a", "0"), ("Added", "b", "0")]


async def test_without_etcd_there_is_no_leader_until_it_resumes(plane: ControlPlane, namespace: str) -> None:
    async with Transport() as transport, Election(transport, admin_of(plane), namespace) as election:
        for _ in range(3):
            election.contender().start()
        leader = await election.wait_for_leader(within_s=ELECTED_WITHIN_S)
        await election.advance(4)
        await plane.etcd.pause()
        await election.advance(40, settle=False)
        assert election.leaders == []
        assert leader.terms[0][2] is not None
        plane.etcd.resume()

        async def has_leader() -> bool:
            await election.advance(1)
            return bool(election.leaders)

        await until(has_leader)  # the server recovers in real time
        election.assert_terms_do_not_overlap()


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
    """Writes the size of each of its boxes into an annotation of it."""

    def __init__(self, client: Client, name: str) -> None:
        clock = SystemClock()
        self._client = client
        self._labels = {"controller": name}
        self._selector = f"controller={name}"
        self.boxes = [f"{name}-{number}" for number in range(BOXES)]
        self.reconciler = Reconciler(
            self._reconcile,
            name=name,
            metrics=ReconcileMetrics(Registry()),
            clock=clock,
            backoff=FAST,
            workers=BOXES,
            on_outcome=self._record,
        )
        self.reflector = Reflector(
            client,
            CONFIG_MAPS,
            Box,
            clock=clock,
            on_event=lambda event: self.reconciler.add(event.ref),
            namespace=HERE,
            labels=self._selector,
            backoff=FAST,
        )
        self.outcomes: Counter[type[Outcome]] = Counter()
        self.gate = asyncio.Event()
        """Keys with something to write wait until it is set."""
        self.answered = asyncio.Event()
        """Set by the first key that was reconciled."""
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
            if isinstance(view, Box) and view.metadata.annotations.done != view.data.size:
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

    def _record(self, _: ObjectRef, outcome: Outcome) -> None:
        self.outcomes.update([type(outcome)])
        if isinstance(outcome, Done):
            self.answered.set()

    async def create_boxes(self) -> None:
        """Create all boxes, and wait until each of them is being reconciled."""
        await gather_bounded(
            self._client.create(CONFIG_MAPS, box(HERE, name, 1, labels=self._labels), manager=MANAGER)
            for name in self.boxes
        )
        await until_true(lambda: len(self.in_progress) == BOXES)

    async def grow_boxes(self) -> None:
        """Change every box as a user would while the controller writes its annotations."""
        change = {"data": {"size": "2"}}
        await gather_bounded(
            self._client.patch(CONFIG_MAPS, name, HERE, change, manager=MANAGER) for name in self.boxes
        )

    async def is_done(self) -> bool:
        """Return whether the annotation of each box on the server is its new size."""
        found = [each async for each in self._client.list(CONFIG_MAPS, HERE, labels=self._selector)]
        notes = [each["metadata"].get("annotations", {}).get("example.dev/done") for each in found]
        return [each["data"]["size"] for each in found] == notes == ["2"] * BOXES


async def test_a_restart_with_a_new_certificate_loses_no_event_and_no_key_and_reconciles_none_concurrently(
    plane: ControlPlane, client: Client, namespace: str
) -> None:
    """The server is killed before any write of one controller is sent and while most of the other's are in flight."""
    unsent, in_flight = controllers = Controller(client, "unsent"), Controller(client, "in-flight")
    for name in ("a", "b"):
        await put(client, namespace, name)
    async with watching(client, namespace) as watcher, running(unsent.run()), running(in_flight.run()):
        for controller in controllers:
            await controller.create_boxes()
        in_flight.gate.set()
        await in_flight.answered.wait()
        unsent.gate.set()
        await plane.api.kill()
        reflectors: list[Reflector[Any]] = [watcher.reflector, unsent.reflector, in_flight.reflector]
        await until_true(lambda: all(reflector.last_error for reflector in reflectors))
        plane.api.serve_with(plane.authority.issue_serving())
        await plane.api.start()

        await put(client, namespace, "a", 1)
        await client.delete(CONFIG_MAPS, "b", namespace)
        await watcher.converges({"a": "1"})
        assert watcher.recorder.summary[2:] == [("Changed", "a", "1"), ("Removed", "b", "0")]
        for controller in controllers:
            await eventually(controller.grow_boxes)
            await until(controller.is_done, within_s=WITHIN_S)

    assert unsent.outcomes[Failed] >= BOXES
    for controller in controllers:
        assert controller.overlapping == []
        assert len(controller.reflector.store) == BOXES
    assert all(reflector.relists <= 1 for reflector in reflectors)
