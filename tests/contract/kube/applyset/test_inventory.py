"""The inventory on a real API server: conditional writes, chunks, and rejection of damaged or foreign ones."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from governor.errors import GovernorError, Kind
from governor.kube.applyset import inventory as inventory_module
from governor.kube.applyset.entries import Entry, by_ref, pack
from governor.kube.applyset.inventory import Inventory, Snapshot
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.client import Client, Request, Transport
from governor.kube.objects import Object, ObjectRef
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    INVENTORY,
    MANAGER,
    PREFIX,
    RecordingClient,
    apply,
    config_map,
    error_of,
    exists,
    make_set,
    prune,
    prune_outcomes,
)
from tests.contract.kube.bed import admin_of

DIGEST = "sha256:" + "ab" * 32
SEVERAL_CHUNKS = 30
"""Number of entries that need several chunks of ``small_chunks``."""


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit chunks to about ten entries."""
    monkeypatch.setattr(inventory_module, "pack", partial(pack, chunk_bytes=1500))


def inventory_in(client: Client, namespace: str) -> Inventory:
    return Inventory(client, Owner(namespace, namespace, INVENTORY), Settings(MANAGER, PREFIX))


def many(count: int, kind: str = "ConfigMap", uid: str = "") -> dict[ObjectRef, Entry]:
    return by_ref(
        Entry(ObjectRef("", kind, "some-namespace", f"object-with-quite-a-long-name-{number}"), uid, DIGEST)
        for number in range(count)
    )


async def config_maps(client: Client, namespace: str) -> list[Object]:
    found = client.list(CONFIG_MAPS, namespace, labels=f"{PREFIX}/inventory={namespace}")
    return [each async for each in found]


async def test_ten_thousand_objects_fit(client: Client, namespace: str) -> None:
    inventory = inventory_in(client, namespace)
    entries = many(10_000, uid="0123456789-0123456789-0123456789-012")
    snapshot = await inventory.write(Snapshot(), entries)
    assert (await inventory.read()).entries == entries
    maps = await config_maps(client, namespace)
    assert len(maps) == len(snapshot.chunks) + 1 > 2
    assert max(sum(map(len, each["data"].values())) for each in maps) < 1024 * 1024
    await inventory.delete(snapshot)
    assert await config_maps(client, namespace) == []


@pytest.mark.usefixtures("small_chunks")
async def test_unchanged_chunks_are_not_written_again(api: ControlPlane, transport: Transport, namespace: str) -> None:
    client = RecordingClient(transport, admin_of(api))
    inventory = inventory_in(client, namespace)
    entries = many(SEVERAL_CHUNKS)
    snapshot = await inventory.write(Snapshot(), entries)
    last = max(entries)
    client.sent.clear()
    changed = await inventory.write(snapshot, entries | {last: Entry(last, "u", DIGEST)})
    assert [each.split()[0] for each in client.writes] == ["POST", "PUT", "DELETE"]
    assert len(await config_maps(client, namespace)) == len(changed.chunks) + 1
    client.sent.clear()
    assert await inventory.write(changed, dict(changed.entries)) == changed
    assert client.sent == []


@pytest.mark.usefixtures("small_chunks")
async def test_of_two_writers_one_gets_a_conflict(client: Client, namespace: str) -> None:
    inventory = inventory_in(client, namespace)
    for entries in (many(2), many(SEVERAL_CHUNKS)):
        before = await inventory.read()
        first = await inventory.write(before, entries)
        error = await error_of(inventory.write(before, many(3, "Secret")))
        assert (error.kind, error.code) == (Kind.CONFLICT, "inventory-conflict")
        assert (await inventory.read()).entries == entries == first.entries
        assert len(await config_maps(client, namespace)) <= 2 * (len(first.chunks) + 1)
    error = await error_of(inventory.delete(before))
    assert error.kind is Kind.CONFLICT
    assert (await inventory.read()).entries == entries


async def test_concurrent_runs_lose_no_entry(client: Client, namespace: str) -> None:
    sets = [make_set(client, namespace) for _ in range(6)]
    desired = [config_map(f"c{number}") for number in range(6)]
    conflicts: list[int] = []

    async def converge_until_ok(number: int) -> None:
        while True:
            try:
                report = await sets[number].converge(desired)
            except GovernorError as error:
                if error.kind is not Kind.CONFLICT:
                    raise
                conflicts.append(number)
            else:
                assert report.ok
                return

    async with asyncio.TaskGroup() as group:
        for number in range(len(sets)):
            group.create_task(converge_until_ok(number))
    entries = await sets[0].inventory()
    assert {ref.name for ref in entries} == {f"c{number}" for number in range(len(sets))}
    assert all(entry.uid for entry in entries.values())
    assert conflicts


@pytest.mark.usefixtures("small_chunks")
async def test_chunks_of_a_crashed_writer_are_deleted_and_those_of_a_concurrent_one_kept(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = RecordingClient(transport, admin_of(api))
    inventory = inventory_in(client, namespace)
    snapshot = await inventory.write(Snapshot(), many(SEVERAL_CHUNKS))

    async def crash_before_the_head(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if request.method == "PUT":
            raise ConnectionError("crashed")
        return await send(request)

    client.intercept = crash_before_the_head
    with pytest.raises(ConnectionError):
        await inventory.write(snapshot, many(SEVERAL_CHUNKS, "Secret"))
    client.intercept = None
    assert len(await config_maps(client, namespace)) == 1 + 2 * len(snapshot.chunks)

    # Another writer starts from the state that the first one read.
    second = await inventory.write(snapshot, many(SEVERAL_CHUNKS, "Service"))
    assert len(await config_maps(client, namespace)) == 1 + len(second.chunks)
    client.intercept = crash_before_the_head
    with pytest.raises(ConnectionError):
        await inventory.write(second, many(SEVERAL_CHUNKS, "Pod"))
    client.intercept = None
    await inventory._delete_old_chunks(second)  # late: a head could still list those chunks
    assert len(await config_maps(client, namespace)) == 1 + 2 * len(second.chunks)


async def damage(client: Client, namespace: str, how: str) -> None:
    head = await client.get(CONFIG_MAPS, INVENTORY, namespace)
    data = head["data"]
    chunk = json.loads(data["chunks"])[0][0]
    if how == "an entry is added":
        data["entries"] = data["entries"].replace("[[", '[["","Secret","kube-system",[["x","",""]]],[', 1)
    elif how == "it is empty":
        data.clear()
    elif how == "its entries are not JSON":
        data["entries"] = "nothing"
    elif how == "a chunk is missing":
        await client.delete(CONFIG_MAPS, chunk, namespace)
        return
    elif how == "a chunk is replaced":
        await client.delete(CONFIG_MAPS, chunk, namespace)
        await client.create(CONFIG_MAPS, config_map(chunk, namespace, entries="[]"), manager="other-client")
        return
    elif how == "it has another owner":
        data["owner"] = "another"
    else:
        data["format"] = "v2"
    await client.replace(CONFIG_MAPS, head, manager="other-client")


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("an entry is added", "inventory-damaged"),
        ("its entries are not JSON", "inventory-damaged"),
        ("a chunk is missing", "inventory-damaged"),
        ("a chunk is replaced", "inventory-damaged"),
        ("it is empty", "inventory-foreign"),
        ("it has another owner", "inventory-foreign"),
        ("it has a later format", "inventory-foreign"),
    ],
)
async def test_with_a_damaged_or_foreign_inventory_nothing_is_written(
    api: ControlPlane, transport: Transport, namespace: str, how: str, code: str
) -> None:
    client = RecordingClient(transport, admin_of(api))
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a"), config_map("b")])
    inventory = inventory_in(client, namespace)
    snapshot = await inventory.read()
    await inventory.write(snapshot, {**many(SEVERAL_CHUNKS), **snapshot.entries})
    await damage(client, namespace, how)
    client.sent.clear()
    calls: list[Awaitable[Any]] = [
        apply(objects, [config_map("c")]),
        prune(objects, [config_map("a")]),
        objects.delete_all(),
        objects.plan([]),
        objects.orphan(),
    ]
    for call in calls:
        error = await error_of(call)
        assert (error.kind, error.code) == (Kind.PRECONDITION, code)
        assert f"ConfigMap {namespace}/{INVENTORY}" in error.message
    assert client.writes == []
    assert await exists(client, CONFIG_MAPS, "b", namespace)


async def test_another_config_map_is_not_used_as_inventory(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map(INVENTORY, namespace, theirs="1"), manager="other-client")
    error = await error_of(apply(make_set(client, namespace), [config_map("a")]))
    assert error.code == "inventory-foreign"
    assert (await client.get(CONFIG_MAPS, INVENTORY, namespace))["data"] == {"theirs": "1"}
    assert not await exists(client, CONFIG_MAPS, "a", namespace)


async def test_after_a_deleted_inventory_the_next_apply_starts_a_new_one(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a"), config_map("b")])
    await client.delete(CONFIG_MAPS, INVENTORY, namespace)
    assert (await apply(objects, [config_map("a")])).ok
    assert prune_outcomes(await objects.delete_all()) == {"a": "removed"}
    assert await exists(client, CONFIG_MAPS, "b", namespace)


async def test_without_the_inventory_namespace_nothing_is_applied(client: Client, namespace: str) -> None:
    objects = make_set(client, f"{namespace}-absent", owner=namespace)
    error = await error_of(apply(objects, [config_map("a", namespace)]))
    assert error.kind is Kind.NOT_FOUND
    assert f"{namespace}-absent" in error.message
    assert not await exists(client, CONFIG_MAPS, "a", namespace)
