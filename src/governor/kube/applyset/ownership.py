"""Whose an object is: the label on it that lets its owner's set, and no other, remove it.

An object that was there before is somebody else's and does not get the label, unless a manager that is to be taken over
has fields of it: then it is applied as a shared one.
"""

import json
from collections.abc import Collection, Iterator
from typing import Any, Final, TypeAlias

from governor.kube.applyset.settings import Owner, Settings
from governor.kube.objects import Object
from governor.values.paths import Item, Path, Step

APPLY: Final = "Apply"

_Fields: TypeAlias = dict[str, Any]


def managers_of(live: Object) -> frozenset[str]:
    """All who manage fields of the object itself."""
    return frozenset(entry["manager"] for entry in _entries(live))


def applies(live: Object, manager: str) -> bool:
    """Whether this manager has applied fields that it still manages."""
    return any(entry["manager"] == manager and entry["operation"] == APPLY for entry in _entries(live))


def fields_of(live: Object, manager: str) -> _Fields:
    """What a manager has applied, as the server writes it."""
    for entry in _entries(live):
        if entry["manager"] == manager and entry["operation"] == APPLY:
            fields: _Fields = entry.get("fieldsV1", {})
            return fields
    return {}


def moved(live: Object, taken: Collection[str], manager: str) -> list[Object] | None:
    """The ``managedFields`` after the fields of others have moved to a manager; None if those have none."""
    entries: list[Object] = live["metadata"].get("managedFields", [])
    sources = [entry for entry in _entries(live) if entry["manager"] in taken and entry["manager"] != manager]
    if not sources:
        return None
    own = [entry for entry in _entries(live) if entry["manager"] == manager and entry["operation"] == APPLY]
    fields: _Fields = {}
    for entry in [*own, *sources]:
        fields = _united(fields, entry.get("fieldsV1", {}))
    first = (own or sources)[0]
    ours = {**first, "manager": manager, "operation": APPLY, "fieldsV1": fields}
    return [ours, *(entry for entry in entries if not any(entry is gone for gone in (*own, *sources)))]


def holders(live: Object, path: Path, besides: str) -> tuple[str, ...]:
    """Who else manages the field at a path, something in it, or the whole that it is a part of; the latest first.

    Also through a subresource: so an autoscaler sets ``spec.replicas``.
    """
    entries = live["metadata"].get("managedFields", ())
    found = [entry for entry in entries if entry["manager"] != besides and _covers(entry.get("fieldsV1", {}), path)]
    found.sort(key=lambda entry: str(entry.get("time", "")), reverse=True)
    return tuple(dict.fromkeys(entry["manager"] for entry in found))


def _entries(live: Object) -> Iterator[Object]:
    for entry in live["metadata"].get("managedFields", ()):
        if not entry.get("subresource"):
            yield entry


def _united(left: _Fields, right: _Fields) -> _Fields:
    shared = {key: _united(left[key], right[key]) for key in left.keys() & right.keys()}
    return {**left, **right, **shared}


def _covers(fields: _Fields, path: Path) -> bool:
    for step in path:
        below = {key: child for key, child in fields.items() if key != "."}
        if not below:  # a leaf: whatever is in it belongs to its manager
            return True
        key = _key(below, step)
        if key is None:
            return False
        fields = below[key]
    return True


def _key(fields: _Fields, step: Step) -> str | None:
    if isinstance(step, str):
        return f"f:{step}" if f"f:{step}" in fields else None
    if isinstance(step, Item):
        return next((key for key in fields if key.startswith("k:") and _named(key, step.name)), None)
    return f"i:{step}" if f"i:{step}" in fields else None


def _named(key: str, name: str) -> bool:
    try:
        return bool(json.loads(key[2:]).get("name") == name)
    except ValueError:
        return False


def owner_of(live: Object, settings: Settings) -> str:
    """Whose it is; empty if no set's."""
    return str((live["metadata"].get("labels") or {}).get(settings.owner_label, ""))


def becomes_ours(live: Object | None, owner: Owner, settings: Settings) -> bool:
    """Whether an object will belong to the set once it is applied: it does already, is new, or is taken over."""
    if live is None or owner_of(live, settings) == owner.id:
        return True
    return not owner_of(live, settings) and bool(managers_of(live) & settings.take_over)


def marked(manifest: Object, owner: Owner, settings: Settings) -> Object:
    """The manifest with the label."""
    metadata = manifest["metadata"]
    labels = {**(metadata.get("labels") or {}), settings.owner_label: owner.id}
    return {**manifest, "metadata": {**metadata, "labels": labels}}
