"""Snapshots of live Dapr resources: what sidecars load of them, and how two of them differ."""

from typing import Any

import pytest

from governor.agent.platforms.kubernetes.observation.snapshot import (
    Snapshot,
    changed_refs,
    expectations,
    rewritten_refs,
    snapshot_of,
)
from governor.domain.documents import ResourceRef

STORE = ResourceRef("Component", "shop", "store")


def live(generation: int = 1, *, uid: str = "u1", host: str = "a", kind: str = "Component") -> dict[str, Any]:
    """Return an object as the API server returns it."""
    metadata = {
        "name": "store",
        "namespace": "shop",
        "uid": uid,
        "generation": generation,
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"app": "shop"},
        "managedFields": [{"manager": "kubectl", "time": "2026-01-02T00:00:00Z", "fieldsV1": {"f:spec": {}}}],
    }
    spec = {"type": "state.redis", "version": "v1", "metadata": [{"name": "redisHost", "value": host}]}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def snapshot(*args: Any, **fields: Any) -> Snapshot:
    return snapshot_of([live(*args, **fields)])


def test_a_resource_has_only_what_sidecars_load() -> None:
    found = snapshot(3)[STORE]
    assert found.manifest.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert found.manifest["metadata"] == {"name": "store", "namespace": "shop"}
    assert (found.version, found.written.isoformat()) == (("u1", 3), "2026-01-02T00:00:00+00:00")


@pytest.mark.parametrize(
    ("before", "now", "changed", "rewritten"),
    [
        (snapshot(1), snapshot(1), False, False),
        (snapshot(1), snapshot(2, host="b"), True, False),
        (snapshot(1), snapshot(3, host="b"), True, True),
        (snapshot(1), snapshot(3), True, True),
        (snapshot(1), snapshot(1, uid="u2"), True, True),
        ({}, snapshot(1), True, False),
        ({}, snapshot(2), True, True),
        (snapshot(1), {}, True, False),
    ],
    ids=["same", "written", "twice", "there and back", "re-created", "new", "new and written", "removed"],
)
def test_writes_between_two_snapshots(before: Snapshot, now: Snapshot, *, changed: bool, rewritten: bool) -> None:
    assert changed_refs(before, now) == ({STORE} if changed else set())
    assert set(rewritten_refs(before, now)) == ({STORE} if rewritten else set())


def test_sidecars_must_load_what_changed_and_unload_what_was_removed() -> None:
    [changed] = expectations(snapshot(1), snapshot(2, host="b"))
    [removed] = expectations(snapshot(1), {})
    [same] = expectations(snapshot(1), snapshot(1))
    assert (changed.changed, removed.new, same.changed) == (True, None, False)


def test_a_configuration_of_another_tool_has_no_marker() -> None:
    [found] = expectations({}, snapshot(kind="Configuration"))
    assert found.unmarked
