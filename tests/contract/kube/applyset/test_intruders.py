"""Somebody who may write the inventory, or be faster than we are, makes us neither remove nor own what is not ours."""

import json
from collections.abc import Awaitable, Callable

import pytest

from governor.errors import Kind
from governor.kube.applyset import Entry, Outcome, Removal
from governor.kube.applyset.inventory import Inventory
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.client import Client, Request, Transport
from governor.kube.objects import ApiResource, ObjectRef, ref_of
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    DEFINITIONS,
    INVENTORY,
    LABEL,
    MANAGER,
    NAMESPACES,
    PREFIX,
    SECRETS,
    Interposed,
    config_map,
    custom,
    definition,
    exists,
    kind_of,
    make_set,
    namespace_of,
    outcomes,
    refused,
    removals,
)
from tests.contract.kube.bed import admin_of


async def smuggle(client: Client, namespace: str, *entries: Entry) -> None:
    """Write entries as the set itself does, digests and all."""
    inventory = Inventory(client, Owner(namespace, namespace, INVENTORY), Settings(MANAGER, PREFIX))
    stored = await inventory.read()
    await inventory.write(stored, {**stored.entries, **{entry.ref: entry for entry in entries}})


async def entry_of(client: Client, resource: ApiResource, name: str, namespace: str = "") -> Entry:
    live = await client.get(resource, name, namespace)
    return Entry(ref_of({"apiVersion": resource.api_version, "kind": resource.kind, **live}), live["metadata"]["uid"])


async def test_smuggled_entries_remove_nothing(client: Client, namespace: str) -> None:
    other = f"{namespace}-other"
    await client.create(NAMESPACES, namespace_of(other), manager="somebody")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": other}}
    await client.create(SECRETS, secret, manager="somebody")
    rival = make_set(client, other)
    await rival.apply([config_map("rival")])
    objects = make_set(client, namespace)
    await objects.apply([config_map("a")])
    await smuggle(
        client,
        namespace,
        await entry_of(client, SECRETS, "s", other),
        await entry_of(client, CONFIG_MAPS, "rival", other),
        await entry_of(client, NAMESPACES, other),
        await entry_of(client, NAMESPACES, "kube-system"),
        await entry_of(client, CONFIG_MAPS, INVENTORY, other),
        Entry(ObjectRef("", "ConfigMap", other, "no-uid")),
    )
    report = await objects.prune([config_map("a")])
    assert report.counts() == {Removal.FOREIGN: 5, Removal.ABSENT: 1}
    assert await exists(client, SECRETS, "s", other)
    assert await exists(client, CONFIG_MAPS, "rival", other)
    assert await exists(client, NAMESPACES, other)
    assert await exists(client, NAMESPACES, "kube-system")
    assert len(await rival.inventory()) == 1


async def test_entries_outside_the_allowed_namespaces_are_not_even_looked_at(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = Interposed(transport, admin_of(api))
    other = f"{namespace}-other"
    await client.create(NAMESPACES, namespace_of(other), manager="somebody")
    ours = config_map("x", other)
    ours["metadata"]["labels"] = {LABEL: namespace}  # even if it looks like ours
    await client.create(CONFIG_MAPS, ours, manager="somebody")
    objects = make_set(client, namespace, allowed_namespaces=frozenset({namespace}))
    await objects.apply([config_map("a")])
    smuggled = [await entry_of(client, CONFIG_MAPS, "x", other), await entry_of(client, NAMESPACES, other)]
    await smuggle(client, namespace, *smuggled)
    client.sent.clear()
    report = await objects.prune([config_map("a")])
    assert removals(report) == {"x": "refused", other: "refused"}
    assert all(f"/{other}" not in request.path for request in client.sent)
    assert await exists(client, CONFIG_MAPS, "x", other)


async def test_entries_whose_names_would_lead_elsewhere_are_damage(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    for name, place in (("..", namespace), ("a/../../x", namespace), ("a", "..")):
        await objects.apply([config_map("a")])
        await smuggle(client, namespace, Entry(ObjectRef("", "ConfigMap", place, name)))
        error = await refused(objects.remove_all())
        assert (error.kind, error.code) == (Kind.PRECONDITION, "inventory-damaged")
        await client.delete(CONFIG_MAPS, INVENTORY, namespace)
    assert await exists(client, CONFIG_MAPS, "a", namespace)


class Interloper:
    """Does something of its own just before the first request of a kind."""

    def __init__(self, method: str, path: str, act: Callable[[], Awaitable[object]]) -> None:
        self._method, self._path, self._act = method, path, act
        self.done = False

    async def __call__(self, request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if not self.done and (request.method, request.path) == (self._method, self._path):
            self.done = True
            await self._act()
        return await send(request)


async def test_an_object_that_somebody_makes_in_the_same_moment_is_shared_and_never_removed(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    mine = Interposed(transport, admin_of(api))

    async def make() -> None:
        await client.create(CONFIG_MAPS, config_map("a", namespace, theirs="1"), manager="somebody")

    mine.around = Interloper("PATCH", CONFIG_MAPS.path(namespace, "a"), make)
    objects = make_set(mine, namespace)
    report = await objects.apply([config_map("a", ours="1")])
    assert report.ok
    assert report.results[0].shared
    assert removals(await objects.remove_all()) == {"a": "released"}
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"theirs": "1"}


@pytest.mark.parametrize("dies", [False, True])
async def test_an_object_that_somebody_replaces_in_the_same_moment_is_not_ours(
    api: ControlPlane, client: Client, transport: Transport, namespace: str, dies: bool
) -> None:
    mine = Interposed(transport, admin_of(api))
    objects = make_set(mine, namespace)
    await objects.apply([config_map("a", x="1")])

    async def replace() -> None:
        await client.delete(CONFIG_MAPS, "a", namespace)
        await client.create(CONFIG_MAPS, config_map("a", namespace, theirs="1"), manager="somebody")
        if dies:
            raise ConnectionError("died")

    mine.around = Interloper("PATCH", CONFIG_MAPS.path(namespace, "a"), replace)
    if dies:
        with pytest.raises(ConnectionError):
            await objects.apply([config_map("a", x="2")])
        assert removals(await objects.remove_all()) == {"a": "foreign"}
    else:
        report = await objects.apply([config_map("a", x="2")])
        assert [(result.outcome, result.shared) for result in report.results] == [(Outcome.CHANGED, True)]
        assert removals(await objects.remove_all()) == {"a": "released"}
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"theirs": "1"}


async def test_an_object_replaced_between_look_and_removal_stays(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    mine = Interposed(transport, admin_of(api))
    objects = make_set(mine, namespace)
    await objects.apply([config_map("a", x="1")])

    async def replace() -> None:
        await client.delete(CONFIG_MAPS, "a", namespace)
        await client.create(CONFIG_MAPS, config_map("a", namespace, theirs="1"), manager="somebody")

    mine.around = Interloper("DELETE", CONFIG_MAPS.path(namespace, "a"), replace)
    assert removals(await objects.remove_all()) == {"a": "foreign"}
    assert await exists(client, CONFIG_MAPS, "a", namespace)


async def test_a_take_over_that_somebody_interrupts_begins_anew(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    await client.create(CONFIG_MAPS, config_map("a", namespace, x="1", y="1"), manager="helm")
    taken = Interposed(transport, admin_of(api))
    patches = 0

    async def at_the_second_patch(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        nonlocal patches
        patches += request.method == "PATCH"
        if patches == 2 and request.content_type == "application/json-patch+json":
            await client.patch(CONFIG_MAPS, "a", namespace, {"data": {"theirs": "1"}}, manager="somebody")
        return await send(request)

    taken.around = at_the_second_patch
    report = await make_set(taken, namespace, take_over=frozenset({"helm"})).apply([config_map("a", x="1")])
    assert outcomes(report) == {"a": Outcome.CHANGED}
    live = await client.get(CONFIG_MAPS, "a", namespace)
    assert live["data"] == {"x": "1", "theirs": "1"}
    assert {entry["manager"] for entry in live["metadata"]["managedFields"]} == {MANAGER, "somebody"}


async def test_no_name_reaches_another_object(client: Client, namespace: str) -> None:
    for name in (".", "..", "a/b", "a%2fb", "a\nb", ""):
        error = await refused(make_set(client, namespace).apply([config_map(name)]))
        assert error.kind is Kind.INVALID
    for place in ("..", "a/b", "UPPER", "a b"):
        error = await refused(make_set(client, namespace).apply([config_map("a", place)]))
        assert error.kind is Kind.INVALID
    weird = config_map("a")
    weird["apiVersion"] = "../../v1"
    assert (await refused(make_set(client, namespace).apply([weird]))).kind is Kind.INVALID


async def test_a_label_cannot_be_set_by_a_manifest(client: Client, namespace: str) -> None:
    manifest = config_map("a")
    manifest["metadata"]["labels"] = {LABEL: "another"}
    error = await refused(make_set(client, namespace).apply([manifest]))
    assert "is written by the set itself" in str(error)


async def test_a_definition_whose_kind_is_held_under_another_version_stays(client: Client, namespace: str) -> None:
    group = f"{namespace}.example"
    defined = definition("Thing", group)
    objects = make_set(client, namespace)
    await objects.apply([defined])
    newer = json.loads(json.dumps(defined))
    newer["spec"]["versions"] = [
        {**defined["spec"]["versions"][0], "storage": False},
        {**defined["spec"]["versions"][0], "name": "v2"},
    ]
    await objects.apply([newer])
    theirs = custom("Thing", group, "theirs")
    theirs["metadata"]["namespace"] = namespace
    await client.create(kind_of(defined), theirs, manager="somebody")
    assert removals(await objects.remove_all()) == {f"things.{group}": "held"}
    assert await exists(client, DEFINITIONS, f"things.{group}")


async def test_what_cannot_be_listed_holds_its_namespace(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = Interposed(transport, admin_of(api))
    inner = f"{namespace}-inner"
    objects = make_set(client, namespace)
    await objects.apply([namespace_of(inner)])

    async def broken(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if request.path.endswith(f"/namespaces/{inner}/secrets"):
            request = Request("GET", f"/api/v1/namespaces/{inner}/secrets/x/unknown")
        return await send(request)

    client.around = broken
    report = await objects.remove_all()
    assert removals(report) == {inner: "held"}
    assert "cannot be seen what it holds" in report.results[0].reason
    assert await exists(client, NAMESPACES, inner)
