"""Field managers of live objects, and adoption of their fields."""

from typing import Any

import pytest

from governor.kube.applyset.live import (
    adopt_fields,
    applied_fields,
    has_applied,
    managers_of,
    managers_to_adopt,
    other_managers,
    will_own,
    without_released_fields,
)
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.objects import Object
from governor.values.paths import parse


def entry(manager: str, operation: str, fields: dict[str, Any], time: str = "1", subresource: str = "") -> Object:
    fields_entry = {"manager": manager, "operation": operation, "apiVersion": "v1", "time": time, "fieldsV1": fields}
    return fields_entry | ({"subresource": subresource} if subresource else {})


def live(*entries: Object) -> Object:
    return {"metadata": {"managedFields": list(entries)}}


KUBECTL = entry("kubectl", "Update", {"f:data": {".": {}, "f:a": {}}})
HELM = entry("helm", "Update", {"f:data": {"f:b": {}}})
OURS = entry("ours", "Apply", {"f:data": {"f:c": {}}})
OTHER = entry("other", "Update", {"f:data": {"f:d": {}}})
STATUS = entry("helm", "Update", {"f:status": {}}, subresource="status")


def test_fields_of_adopted_managers_are_merged_and_others_stay() -> None:
    fields = adopt_fields(live(KUBECTL, HELM, OURS, OTHER, STATUS), {"kubectl", "helm"}, "ours")
    merged: dict[str, Any] = {"f:data": {".": {}, "f:a": {}, "f:b": {}, "f:c": {}}}
    assert fields == [OURS | {"fieldsV1": merged}, OTHER, STATUS]


def test_without_an_applied_entry_the_adopted_one_is_converted() -> None:
    fields = adopt_fields(live(KUBECTL, OTHER), {"kubectl"}, "ours")
    assert fields == [KUBECTL | {"manager": "ours", "operation": "Apply"}, OTHER]


def test_an_update_entry_does_not_count_as_applied() -> None:
    own = entry("ours", "Update", {"f:data": {"f:x": {}}})
    fields = adopt_fields(live(own, KUBECTL), {"kubectl", "ours"}, "ours")
    assert fields == [KUBECTL | {"manager": "ours", "operation": "Apply"}, own]
    assert not has_applied(live(own), "ours")


@pytest.mark.parametrize("existing", [live(), live(OURS, OTHER), live(STATUS), {"metadata": {}}])
def test_nothing_is_adopted_if_no_adopted_manager_has_fields(existing: Object) -> None:
    assert adopt_fields(existing, {"kubectl", "helm"}, "ours") is None


def test_subresource_managers_are_not_managers_of_the_object() -> None:
    assert managers_of(live(KUBECTL, STATUS, OURS)) == {"kubectl", "ours"}
    assert has_applied(live(OURS), "ours")
    assert not has_applied(live(KUBECTL), "kubectl")
    assert applied_fields(live(KUBECTL, OURS), "ours") == OURS["fieldsV1"]
    assert applied_fields(live(KUBECTL), "ours") == {}


SPEC = {
    "f:spec": {
        "f:replicas": {},
        "f:args": {},
        "f:containers": {'k:{"name":"main"}': {".": {}, "f:name": {}, "f:image": {}}},
        "f:ports": {'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:port": {}}},
    },
    "f:metadata": {"f:annotations": {"f:example.com/a": {}}},
}


@pytest.mark.parametrize(
    ("path", "managed"),
    [
        ("spec.replicas", True),
        ("spec.containers[main].image", True),
        ("spec.containers[main]", True),
        ("spec.containers", True),
        ("spec.args[0]", True),
        ('metadata.annotations["example.com/a"]', True),
        ("spec.containers[side].image", False),
        ("spec.containers[main].args", False),
        ("spec.minReadySeconds", False),
        ("metadata.labels", False),
        ("spec.ports[0]", False),
    ],
)
def test_other_managers_include_those_of_parents_and_children(path: str, managed: bool) -> None:
    found = other_managers(live(entry("them", "Update", SPEC)), parse(path), "ours")
    assert found == (("them",) if managed else ())


def test_the_latest_manager_comes_first_and_our_own_is_excluded() -> None:
    fields: dict[str, Any] = {"f:data": {"f:a": {}}}
    entries = [
        entry("old", "Update", fields, "2026-01-01T00:00:00Z"),
        entry("ours", "Apply", fields, "2026-01-03T00:00:00Z"),
        entry("scaler", "Update", fields, "2026-01-02T00:00:00Z", subresource="scale"),
        entry("old", "Apply", fields, "2026-01-01T00:00:00Z"),
    ]
    assert other_managers(live(*entries), parse("data.a"), "ours") == ("scaler", "old")


LABEL = "x.example/owner"
LABELLED = entry("theirs", "Apply", {"f:metadata": {"f:labels": {f"f:{LABEL}": {}}}})


@pytest.mark.parametrize(
    ("owner", "owned", "adopted"),
    [
        ("gone", True, {"helm", "theirs"}),
        ("other", False, {"helm"}),
        ("me", True, {"helm"}),
        ("", True, {"helm"}),  # by the adopted manager
    ],
)
def test_an_object_of_an_inherited_owner_is_taken_over_with_the_fields_of_the_manager_of_its_label(
    owner: str, owned: bool, adopted: set[str]
) -> None:
    settings = Settings(
        "ours", "x.example", adopted_managers=frozenset({"helm"}), inherited_owners=frozenset({"gone", ""})
    )
    existing = live(HELM, OTHER, LABELLED)
    existing["metadata"]["labels"] = {LABEL: owner} if owner else {}
    assert will_own(existing, Owner("me", "home", "inventory"), settings) is owned
    assert managers_to_adopt(existing, settings) == adopted


def test_an_object_without_owner_is_not_inherited() -> None:
    settings = Settings("ours", "x.example", inherited_owners=frozenset({""}))
    assert not will_own(live(OTHER), Owner("me", "home", "inventory"), settings)


def settings(*marks: dict[str, str]) -> Settings:
    return Settings("ours", "example.dev", adopted_managers=frozenset({"helm"}), adopted_marks=marks)


@pytest.mark.parametrize(
    ("metadata", "kind", "adopted"),
    [
        ({"annotations": {"release": "a", "place": "x"}}, "ConfigMap", {"helm"}),
        ({"labels": {"instance": "a:1"}}, "ConfigMap", {"helm"}),
        ({"annotations": {"release": "a"}}, "ConfigMap", set()),
        ({"annotations": {"release": "b", "place": "x"}}, "ConfigMap", set()),
        ({}, "ConfigMap", set()),
        ({}, "CustomResourceDefinition", {"helm"}),
        ({"labels": {"example.dev/owner": "mine"}}, "ConfigMap", {"helm"}),
    ],
)
def test_only_objects_with_the_marks_of_the_former_owner_are_adopted(
    metadata: Object, kind: str, adopted: set[str]
) -> None:
    group = "apiextensions.k8s.io/v1" if kind == "CustomResourceDefinition" else "v1"
    found = {"apiVersion": group, "kind": kind, "metadata": {"name": "a", "managedFields": [HELM], **metadata}}
    given = settings({"release": "a", "place": "x"}, {"instance": "a:*"})
    assert managers_to_adopt(found, given) == adopted
    assert will_own(found, Owner("mine", "default", "i"), given) is bool(adopted)


def container(name: str, *fields: str) -> tuple[str, dict[str, Any]]:
    return f'k:{{"name":"{name}"}}', {".": {}, "f:name": {}, **{f"f:{each}": {} for each in fields}}


def test_an_adoption_removes_what_no_other_manager_has() -> None:
    theirs = {
        "f:data": {".": {}, "f:kept": {}, "f:gone": {}, "f:shared": {}},
        "f:spec": {
            "f:containers": dict((container("a", "image", "tty"), container("b", "image"), container("c", "image"))),
            "f:atomic": {},
            "f:finalizers": {'v:"x"': {}, 'v:"y"': {}},
            "f:unset": {"f:deep": {}},
        },
    }
    others = entry("other", "Update", {"f:data": {"f:shared": {}}, "f:spec": {"f:containers": dict((container("c"),))}})
    ours = {
        "f:data": {"f:kept": {}},
        "f:spec": {
            "f:containers": dict((container("a", "image"),)),
            "f:atomic": {},
            "f:finalizers": {'v:"x"': {}},
            "f:unset": {},
        },
    }
    before = live(entry("helm", "Update", theirs), others, STATUS)
    after = {
        "metadata": {"managedFields": [entry("ours", "Apply", ours)]},
        "data": {"kept": "1", "gone": "1", "shared": "1", "unowned": "1"},
        "spec": {
            "containers": [
                {"name": "a", "image": "1", "tty": True},
                {"name": "b", "image": "1", "stdin": True},
                {"name": "c", "image": "1"},
            ],
            "atomic": {"x": 1},
            "finalizers": ["x", "y"],
            "unset": {"deep": 1},
        },
    }
    left = without_released_fields(before, after, {"helm"}, "ours")
    assert left["data"] == {"kept": "1", "shared": "1", "unowned": "1"}
    assert left["spec"] == {
        "containers": [{"name": "a", "image": "1"}, {"name": "c"}],
        "atomic": {"x": 1},
        "finalizers": ["x"],
        "unset": {"deep": 1},
    }
    assert without_released_fields(before, after, (), "ours") == after
