"""Views of applied objects: what they keep, when they are equal, and what they cost."""

import copy
import tracemalloc
from typing import Any

import msgspec
import pytest

from governor.kube.applyset.entries import seen_in
from governor.kube.objects import ApiResource, Object
from governor.kube.readiness import State, compute_readiness
from governor.kube.reflector.list_watch import ListWatch
from governor.kube.reflector.store import WritableStore
from governor.kube.reflector.views import Unreadable, ViewDecoder
from governor.reconciler.watch.objects import ObjectState, is_metadata_enough, object_view
from governor.values.paths import Path

LABEL = "modules.example/owner"
STATUS = frozenset({"status"})
CONFIG_MAPS = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
PRIORITY_CLASSES = ApiResource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False)
LEVELS = ApiResource(
    "flowcontrol.apiserver.k8s.io",
    "v1",
    "PriorityLevelConfiguration",
    "prioritylevelconfigurations",
    namespaced=False,
    subresources=STATUS,
)
DEPLOYMENTS = ApiResource("apps", "v1", "Deployment", "deployments", namespaced=True, subresources=STATUS)
WIDGETS = ApiResource("example.com", "v1", "Widget", "widgets", namespaced=True, subresources=STATUS)
GADGETS = ApiResource("example.com", "v1", "Gadget", "gadgets", namespaced=True)
KINDS = (CONFIG_MAPS, PRIORITY_CLASSES, LEVELS, DEPLOYMENTS, WIDGETS, GADGETS)
OBJECTS = 7_000


def live(resource: ApiResource, name: str = "a", *, spec: Any = None, status: Any = None, **metadata: Any) -> Object:
    defaults: Object = {
        "name": name,
        "uid": f"7f8a2f0e-0000-4000-8000-{name:0>12}",
        "resourceVersion": "41",
        "labels": {LABEL: "dapr", "app": "x"},
        "annotations": {"b": "2", "a": "1"},
        "managedFields": [{"manager": "governor", "fieldsV1": {"f:spec": {"f:replicas": {}}}}] * 3,
    }
    place = {"namespace": "module-system"} if resource.namespaced else {}
    counted = {} if resource is CONFIG_MAPS else {"generation": 3}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": defaults | place | counted | metadata,
        "spec": spec or {},
        "status": status or {},
    }


def decoded(resource: ApiResource, found: Object) -> ObjectState:
    """Decode an object as one of a list, without apiVersion and kind."""
    item = {key: value for key, value in found.items() if key not in {"apiVersion", "kind"}}
    entry = ViewDecoder(object_view(resource, LABEL)).decode_object(msgspec.Raw(msgspec.json.encode(item)))
    assert not isinstance(entry, Unreadable), entry
    return entry


@pytest.mark.parametrize("resource", KINDS, ids=lambda each: each.kind)
@pytest.mark.parametrize("ignored", [(), (("spec", "replicas"), ("spec", "b"))], ids=["all fields", "some ignored"])
@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"labels": {LABEL: "dapr"}, "annotations": {}},
        {"finalizers": ["example.com/x"], "ownerReferences": [{"uid": "1", "name": "é", "kind": "X"}]},
        {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/x"]},
    ],
    ids=["usual", "no annotations", "owned", "terminating"],
)
def test_a_state_equals_that_of_the_whole_object(
    resource: ApiResource, metadata: Object, ignored: tuple[Path, ...]
) -> None:
    status = {} if is_metadata_enough(resource) else {"observedGeneration": 3, "replicas": 1}
    found = live(resource, status=status, **metadata)
    state = decoded(resource, found)
    assert state.seen(ignored) == seen_in(found, resource, ignored)
    assert state.readiness == compute_readiness(found)
    assert (state.uid, state.resource_version) == (found["metadata"]["uid"], "41")
    assert (state.generation, state.owner) == (found["metadata"].get("generation", 0), "dapr")
    assert state.is_terminating is ("deletionTimestamp" in metadata)


def test_spec_and_status_are_not_kept() -> None:
    found = live(DEPLOYMENTS, spec={"replicas": 2}, status={"observedGeneration": 3})
    state = decoded(DEPLOYMENTS, found)
    assert state.readiness.state is State.PROGRESSING
    kept = msgspec.to_builtins(state)
    assert kept["spec"] is None
    assert kept["status"] == msgspec.to_builtins(state.readiness)
    assert kept["metadata"].keys() & {"labels", "annotations"} == {"labels", "annotations"}
    assert (kept["metadata"]["labels"], kept["metadata"]["ownerReferences"]) == ("dapr", None)


def test_only_kinds_that_are_always_ready_are_read_by_their_metadata() -> None:
    assert [each.kind for each in KINDS if is_metadata_enough(each)] == [
        "ConfigMap",
        "PriorityClass",
        "PriorityLevelConfiguration",
    ]
    assert "spec" not in object_view(WIDGETS, LABEL).__struct_fields__


def test_a_field_of_the_name_of_a_result_is_not_read() -> None:
    found = live(WIDGETS, status={"conditions": [{"type": "Ready", "status": "False"}]})
    found |= {"computed": "x", "readiness": {"state": "ready"}}
    found["metadata"] |= {"owner": "x", "digest": "x"}
    state = decoded(WIDGETS, found)
    assert (state.owner, state.readiness.state) == ("dapr", State.PROGRESSING)
    assert state.seen() == seen_in(found, WIDGETS)


AVAILABLE: Object = {
    "observedGeneration": 3,
    "replicas": 2,
    "updatedReplicas": 2,
    "availableReplicas": 2,
    "conditions": [{"type": "Available", "status": "True"}],
}


@pytest.mark.parametrize(
    ("resource", "change", "is_equal"),
    [
        (CONFIG_MAPS, {"metadata": {"resourceVersion": "42"}}, False),
        (PRIORITY_CLASSES, {"metadata": {"resourceVersion": "42"}}, False),
        (GADGETS, {"metadata": {"resourceVersion": "42"}}, False),
        (LEVELS, {"metadata": {"resourceVersion": "42"}}, True),
        (DEPLOYMENTS, {"metadata": {"resourceVersion": "42"}}, True),
        (DEPLOYMENTS, {"metadata": {"generation": 4}, "status": AVAILABLE | {"observedGeneration": 4}}, False),
        (DEPLOYMENTS, {"metadata": {"annotations": {"a": "changed"}}}, False),
        (DEPLOYMENTS, {"metadata": {"labels": {LABEL: "redis"}}}, False),
        (DEPLOYMENTS, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, False),
        (DEPLOYMENTS, {"status": AVAILABLE | {"conditions": [], "readyReplicas": 2}}, True),
        (DEPLOYMENTS, {"status": AVAILABLE | {"availableReplicas": 1}}, False),
    ],
)
def test_a_state_changes_with_its_content_and_readiness(resource: ApiResource, change: Object, is_equal: bool) -> None:
    found = live(resource, spec={"replicas": 2}, status=AVAILABLE)
    changed = copy.deepcopy(found)
    for part, fields in change.items():
        changed[part] = (changed[part] | fields) if part == "metadata" else fields
    assert (decoded(resource, found) == decoded(resource, changed)) is is_equal


def test_the_message_of_a_ready_object_is_no_change() -> None:
    def widget(status: str, message: str) -> ObjectState:
        return decoded(
            WIDGETS, live(WIDGETS, status={"conditions": [{"type": "Ready", "status": status, "message": message}]})
        )

    assert widget("True", "checked at 10:00") == widget("True", "checked at 10:01")
    assert widget("False", "1 of 3") != widget("False", "2 of 3")


def test_an_object_that_is_nested_deeply_has_a_state() -> None:
    found = live(DEPLOYMENTS, spec={"replicas": 2}, status=AVAILABLE)
    item = msgspec.json.encode(found).replace(b'"replicas":2', b'"replicas":2,"x":' + b"[" * 5000 + b"]" * 5000, 1)
    entry = ViewDecoder(object_view(DEPLOYMENTS, LABEL)).decode_object(msgspec.Raw(item))
    assert not isinstance(entry, Unreadable)
    assert entry.readiness.state is State.READY


def test_seven_thousand_objects_take_a_few_mebibytes() -> None:
    items = {
        CONFIG_MAPS: [live(CONFIG_MAPS, f"module-{number}") for number in range(OBJECTS - 1000)],
        DEPLOYMENTS: [
            live(DEPLOYMENTS, f"module-{number}", spec={"replicas": 2}, status=AVAILABLE) for number in range(1000)
        ],
    }
    pages = {
        resource: msgspec.json.encode(
            {"kind": f"{resource.kind}List", "metadata": {"resourceVersion": "50"}, "items": found}
        )
        for resource, found in items.items()
    }
    del items
    stores = {resource: WritableStore[ObjectState]({}) for resource in pages}
    tracemalloc.start()
    try:
        for resource, page in pages.items():
            ListWatch(resource, object_view(resource, LABEL), stores[resource], lambda _: None).receive_page(page)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(map(len, stores.values())) == OBJECTS
    assert size < 5 * 1024 * 1024, size
