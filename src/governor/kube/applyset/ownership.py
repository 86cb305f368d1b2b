"""Ownership of live objects: the owner label of the set and the field managers in ``managedFields``.

Only the set named by the owner label may prune an object. An object that existed before does not get the label and is
shared, unless one of its field managers is adopted. Fields written through a subresource such as ``status`` are never
adopted. Everything here is pure; ``apply`` sends the changes.
"""

import json
from collections.abc import Collection, Iterator
from typing import Any, Final, TypeAlias

from governor.kube.applyset.settings import Owner, Settings
from governor.kube.objects import Object
from governor.values.paths import Item, Path, Step

APPLY: Final = "Apply"

_Fields: TypeAlias = dict[str, Any]


def owner_of(live: Object, settings: Settings) -> str:
    """Return the owning apply set's id, or ``""``."""
    return str((live["metadata"].get("labels") or {}).get(settings.owner_label, ""))


def will_own(live: Object | None, owner: Owner, settings: Settings) -> bool:
    """Return whether the set owns the object once it is applied: already, because it is new, or by adoption."""
    if live is None or owner_of(live, settings) == owner.id:
        return True
    return not owner_of(live, settings) and bool(managers_of(live) & settings.adopted_managers)


def with_owner_label(manifest: Object, owner: Owner, settings: Settings) -> Object:
    """Return the manifest with the owner label."""
    metadata = manifest["metadata"]
    labels = {**(metadata.get("labels") or {}), settings.owner_label: owner.id}
    return {**manifest, "metadata": {**metadata, "labels": labels}}


def managers_of(live: Object) -> frozenset[str]:
    """Return all field managers of the object itself."""
    return frozenset(entry["manager"] for entry in _entries(live))


def has_applied(live: Object, manager: str) -> bool:
    """Return whether the manager owns fields by apply."""
    return any(entry["manager"] == manager and entry["operation"] == APPLY for entry in _entries(live))


def applied_fields(live: Object, manager: str) -> _Fields:
    """Return the ``fieldsV1`` that the manager applied."""
    for entry in _entries(live):
        if entry["manager"] == manager and entry["operation"] == APPLY:
            fields: _Fields = entry.get("fieldsV1", {})
            return fields
    return {}


def adopt_fields(live: Object, adopted: Collection[str], manager: str) -> list[Object] | None:
    """Return ``managedFields`` with the adopted managers' fields moved to ``manager``; None if they own none."""
    entries: list[Object] = live["metadata"].get("managedFields", [])
    sources = [entry for entry in _entries(live) if entry["manager"] in adopted and entry["manager"] != manager]
    if not sources:
        return None
    own = [entry for entry in _entries(live) if entry["manager"] == manager and entry["operation"] == APPLY]
    fields: _Fields = {}
    for entry in [*own, *sources]:
        fields = _merge(fields, entry.get("fieldsV1", {}))
    first = (own or sources)[0]
    merged = {**first, "manager": manager, "operation": APPLY, "fieldsV1": fields}
    return [merged, *(entry for entry in entries if not any(entry is replaced for replaced in (*own, *sources)))]


def other_managers(live: Object, path: Path, manager: str) -> tuple[str, ...]:
    """Return the managers other than ``manager`` of the field at a path, its parents or children, latest first.

    Subresources are included: an autoscaler sets ``spec.replicas`` through one.
    """
    entries = live["metadata"].get("managedFields", ())
    found = [entry for entry in entries if entry["manager"] != manager and _covers(entry.get("fieldsV1", {}), path)]
    found.sort(key=lambda entry: str(entry.get("time", "")), reverse=True)
    return tuple(dict.fromkeys(entry["manager"] for entry in found))


def _entries(live: Object) -> Iterator[Object]:
    for entry in live["metadata"].get("managedFields", ()):
        if not entry.get("subresource"):
            yield entry


def _merge(left: _Fields, right: _Fields) -> _Fields:
    both = {key: _merge(left[key], right[key]) for key in left.keys() & right.keys()}
    return {**left, **right, **both}


def _covers(fields: _Fields, path: Path) -> bool:
    for step in path:
        children = {key: child for key, child in fields.items() if key != "."}
        if not children:  # a leaf: its manager owns everything below it
            return True
        key = _key(children, step)
        if key is None:
            return False
        fields = children[key]
    return True


def _key(fields: _Fields, step: Step) -> str | None:
    if isinstance(step, str):
        return f"f:{step}" if f"f:{step}" in fields else None
    if isinstance(step, Item):
        return next((key for key in fields if key.startswith("k:") and _has_name(key, step.name)), None)
    return f"i:{step}" if f"i:{step}" in fields else None


def _has_name(key: str, name: str) -> bool:
    try:
        return bool(json.loads(key[2:]).get("name") == name)
    except ValueError:
        return False
