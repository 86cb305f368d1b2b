"""What reconciles a key, and what must not delete its objects, on a real API server."""

import json

import msgspec
import pytest

from governor.kube.client import Client, Request, Transport
from governor.kube.controller import Context, Controller, NamespacedName, OwnedBy
from governor.kube.reflector import Store, View
from governor.process.reconcile.reconciler import Done, Outcome
from testbed.kube.api_faults import ApiRequest
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.applyset.bed import CONFIG_MAPS, NAMESPACES, SECRETS, config_map
from tests.contract.kube.bed import FaultyApi, admin_of
from tests.contract.kube.controller.bed import (
    WITHIN_S,
    Box,
    Boxes,
    boxes,
    event_reasons,
    keep_child,
    operating,
    record_names,
    until_true,
)


async def empty_list(client: Client, namespace: str) -> bytes:
    """Return a list without its objects, from which a watch can start."""
    listed = json.loads(await client.send(Request("GET", CONFIG_MAPS.path(namespace))))
    return json.dumps(listed | {"items": []}).encode()


async def test_the_objects_of_an_unreadable_owner_are_not_deleted_in_this_term_or_the_next(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    user = Boxes(client, namespace)

    async def reported() -> bool:
        return "Unreadable" in await event_reasons(client, "a", namespace)

    async with operating(transport, admin_of(api), namespace, boxes()) as running:
        await user.create("a", size="1")
        await user.has_child("a", "1")
        child = await user.child("a")
        await user.change("a", size="large")
        await until_true(lambda: running.results("boxes", "error") > 0)
        await until(reported, within_s=WITHIN_S)
    async with operating(transport, admin_of(api), namespace, boxes()) as running:
        await until_true(lambda: running.results("boxes", "error") > 0)
        assert await user.child("a") == child
        await user.change("a", size="2")
        await user.has_child("a", "2")


async def test_a_cache_that_lacks_an_existing_owner_deletes_nothing(
    api: ControlPlane, client: Client, transport: Transport, faults: FaultyApi, namespace: str
) -> None:
    """The API server answers the first list of owners with an empty one, as a lagging or broken proxy may."""
    user = Boxes(client, namespace)
    async with operating(transport, admin_of(api), namespace, boxes()):
        await user.create("a", size="1")
        await user.has_child("a", "1")
    child = await user.child("a")

    def is_first_list(request: ApiRequest) -> bool:
        query = request.query
        return query.get("labelSelector") == "box=yes" and "limit" in query and "fieldSelector" not in query

    content = await empty_list(client, namespace)
    faults.answer(200, which=is_first_list, content=content, headers={"Content-Type": "application/json"})
    async with operating(transport, faults.access, namespace, boxes()) as running:
        await until_true(lambda: running.runs("boxes") > 0)
        assert await user.child("a") == child


async def test_an_object_that_no_longer_matches_the_selector_loses_its_objects(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    user = Boxes(client, namespace)
    async with operating(transport, admin_of(api), namespace, boxes()):
        await user.create("a", size="1")
        await user.has_child("a", "1")
        unlabel = {"metadata": {"labels": {"box": None}}}
        await client.patch(CONFIG_MAPS, "a", namespace, unlabel, manager="user")
        await user.has_no_child("a")


async def test_an_owner_reference_reconciles_the_owner(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    runs: list[str] = []
    async with operating(
        transport, admin_of(api), namespace, boxes(record_names(runs)).owns(SECRETS, by=OwnedBy.REFERENCE)
    ) as running:
        await Boxes(client, namespace).create("a")
        await until_true(lambda: running.runs("boxes") > 0)
        before = len(runs)
        owner = await client.get(CONFIG_MAPS, "a", namespace)
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": owner["metadata"]["uid"]}
        metadata = {"name": "s", "namespace": namespace, "ownerReferences": [reference | {"controller": True}]}
        await client.create(SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}, manager="user")
        await until_true(lambda: len(runs) > before)


class SecretData(msgspec.Struct, frozen=True, gc=False):
    password: str = ""


class Secret(View, frozen=True):
    data: SecretData = SecretData()


def users_of(secret: Secret, store: Store[Box]) -> list[NamespacedName]:
    users = store.find("secret", secret.metadata.name)
    return [NamespacedName(each.metadata.namespace, each.metadata.name) for each in users]


async def test_a_mapper_reconciles_the_objects_that_refer_to_another_kind_and_only_by_fields_of_its_view(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    runs: list[str] = []

    controller = boxes(record_names(runs), indexes={"secret": lambda each: [each.data.secret]})
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": namespace}}
    async with operating(transport, admin_of(api), namespace, controller.watches(SECRETS, Secret, users_of)):
        user = Boxes(client, namespace)
        await user.create("a", secret="s")
        await user.create("b", secret="t")
        await until_true(lambda: set(runs) == {"a", "b"})
        await client.create(SECRETS, secret, manager="user")
        await until_true(lambda: runs.count("a") == 2)
        await client.patch(SECRETS, "s", namespace, {"data": {"unread": "eA=="}}, manager="user")
        await client.patch(SECRETS, "s", namespace, {"data": {"password": "eA=="}}, manager="user")
        await until_true(lambda: runs.count("a") == 3)
        assert runs.count("b") == 1


async def test_reconcile_reads_the_watched_objects_by_index_and_a_predicate_rules_out_changes(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    found: list[list[str]] = []

    async def reconcile(context: Context[Box]) -> Outcome:
        with_password = context.store(Secret).find("has_password", True)
        found.append(sorted(each.metadata.name for each in with_password))
        return Done()

    controller = boxes(reconcile).watches(
        SECRETS,
        Secret,
        lambda _, store: [NamespacedName(each.metadata.namespace, each.metadata.name) for each in store.values()],
        predicate=lambda old, new: bool(new.data.password),
        indexes={"has_password": lambda each: [bool(each.data.password)]},
    )
    for name in ("s", "t"):
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}}
        await client.create(SECRETS, secret, manager="user")
    async with operating(transport, admin_of(api), namespace, controller):
        await Boxes(client, namespace).create("a")
        await until_true(lambda: found == [[]])
        await client.patch(SECRETS, "s", namespace, {"data": {"password": "eA=="}}, manager="user")
        await until_true(lambda: found == [[], ["s"]])
        await client.patch(SECRETS, "s", namespace, {"data": {"password": ""}}, manager="user")
        await client.patch(SECRETS, "t", namespace, {"data": {"password": "eA=="}}, manager="user")
        await until_true(lambda: found == [[], ["s"], ["t"]])


def test_a_view_can_be_watched_only_once() -> None:
    controller = boxes().watches(SECRETS, Secret, users_of)
    with pytest.raises(ValueError, match="watches Secret twice"):
        controller.watches(CONFIG_MAPS, Secret, users_of)


async def test_a_predicate_filters_changes_but_never_creations_and_deletions(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    user = Boxes(client, namespace)
    async with operating(
        transport, admin_of(api), namespace, boxes(keep_child, predicate=lambda old, new: int(new.data.size) > 10)
    ):
        await user.create("a", size="1")
        await user.has_child("a", "1")
        await user.change("a", size="2")
        await user.change("a", size="11")
        await user.has_child("a", "11")
        await user.delete("a")
        await user.has_no_child("a")


async def test_a_foreign_object_with_the_name_of_a_child_is_neither_changed_nor_deleted(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    user = Boxes(client, namespace)
    await client.create(CONFIG_MAPS, config_map("a-child", namespace, size="7"), manager="user")
    async with operating(transport, admin_of(api), namespace, boxes()) as running:
        await user.create("a", size="1")
        await until_true(lambda: running.results("boxes", "error") > 0)
        await user.delete("a")
        await until_true(lambda: running.results("boxes", "success") > 0)
        await user.has_child("a", "7")


async def test_the_resync_repairs_objects_that_are_not_watched(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    user = Boxes(client, namespace)
    controller = boxes()
    controller.owned.clear()
    async with operating(transport, admin_of(api), namespace, controller, resync_interval=0.1):
        await user.create("a", size="1")
        await user.has_child("a", "1")
        await user.delete("a-child")
        await user.has_child("a", "1")


async def test_a_cluster_scoped_owner_has_its_inventory_beside_the_operator(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    """Namespaces as owners; they leave by their label, because no controller runs that would finish a deletion."""
    user = Boxes(client, namespace)

    async def reconcile(context: Context[Box]) -> Outcome:
        return (await context.converge([config_map("a-child", namespace, size="1")])).outcome

    def controller() -> Controller[Box]:
        declared = boxes(reconcile, labels=f"box={namespace}")
        declared.kind = NAMESPACES
        return declared

    async def label(value: str | None) -> None:
        change = {"metadata": {"labels": {"box": value}}}
        await client.patch(NAMESPACES, namespace, "", change, manager="user")

    async with operating(transport, admin_of(api), namespace, controller()):
        await label(namespace)
        await user.has_child("a", "1")
        await user.delete("a-child")
        await user.has_child("a", "1")
    await label(None)
    async with operating(transport, admin_of(api), namespace, controller()):
        await user.has_no_child("a")


async def test_a_changed_object_of_a_kind_without_generation_is_repaired(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    user = Boxes(client, namespace)
    async with operating(transport, admin_of(api), namespace, boxes()):
        await user.create("a", size="1")
        await user.has_child("a", "1")
        await user.change("a-child", size="2")
        await user.has_child("a", "1")
