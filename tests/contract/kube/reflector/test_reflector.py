"""The reflector on a healthy API server: events, views, selectors, indexes."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec
import pytest
import structlog.testing

from governor.kube.client import Client, Request, Transport
from governor.kube.client.paging import MAX_LIMIT
from governor.kube.config.access import Access
from governor.kube.reflector import Added, Metadata, Reflector, View
from governor.process.clock import SystemClock
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.bed import FaultyApi, admin_of
from tests.contract.kube.reflector.bed import (
    CONFIG_MAPS,
    MANAGER,
    UNLIMITED,
    UNREADABLE,
    Watcher,
    box,
    gather_bounded,
    ref,
    running,
    until_true,
    watching,
)

FEW = 100


async def put(client: Client, namespace: str, name: str, size: object, manager: str = MANAGER) -> None:
    await client.apply(CONFIG_MAPS, box(namespace, name, size), manager=manager, force=True)


async def test_creation_change_and_deletion_are_delivered(client: Client, namespace: str) -> None:
    await put(client, namespace, "old", 1)
    async with watching(client, namespace) as watcher:
        assert watcher.recorder.summary == [("Added", "old", "1")]
        await put(client, namespace, "new", 2)
        await put(client, namespace, "new", 3)
        await client.delete(CONFIG_MAPS, "old", namespace)
        await watcher.converges({"new": "3"})
        assert watcher.recorder.summary[1:] == [
            ("Added", "new", "2"),
            ("Changed", "new", "3"),
            ("Removed", "old", "1"),
        ]
        assert (watcher.reflector.relists, watcher.reflector.reconnects, watcher.reflector.last_error) == (0, 0, "")


async def test_a_write_outside_the_view_emits_no_event(client: Client, namespace: str) -> None:
    await put(client, namespace, "a", 1)
    async with watching(client, namespace) as watcher:
        before = watcher.reflector.store[ref(namespace, "a")]
        await put(client, namespace, "a", 1, manager="another")
        await client.patch(CONFIG_MAPS, "a", namespace, {"metadata": {"annotations": {"seen": "yes"}}}, manager=MANAGER)
        written = await client.get(CONFIG_MAPS, "a", namespace)
        await put(client, namespace, "barrier", 1)
        await watcher.converges({"a": "1", "barrier": "1"})

        assert watcher.recorder.summary == [("Added", "a", "1"), ("Added", "barrier", "1")]
        after = watcher.reflector.store[ref(namespace, "a")]
        assert len(written["metadata"]["managedFields"]) > 1
        assert before == after
        assert before.metadata.resource_version != after.metadata.resource_version
        assert after.metadata.resource_version == written["metadata"]["resourceVersion"]


async def test_the_store_has_only_the_fields_of_the_view(client: Client, namespace: str) -> None:
    await put(client, namespace, "a", 1)
    written = await client.get(CONFIG_MAPS, "a", namespace)
    async with watching(client, namespace) as watcher:
        view = watcher.reflector.store[ref(namespace, "a")]
        assert msgspec.to_builtins(view) == {
            "metadata": {
                "name": "a",
                "namespace": namespace,
                "uid": written["metadata"]["uid"],
                "resourceVersion": written["metadata"]["resourceVersion"],
            },
            "data": {"size": "1", "owner": ""},
        }


async def test_an_object_that_no_longer_matches_the_label_selector_is_removed(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, box(namespace, "a", 1, labels={"tier": "web"}), manager=MANAGER)
    await client.create(CONFIG_MAPS, box(namespace, "b", 1, labels={"tier": "store"}), manager=MANAGER)
    async with watching(client, namespace, labels="tier=web") as watcher:
        assert watcher.sizes == {"a": "1"}
        for name, tier in (("a", "store"), ("b", "web")):
            await client.patch(CONFIG_MAPS, name, namespace, {"metadata": {"labels": {"tier": tier}}}, manager=MANAGER)
        await watcher.converges({"b": "1"})
        assert watcher.recorder.summary == [("Added", "a", "1"), ("Removed", "a", "1"), ("Added", "b", "1")]


async def test_objects_that_are_not_kept_are_absent(client: Client, namespace: str) -> None:
    for name, size in (("kept", 1), ("rejected", 0)):
        await put(client, namespace, name, size)
    async with watching(client, namespace, keep=lambda view: view.data.size != "0") as watcher:
        assert watcher.sizes == {"kept": "1"}
        for name, size in (("kept", 0), ("rejected", 2), ("barrier", 1)):
            await put(client, namespace, name, size)
        await watcher.converges({"rejected": "2", "barrier": "1"})
        assert watcher.recorder.summary == [
            ("Added", "kept", "1"),
            ("Removed", "kept", "1"),
            ("Added", "rejected", "2"),
            ("Added", "barrier", "1"),
        ]


async def test_kept_objects_survive_a_cut_watch(client: Client, faults: FaultyApi, namespace: str) -> None:
    await put(client, namespace, "kept", 1)
    async with watching(faults.client, namespace, keep=lambda view: view.data.size != "0") as watcher:
        faults.unavailable = True
        faults.cut()
        await put(client, namespace, "kept", 0)
        await put(client, namespace, "other", 1)
        faults.unavailable = False
        await watcher.converges({"other": "1"})
        assert watcher.recorder.summary[1:] == [("Removed", "kept", "1"), ("Added", "other", "1")]


async def test_a_field_selector_limits_the_watch_to_one_object(client: Client, namespace: str) -> None:
    async with watching(client, namespace, fields="metadata.name=b") as watcher:
        for name in "abc":
            await put(client, namespace, name, 1)
        await put(client, namespace, "b", 2)
        await watcher.converges({"b": "2"})
        assert {event.ref.name for event in watcher.recorder.events} == {"b"}


async def test_without_a_namespace_all_namespaces_are_watched(client: Client, namespace: str) -> None:
    async with watching(client, namespace) as inside, watching(client, "") as everywhere:
        await put(client, namespace, "a", 1)
        await put(client, "default", namespace, 2)
        expected = {ref(namespace, "a"), ref("default", namespace)}
        await until_true(lambda: expected <= everywhere.reflector.store.keys())
        await inside.converges({"a": "1"})


async def test_an_index_is_updated_by_each_change(client: Client, namespace: str) -> None:
    def owners(watcher: Watcher, owner: str) -> list[str]:
        return sorted(view.metadata.name for view in watcher.reflector.store.find("owner", owner))

    for name, owner in (("a", "x"), ("b", "x"), ("c", "y")):
        await client.create(CONFIG_MAPS, box(namespace, name, owner=owner), manager=MANAGER)
    async with watching(client, namespace, indexes={"owner": lambda view: (view.data.owner,)}) as watcher:
        assert (owners(watcher, "x"), owners(watcher, "y"), owners(watcher, "z")) == (["a", "b"], ["c"], [])
        await client.patch(CONFIG_MAPS, "a", namespace, {"data": {"owner": "z"}}, manager=MANAGER)
        await client.delete(CONFIG_MAPS, "c", namespace)
        await until_true(lambda: owners(watcher, "z") == ["a"] and not owners(watcher, "y"))
        assert owners(watcher, "x") == ["b"]


async def test_an_object_that_does_not_fit_the_view_is_not_absent_and_hides_no_other(
    client: Client, namespace: str
) -> None:
    await put(client, namespace, "bad", "large")
    await put(client, namespace, "good", 1)
    with structlog.testing.capture_logs() as logs:
        async with watching(client, namespace) as watcher:
            assert watcher.sizes == {"bad": UNREADABLE, "good": "1"}
            await put(client, namespace, "good", "larger")
            await put(client, namespace, "last", 1)
            await watcher.converges({"bad": UNREADABLE, "good": UNREADABLE, "last": "1"})
            await client.delete(CONFIG_MAPS, "bad", namespace)
            await put(client, namespace, "good", 2)
            await watcher.converges({"good": "2", "last": "1"})
            assert watcher.recorder.summary[2:] == [
                ("Changed", "good", UNREADABLE),
                ("Added", "last", "1"),
                ("Removed", "bad", UNREADABLE),
                ("Changed", "good", "2"),
            ]
    logged = [each["object"] for each in logs if each["event"] == "object does not fit its view"]
    assert logged == [f"ConfigMap {namespace}/bad", f"ConfigMap {namespace}/good"]


class LabelledMetadata(Metadata, frozen=True):
    labels: Mapping[str, str] = {}


class Labelled(View, frozen=True):
    metadata: LabelledMetadata


class RecordingClient(Client):
    """Records what the server sends."""

    def __init__(self, transport: Transport, access: Access) -> None:
        super().__init__(transport, access)
        self.received: list[bytes] = []

    async def send(self, request: Request) -> bytes:
        self.received.append(await super().send(request))
        return self.received[-1]

    async def stream_lines(self, request: Request) -> AsyncGenerator[bytes, None]:
        async with aclosing(super().stream_lines(request)) as lines:
            async for line in lines:
                self.received.append(line)
                yield line


async def test_with_metadata_only_the_server_sends_no_other_fields(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    recording = RecordingClient(transport, admin_of(api))

    async def create(name: str) -> None:
        await client.create(CONFIG_MAPS, box(namespace, name, labels={"tier": name}), manager=MANAGER)

    reflector = Reflector(
        recording,
        CONFIG_MAPS,
        Labelled,
        clock=SystemClock(),
        on_event=lambda _: None,
        namespace=namespace,
        metadata_only=True,
    )
    await create("listed")
    async with running(reflector.run()):
        await until_true(lambda: reflector.is_synced)
        await create("watched")
        await until_true(lambda: len(reflector.store) == 2)
    views = reflector.store.values()
    assert [view.metadata.labels["tier"] for view in views if isinstance(view, Labelled)] == ["listed", "watched"]
    assert len(recording.received) >= 2
    assert all(b"PartialObjectMetadata" in each and b'"data"' not in each for each in recording.received)


@pytest.mark.parametrize("total", [1_200, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_many_objects_are_listed_once_and_watched(
    api: ControlPlane, transport: Transport, namespace: str, total: int
) -> None:
    client = Client(transport, admin_of(api), UNLIMITED)
    await gather_bounded(
        client.create(CONFIG_MAPS, box(namespace, f"box-{n}", n), manager=MANAGER) for n in range(total)
    )
    async with watching(client, namespace) as watcher:
        assert len(watcher.reflector.store) == watcher.reflector.delivered == total > 2 * MAX_LIMIT
        assert all(isinstance(event, Added) for event in watcher.recorder.events)
        await gather_bounded(client.delete(CONFIG_MAPS, f"box-{n}", namespace) for n in range(FEW))
        await until_true(lambda: len(watcher.reflector.store) == total - FEW)
        assert (watcher.reflector.relists, watcher.reflector.reconnects) == (0, 0)
        assert watcher.reflector.delivered == total + FEW
