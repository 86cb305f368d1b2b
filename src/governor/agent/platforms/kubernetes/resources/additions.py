"""Additions and alterations: how a stored resource differs from the applied one. Pure.

Additions are fields that other clients added. Server-side apply leaves the fields of other managers in place, and
sidecars load them all the same: a Component gets scopes, a Configuration denies an API. They are found in the metadata
of an object, which names fields and no values. Alterations are fields that the API server stored with another value
than was applied, because a mutating webhook or the definition of the kind changed them.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from governor.kube.objects import Object
from governor.values.paths import Path, render
from governor.values.trees import Manifest, Tree, same

_FIELD: Final = "f:"
_NOT_LOADED: Final = frozenset({"apiVersion", "kind", "metadata", "status"})
"""Fields that change nothing for a sidecar."""


def additions(live: Object, applied: Manifest, manager: str) -> dict[str, str]:
    """Return the fields that managers other than ``manager`` added, by path, with the name of theirs."""
    return {
        render(path): entry.get("manager") or "another client"
        for entry in _entries(live)
        if entry.get("manager") != manager
        for path in _added(_loaded(entry), applied)
    }


def contains(live: Tree, applied: Tree) -> bool:
    """Return whether a live tree has all that was applied; it may have additions and defaults of the server too."""
    return next(alterations(live, applied), None) is None


def alterations(live: Tree, applied: Tree, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of what was applied and is not in a live tree, or has another value there."""
    if isinstance(applied, dict) and isinstance(live, dict):
        for key, value in applied.items():
            if value is not None:
                yield from alterations(live.get(key), value, (*path, key))
    elif isinstance(applied, (list, tuple)) and isinstance(live, list) and len(live) == len(applied):
        for position, value in enumerate(applied):
            yield from alterations(live[position], value, (*path, position))
    elif not same(live, applied):
        yield path


def last_change(live: Object) -> datetime:
    """Return when any client last changed what sidecars load, by the API server's clock.

    A change that was reverted counts too: a sidecar that started in between has loaded it.
    """
    times = [each["time"] for each in _entries(live) if "time" in each and _loaded(each)]
    return max(map(datetime.fromisoformat, [live["metadata"]["creationTimestamp"], *times]))


def _entries(live: Object) -> Iterator[Mapping[str, Any]]:
    yield from live["metadata"].get("managedFields") or ()


def _loaded(entry: Mapping[str, Any]) -> dict[str, Any]:
    fields: Mapping[str, Any] = entry.get("fieldsV1") or {}
    return {key: inner for key, inner in fields.items() if key.removeprefix(_FIELD) not in _NOT_LOADED}


def _added(fields: Mapping[str, Any], applied: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the topmost fields that the applied manifest does not have; its lists are replaced as a whole."""
    for key, inner in fields.items():
        name = key.removeprefix(_FIELD)
        if name == key or not isinstance(applied, Mapping):
            continue
        if applied.get(name) is None:
            yield (*path, name)
        else:
            yield from _added(inner, applied[name], (*path, name))
