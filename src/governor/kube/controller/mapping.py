"""Pure mappings to the keys of a controller: from events of its own kind, of owned and of other kinds.

An apply set's owner id is a digest of the key, so that names of any length fit into a label. It is mapped back by the
ids of all known keys. The key of an owner that was deleted while no watch ran is found by the name of its inventory.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from governor.kube.applyset import Owner
from governor.kube.applyset.settings import is_name
from governor.kube.controller.views import Owned, Resource, readable
from governor.kube.objects import ApiResource, Object, ObjectRef, group_of
from governor.kube.reflector import Added, Changed, Event, Removed, Store, Unreadable, View

V = TypeVar("V", bound=View)
W = TypeVar("W", bound=View)


class NamespacedName(NamedTuple):
    """Namespace and name of an object of a controller's own kind; the namespace of cluster-scoped objects is empty."""

    namespace: str
    name: str


Predicate: TypeAlias = Callable[[V, V], bool]
"""Returns whether to reconcile a change from the first view to the second."""
Mapper: TypeAlias = Callable[[W, Store[V]], Iterable[NamespacedName]]
"""Returns the objects of the controller's own kind that depend on an object of another kind.

The store holds the cached objects of the controller's own kind, with its ``indexes``.
"""


def owner_of(controller: str, key: ObjectRef, default_namespace: str) -> Owner:
    """Return the owner of a key's apply set; its inventory is in the key's namespace, if it has one."""
    return Owner(owner_id(controller, key), key.namespace or default_namespace, _inventory_name(controller, key))


def has_inventory_name(controller: str, key: ObjectRef) -> bool:
    """Return whether the name of the key's inventory is not too long."""
    return is_name(_inventory_name(controller, key))


def _inventory_name(controller: str, key: ObjectRef) -> str:
    return f"{controller}-{key.name}"


def owner_id(controller: str, key: ObjectRef) -> str:
    """Return the value of the owner label on a key's objects."""
    text = "/".join((controller, key.group, key.kind, key.namespace, key.name))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def key_of_inventory(controller: str, resource: ApiResource, inventory: Object, label: str) -> ObjectRef | None:
    """Return the key to which an inventory ConfigMap belongs; None if it belongs to another controller."""
    metadata = inventory["metadata"]
    namespace = metadata.get("namespace", "") if resource.namespaced else ""
    name = metadata["name"].removeprefix(f"{controller}-")
    key = ObjectRef(resource.group, resource.kind, namespace, name)
    return key if (metadata.get("labels") or {}).get(label) == owner_id(controller, key) else None


def is_relevant(event: Event[V], predicate: Predicate[V] | None) -> bool:
    """Return whether an event of the controller's own kind is to be reconciled.

    Creations, deletions, and objects that become readable or unreadable always are.
    """
    if not isinstance(event, Changed):
        return True
    old, new = event.old, event.new
    if isinstance(old, Unreadable) or isinstance(new, Unreadable):
        return True
    return not _is_status_change(old, new) and (predicate is None or predicate(old, new))


def _is_status_change(old: View, new: View) -> bool:
    if not isinstance(old, Resource) or not isinstance(new, Resource):
        return False
    return old.status != new.status and msgspec.structs.replace(new, status=old.status) == old


def keys_by_label(event: Event[Owned], keys_by_id: Mapping[str, ObjectRef]) -> set[ObjectRef]:
    """Return the keys that the owner label of an object names before and after the event."""
    ids = {each.metadata.labels.owner for each in _views(event)}
    return {keys_by_id[each] for each in ids if each in keys_by_id}


def keys_by_reference(event: Event[Owned], resource: ApiResource) -> set[ObjectRef]:
    """Return the keys that the controller owner references of an object name before and after the event."""
    return {
        ObjectRef(resource.group, resource.kind, each.metadata.namespace if resource.namespaced else "", reference.name)
        for each in _views(event)
        for reference in each.metadata.owner_references
        if reference.controller and (group_of(reference.api_version), reference.kind) == (resource.group, resource.kind)
    }


def is_watched(event: Event[W], predicate: Predicate[W] | None) -> bool:
    """Return whether an event of another kind is mapped to keys; only readable changes can be ruled out."""
    if predicate is None or not isinstance(event, Changed):
        return True
    old, new = event.old, event.new
    return isinstance(old, Unreadable) or isinstance(new, Unreadable) or predicate(old, new)


def keys_by_mapper(event: Event[W], mapper: Mapper[W, V], resource: ApiResource, store: Store[V]) -> set[ObjectRef]:
    """Return the keys to which the mapper maps an object before and after the event."""
    return {
        ObjectRef(resource.group, resource.kind, found.namespace, found.name)
        for each in _views(event)
        for found in mapper(each, store)
    }


def _views(event: Event[W]) -> Iterator[W]:
    match event:
        case Added(new=new):
            entries = [new]
        case Changed(old=old, new=new):
            entries = [old, new]
        case Removed(old=old):
            entries = [old]
    for entry in entries:
        view = readable(entry)
        if view is not None:
            yield view
