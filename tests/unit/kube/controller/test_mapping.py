"""Which keys an event reconciles, and how owners are found by their inventories."""

from typing import Any

import msgspec
import pytest

from governor.kube.controller.mapping import (
    NamespacedName,
    is_relevant,
    is_watched,
    key_of_inventory,
    keys_by_label,
    keys_by_mapper,
    keys_by_reference,
    owner_id,
    owner_of,
)
from governor.kube.controller.views import Owned, Resource, owned_view
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.kube.reflector import Added, Changed, Event, Metadata, Removed, Store, Unreadable, View

SITES = ApiResource("example.dev", "v1", "Site", "sites", namespaced=True)
CLUSTERS = ApiResource("example.dev", "v1", "Cluster", "clusters", namespaced=False)
LABEL = "example.dev/owner"
KEY = ObjectRef("example.dev", "Site", "ns", "a")
OTHER = ObjectRef("example.dev", "Site", "ns", "b")
REF = ObjectRef("apps", "Deployment", "ns", "d")
IDS = {owner_id("sites", key): key for key in (KEY, OTHER)}


def owned(owner: str = "", generation: int = 1, references: list[Object] | None = None, **status: Any) -> Owned:
    metadata = {"name": "d", "namespace": "ns", "generation": generation, "ownerReferences": references or []}
    labels = {LABEL: owner, "unread": "x"} if owner else {}
    body = {"metadata": metadata | {"labels": labels}} | ({"status": status} if status else {})
    return msgspec.json.decode(msgspec.json.encode(body), type=owned_view(LABEL))


A, B = owned(owner_id("sites", KEY)), owned(owner_id("sites", OTHER))
LOST: Unreadable[Owned] = Unreadable(Metadata("d", "ns"), "why", A)
NEVER_READ: Unreadable[Owned] = Unreadable(Metadata("d", "ns"), "why")


@pytest.mark.parametrize(
    ("event", "keys"),
    [
        (Added(REF, A), {KEY}),
        (Removed(REF, A), {KEY}),
        (Changed(REF, A, B), {KEY, OTHER}),
        (Changed(REF, A, owned()), {KEY}),
        (Added(REF, owned("unknown")), set()),
        (Added(REF, owned()), set()),
        (Changed(REF, A, LOST), {KEY}),
        (Removed(REF, LOST), {KEY}),
        (Added(REF, NEVER_READ), set()),
    ],
)
def test_the_owner_label_before_and_after_an_event_names_the_keys(event: Event[Owned], keys: set[ObjectRef]) -> None:
    assert keys_by_label(event, IDS) == keys


def reference(**changes: Any) -> Object:
    return {"apiVersion": "example.dev/v2", "kind": "Site", "name": "a", "uid": "u", "controller": True} | changes


@pytest.mark.parametrize(
    ("references", "keys"),
    [
        ([reference()], {KEY}),
        ([reference(controller=False)], set()),
        ([reference(kind="Page")], set()),
        ([reference(apiVersion="other.dev/v1")], set()),
        ([reference(controller=False, name="b"), reference()], {KEY}),
    ],
)
def test_the_controller_reference_names_the_key_in_any_version(references: list[Object], keys: set[ObjectRef]) -> None:
    assert keys_by_reference(Added(REF, owned(references=references)), SITES) == keys


def test_the_key_of_a_cluster_scoped_owner_has_no_namespace() -> None:
    event = Added(REF, owned(references=[reference(kind="Cluster")]))
    assert keys_by_reference(event, CLUSTERS) == {ObjectRef("example.dev", "Cluster", "", "a")}


def test_a_mapper_gets_the_object_before_and_after_the_change() -> None:
    store: Store[View] = Store({})

    def mapper(each: Owned, given: Store[View]) -> list[NamespacedName]:
        assert given is store
        return [NamespacedName("ns", "a" if each.metadata.generation == 1 else "b")]

    event = Changed(REF, owned(), owned(generation=2))
    assert keys_by_mapper(event, mapper, SITES, store) == {KEY, OTHER}


def test_an_owned_object_is_equal_until_its_spec_readiness_or_owner_changes() -> None:
    condition = {"type": "Available", "status": "True", "lastUpdateTime": "1", "message": "x"}
    later = condition | {"lastUpdateTime": "2", "message": "y"}
    assert owned(conditions=[condition], replicas=1) == owned(conditions=[later], replicas=1, unread=[1])
    assert owned(conditions=[condition]) != owned(conditions=[condition | {"status": "False"}])
    assert owned(readyReplicas=1) != owned(readyReplicas=2)
    assert owned() != owned(generation=2)
    assert owned("x") != owned("y")
    assert owned(observedGeneration="3", phase={"odd": 1}, conditions=None) == owned(
        observedGeneration="3", phase={"odd": 1}
    )


class Site(Resource, frozen=True, kw_only=True):
    size: int = 0


def site(size: int = 0, generation: int = 1, **status: Any) -> Site:
    metadata = {"name": "a", "uid": "u", "generation": generation}
    return msgspec.convert({"metadata": metadata, "size": size, "status": status}, Site)


UNREADABLE: Unreadable[Site] = Unreadable(Metadata("a"), "why")


@pytest.mark.parametrize(
    ("event", "relevant"),
    [
        (Added(KEY, site()), True),
        (Removed(KEY, site()), True),
        (Changed(KEY, site(1), site(9)), True),
        (Changed(KEY, site(1), site(2)), False),
        (Changed(KEY, site(9), site(9, observedGeneration=1)), False),
        (Changed(KEY, site(9), site(9, 2, observedGeneration=1)), True),
        (Changed(KEY, site(1), UNREADABLE), True),
        (Changed(KEY, UNREADABLE, site(1)), True),
    ],
    ids=["added", "removed", "predicate", "filtered", "status only", "spec and status", "unreadable", "readable"],
)
def test_changes_of_the_status_and_those_that_the_predicate_rejects_are_not_reconciled(
    event: Event[Site], relevant: bool
) -> None:
    assert is_relevant(event, lambda _, new: new.size == 9) is relevant


@pytest.mark.parametrize("resource", [SITES, CLUSTERS])
def test_the_key_of_a_deleted_owner_is_found_by_its_inventory(resource: ApiResource) -> None:
    key = ObjectRef(resource.group, resource.kind, "ns" if resource.namespaced else "", "a.b-c")
    owner = owner_of("sites", key, "operators")
    labels = {"example.dev/inventory": owner.id}
    inventory = {"metadata": {"name": owner.name, "namespace": owner.namespace, "labels": labels}}
    assert key_of_inventory("sites", resource, inventory, "example.dev/inventory") == key
    assert key_of_inventory("other", resource, inventory, "example.dev/inventory") is None
    chunk = {"metadata": inventory["metadata"] | {"name": f"{owner.name}.0123"}}
    assert key_of_inventory("sites", resource, chunk, "example.dev/inventory") is None


@pytest.mark.parametrize(
    ("event", "mapped"),
    [
        (Changed(REF, A, B), False),
        (Added(REF, A), True),
        (Removed(REF, A), True),
        (Changed(REF, A, LOST), True),
        (Changed(REF, LOST, A), True),
    ],
)
def test_the_predicate_of_a_watch_rules_out_readable_changes_only(event: Event[Owned], mapped: bool) -> None:
    assert is_watched(event, lambda _, __: False) is mapped
    assert is_watched(event, lambda _, __: True)
    assert is_watched(event, None)
