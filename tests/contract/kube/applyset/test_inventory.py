"""The inventory on a real API server: conditional writes, format v1, and rejection of damaged or foreign ones."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Mapping
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from governor.errors import GovernorError, Kind
from governor.kube.applyset.entries import Entry, by_ref
from governor.kube.applyset.inventory import Inventory, checksum
from governor.kube.applyset.results import Seen
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.client import Client, Transport
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
    prune_outcomes,
)
from tests.contract.kube.bed import admin_of

DIGEST = "sha256:" + "ab" * 32


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


async def write_v1(client: Client, namespace: str, *chunks: Mapping[ObjectRef, Entry]) -> None:
    """Write an inventory as version 0.1.0 did: the first entries in the head, the others in ConfigMaps of their own."""
    texts = [json.dumps([_block_v1(entry) for entry in chunk.values()]) for chunk in chunks]
    labels = {f"{PREFIX}/inventory": namespace}
    listed = [[f"{INVENTORY}.{number}", sha256(text.encode()).hexdigest()] for number, text in enumerate(texts[1:])]
    data = {"format": "v1", "owner": namespace, "entries": texts[0], "chunks": json.dumps(listed)}
    head = config_map(INVENTORY, namespace, **data, digest=checksum(data))
    head["metadata"]["labels"] = labels
    uid = (await client.create(CONFIG_MAPS, head, manager=MANAGER))["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": INVENTORY, "uid": uid}
    for (name, _), text in zip(listed, texts[1:], strict=True):
        chunk = config_map(name, namespace, entries=text) | {"immutable": True}
        chunk["metadata"] |= {"labels": labels, "ownerReferences": [owner]}
        await client.create(CONFIG_MAPS, chunk, manager=MANAGER)


def _block_v1(entry: Entry) -> list[Any]:
    digest = base64.urlsafe_b64encode(bytes.fromhex(entry.digest.removeprefix("sha256:"))).rstrip(b"=").decode()
    ref = entry.ref
    return [ref.group, ref.kind, ref.namespace, [[ref.name, entry.uid, digest]]]


async def test_an_inventory_of_format_v1_is_read_and_converted(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    manifests = [config_map("a"), config_map("b"), config_map("c")]
    await objects.converge(manifests)
    entries = [msgspec.structs.replace(entry, seen=Seen()) for entry in (await objects.inventory()).values()]
    await client.delete(CONFIG_MAPS, INVENTORY, namespace)
    await write_v1(client, namespace, *(by_ref([entry]) for entry in entries))
    assert await objects.inventory() == by_ref(entries)
    assert len(await config_maps(client, namespace)) == 3
    report = await objects.converge(manifests)
    assert (report.ok, report.apply.unsent) == (True, 3)  # nothing is applied again
    (head,) = await config_maps(client, namespace)
    assert head["data"]["format"] == "v2"
    assert all(entry.seen.version for entry in (await objects.inventory()).values())
    assert prune_outcomes((await objects.converge([config_map("b")])).prune) == {"a": "removed", "c": "removed"}


async def test_a_set_of_format_v1_can_be_deleted(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await write_v1(client, namespace, many(2, "Secret"), many(2))
    assert (await objects.delete_all()).complete
    assert await config_maps(client, namespace) == []


async def test_a_set_that_is_too_large_is_rejected_before_it_is_applied(
    api: ControlPlane, transport: Transport, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = RecordingClient(transport, admin_of(api))
    monkeypatch.setattr("governor.kube.applyset.entries.MAX_BYTES", 1000)
    error = await error_of(make_set(client, namespace).converge([config_map(f"c{number}") for number in range(8)]))
    assert (error.kind, error.code) == (Kind.INVALID, "set-too-large")
    assert client.writes == []


async def test_of_two_writers_one_gets_a_conflict(client: Client, namespace: str) -> None:
    inventory = inventory_in(client, namespace)
    for entries in (many(2), many(30)):
        before = await inventory.read()
        first = await inventory.write(before, entries)
        error = await error_of(inventory.write(before, many(3, "Secret")))
        assert (error.kind, error.code) == (Kind.CONFLICT, "inventory-conflict")
        assert (await inventory.read()).entries == entries == first.entries
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


async def damage(client: Client, namespace: str, how: str) -> None:
    head = await client.get(CONFIG_MAPS, INVENTORY, namespace)
    data = head["data"]
    if how == "an entry is added":
        data["entries"] = data["entries"].replace("[[", '[["","Secret","kube-system",[["x","",""]]],[', 1)
    elif how == "it is empty":
        data.clear()
    elif how == "its entries are not JSON":
        data["entries"] = "nothing"
    elif how == "its claim is changed":
        data["claim"] = '{"holder":"x","epoch":1,"generation":1,"cluster_uid":""}'
    elif how == "it has another owner":
        data["owner"] = "another"
    else:
        data["format"] = "v3"
    await client.replace(CONFIG_MAPS, head, manager="other-client")


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("an entry is added", "inventory-damaged"),
        ("its entries are not JSON", "inventory-damaged"),
        ("its claim is changed", "inventory-damaged"),
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
    await damage(client, namespace, how)
    client.sent.clear()
    calls: list[Awaitable[Any]] = [
        objects.converge([config_map("c")]),
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


@pytest.mark.parametrize("how", ["missing", "replaced"])
async def test_an_inventory_of_format_v1_without_a_chunk_is_damaged(client: Client, namespace: str, how: str) -> None:
    await write_v1(client, namespace, many(2), many(2, "Secret"))
    await client.delete(CONFIG_MAPS, f"{INVENTORY}.0", namespace)
    if how == "replaced":
        other = config_map(f"{INVENTORY}.0", namespace, entries="[]")
        await client.create(CONFIG_MAPS, other, manager="other-client")
    error = await error_of(make_set(client, namespace).delete_all())
    assert (error.kind, error.code) == (Kind.PRECONDITION, "inventory-damaged")


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
