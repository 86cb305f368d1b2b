"""The inventory in the cluster: written at one version only, in parts if it is long, refused if it is not ours."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from governor.errors import GovernorError, Kind
from governor.kube.applyset.entries import Entry, entries_of
from governor.kube.applyset.inventory import Inventory, Stored
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.client import Client, Request, Transport
from governor.kube.objects import Object, ObjectRef
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    INVENTORY,
    MANAGER,
    PREFIX,
    Interposed,
    config_map,
    exists,
    make_set,
    refused,
    removals,
)
from tests.contract.kube.bed import admin_of

DIGEST = "sha256:" + "ab" * 32


def inventory_in(client: Client, namespace: str) -> Inventory:
    return Inventory(client, Owner(namespace, namespace, INVENTORY), Settings(MANAGER, PREFIX))


def many(count: int, kind: str = "ConfigMap", uid: str = "") -> dict[ObjectRef, Entry]:
    return entries_of(
        Entry(ObjectRef("", kind, "some-namespace", f"object-with-quite-a-long-name-{number}"), uid, DIGEST)
        for number in range(count)
    )


async def parts(client: Client, namespace: str) -> list[Object]:
    found = client.list(CONFIG_MAPS, namespace, labels=f"{PREFIX}/inventory={namespace}")
    return [each async for each in found]


async def test_ten_thousand_objects_fit(client: Client, namespace: str) -> None:
    inventory = inventory_in(client, namespace)
    entries = many(10_000, uid="0123456789-0123456789-0123456789-012")
    stored = await inventory.write(Stored(), entries)
    assert (await inventory.read()).entries == entries
    maps = await parts(client, namespace)
    assert len(maps) == len(stored.chunks) + 1 > 2
    assert max(sum(map(len, each["data"].values())) for each in maps) < 1024 * 1024
    await inventory.delete(stored)
    assert await parts(client, namespace) == []


async def test_parts_that_did_not_change_are_not_written_again(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = Interposed(transport, admin_of(api))
    inventory = inventory_in(client, namespace)
    entries = many(10_000)
    stored = await inventory.write(Stored(), entries)
    last = max(entries)
    client.sent.clear()
    changed = await inventory.write(stored, entries | {last: Entry(last, "u", DIGEST)})
    assert [each.split()[0] for each in client.writes] == ["POST", "PUT", "DELETE"]
    assert len(await parts(client, namespace)) == len(changed.chunks) + 1
    client.sent.clear()
    assert await inventory.write(changed, dict(changed.entries)) == changed
    assert client.sent == []


async def test_of_two_writers_one_is_told(client: Client, namespace: str) -> None:
    inventory = inventory_in(client, namespace)
    for entries in (many(2), many(10_000)):
        before = await inventory.read()
        first = await inventory.write(before, entries)
        error = await refused(inventory.write(before, many(3, "Secret")))
        assert (error.kind, error.code) == (Kind.CONFLICT, "inventory-conflict")
        assert (await inventory.read()).entries == entries == first.entries
        assert len(await parts(client, namespace)) <= 2 * (len(first.chunks) + 1)
    error = await refused(inventory.delete(before))
    assert error.kind is Kind.CONFLICT
    assert (await inventory.read()).entries == entries


async def test_two_applies_at_once_lose_no_entry(client: Client, namespace: str) -> None:
    sets = [make_set(client, namespace) for _ in range(6)]
    wanted = [[config_map(f"c{number}")] for number in range(len(sets))]
    conflicts: list[int] = []

    async def insist(number: int) -> None:
        while True:
            try:
                report = await sets[number].apply(wanted[number])
            except GovernorError as error:
                if error.kind is not Kind.CONFLICT:
                    raise
                conflicts.append(number)
            else:
                assert report.ok
                return

    async with asyncio.TaskGroup() as group:
        for number in range(len(sets)):
            group.create_task(insist(number))
    entries = await sets[0].inventory()
    assert {ref.name for ref in entries} == {f"c{number}" for number in range(len(sets))}
    assert all(entry.uid for entry in entries.values())
    assert conflicts


async def test_what_a_crashed_writer_left_is_swept_and_what_another_is_about_to_use_is_not(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = Interposed(transport, admin_of(api))
    inventory = inventory_in(client, namespace)
    stored = await inventory.write(Stored(), many(10_000))

    async def die_before_the_head(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if request.method == "PUT":
            raise ConnectionError("died")
        return await send(request)

    client.around = die_before_the_head
    with pytest.raises(ConnectionError):
        await inventory.write(stored, many(10_000, "Secret"))
    client.around = None
    assert len(await parts(client, namespace)) == 1 + 2 * len(stored.chunks)

    # Another writer begins from the state that the first is just about to leave behind.
    second = await inventory.write(stored, many(10_000, "Service"))
    assert len(await parts(client, namespace)) == 1 + len(second.chunks)
    client.around = die_before_the_head
    with pytest.raises(ConnectionError):
        await inventory.write(second, many(10_000, "Pod"))
    client.around = None
    await inventory._sweep(second)  # late, while those parts could still be named by a head
    assert len(await parts(client, namespace)) == 1 + 2 * len(second.chunks)


async def damage(client: Client, namespace: str, how: str) -> None:
    head = await client.get(CONFIG_MAPS, INVENTORY, namespace)
    data = head["data"]
    chunk = json.loads(data["chunks"])[0][0]
    if how == "an entry is added by hand":
        data["entries"] = data["entries"].replace("[[", '[["","Secret","kube-system",[["x","",""]]],[', 1)
    elif how == "it is emptied":
        data.clear()
    elif how == "it is text":
        data["entries"] = "nothing"
    elif how == "a part is missing":
        await client.delete(CONFIG_MAPS, chunk, namespace)
        return
    elif how == "a part is another":
        await client.delete(CONFIG_MAPS, chunk, namespace)
        await client.create(CONFIG_MAPS, config_map(chunk, namespace, entries="[]"), manager="somebody")
        return
    elif how == "another owner's":
        data["owner"] = "another"
    else:
        data["format"] = "v2"
    await client.replace(CONFIG_MAPS, head, manager="somebody")


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("an entry is added by hand", "inventory-damaged"),
        ("it is text", "inventory-damaged"),
        ("a part is missing", "inventory-damaged"),
        ("a part is another", "inventory-damaged"),
        ("it is emptied", "inventory-foreign"),
        ("another owner's", "inventory-foreign"),
        ("a later format", "inventory-foreign"),
    ],
)
async def test_a_damaged_or_foreign_inventory_stops_everything(
    api: ControlPlane, transport: Transport, namespace: str, how: str, code: str
) -> None:
    client = Interposed(transport, admin_of(api))
    objects = make_set(client, namespace)
    await objects.apply([config_map("a"), config_map("b")])
    inventory = inventory_in(client, namespace)
    stored = await inventory.read()
    await inventory.write(stored, {**many(10_000), **stored.entries})
    await damage(client, namespace, how)
    client.sent.clear()
    acts: list[Awaitable[Any]] = [
        objects.apply([config_map("c")]),
        objects.prune([config_map("a")]),
        objects.remove_all(),
        objects.plan([]),
        objects.forget(),
    ]
    for act in acts:
        error = await refused(act)
        assert (error.kind, error.code) == (Kind.PRECONDITION, code)
        assert f"ConfigMap {namespace}/{INVENTORY}" in error.message
    assert client.writes == []
    assert await exists(client, CONFIG_MAPS, "b", namespace)


async def test_a_config_map_of_somebody_else_is_not_taken_for_an_inventory(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map(INVENTORY, namespace, theirs="1"), manager="somebody")
    error = await refused(make_set(client, namespace).apply([config_map("a")]))
    assert error.code == "inventory-foreign"
    assert (await client.get(CONFIG_MAPS, INVENTORY, namespace))["data"] == {"theirs": "1"}
    assert not await exists(client, CONFIG_MAPS, "a", namespace)


async def test_after_a_lost_inventory_the_next_apply_begins_a_new_one(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await objects.apply([config_map("a"), config_map("b")])
    await client.delete(CONFIG_MAPS, INVENTORY, namespace)
    assert (await objects.apply([config_map("a")])).ok
    assert removals(await objects.remove_all()) == {"a": "removed"}
    assert await exists(client, CONFIG_MAPS, "b", namespace)


async def test_an_inventory_needs_its_namespace(client: Client, namespace: str) -> None:
    objects = make_set(client, f"{namespace}-absent", owner=namespace)
    error = await refused(objects.apply([config_map("a", namespace)]))
    assert error.kind is Kind.NOT_FOUND
    assert f"{namespace}-absent" in error.message
    assert not await exists(client, CONFIG_MAPS, "a", namespace)
