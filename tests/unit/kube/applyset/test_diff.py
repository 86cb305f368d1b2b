"""Differences between two states of an object: server fields, Secret masking, ignored fields."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError
from governor.kube.applyset.diff import (
    IgnoredFields,
    comparable,
    differences,
    patterns_for,
    with_live_values,
    without_fields,
)
from governor.kube.objects import Object, ObjectRef
from governor.values.paths import parse
from tests.unit.values.strategies import scalars, trees_of

CANARY = "c4n4ry"


def secret(value: str, copied: str = "") -> Object:
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": copied} if copied else {}
    metadata: dict[str, Any] = {"name": "s", "annotations": annotations}
    values = {"data": {"a": value}, "stringData": {"b": value}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, **values}


def test_fields_set_by_the_server_are_not_differences() -> None:
    before: Object = {"kind": "X", "metadata": {"name": "a", "resourceVersion": "1", "uid": "1"}, "status": {"a": 1}}
    after: Object = {"kind": "X", "metadata": {"name": "a", "generation": 2, "managedFields": []}, "status": {"a": 2}}
    assert differences(before, after) == ()
    assert [each.path for each in differences(before, after | {"spec": 1})] == ["spec"]


@given(st.text(), st.text())
def test_a_changed_secret_is_a_difference_with_masked_values(old: str, new: str) -> None:
    found = differences(secret(CANARY + old, CANARY), secret(CANARY + new, CANARY + "2"))
    assert CANARY not in repr(found)
    assert {each.path for each in found} == ({"data.a", "stringData.b"} if old != new else set()) | {
        'metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]'
    }


def test_a_new_secret_is_masked() -> None:
    found = differences({**secret(CANARY), "data": None, "stringData": None}, secret(CANARY))
    assert CANARY not in repr(found)
    assert found
    assert CANARY not in repr(comparable(secret(CANARY, CANARY)))


REF = ObjectRef("apps", "Deployment", "shop", "orders")
POD: dict[str, Any] = {
    "metadata": {"annotations": {"example.com/a": "1", "example.com/b": "2", "other": "3"}},
    "spec": {
        "containers": [{"name": "main", "image": "one", "args": ["a"]}, {"name": "side", "image": "two"}],
        "ports": [{"port": 80, "nodePort": 1}, {"port": 81, "nodePort": 2}],
    },
}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (IgnoredFields(("spec.a",)), True),
        (IgnoredFields(("spec.a",), kind="Deployment"), True),
        (IgnoredFields(("spec.a",), kind="Deploy*", name="or*rs"), True),
        (IgnoredFields(("spec.a",), group="apps", namespace="shop", name="orders"), True),
        (IgnoredFields(("spec.a",), group=""), False),
        (IgnoredFields(("spec.a",), kind="StatefulSet"), False),
        (IgnoredFields(("spec.a",), namespace="sho"), False),
        (IgnoredFields(("spec.a",), name="o.ders"), False),
    ],
)
def test_a_rule_matches_the_objects_that_it_names(rule: IgnoredFields, expected: bool) -> None:
    assert rule.matches(REF) is expected
    assert bool(patterns_for(REF, [rule])) is expected


def test_an_invalid_path_is_rejected() -> None:
    with pytest.raises(GovernorError, match="not a path"):
        patterns_for(REF, [IgnoredFields(("spec..a",))])


@pytest.mark.parametrize(
    "path", ["", "kind", "metadata", "metadata.name", 'metadata["*"]', '["*"].x', "[0]", "apiVersion"]
)
def test_identity_fields_cannot_be_ignored(path: str) -> None:
    with pytest.raises(GovernorError, match="cannot be ignored"):
        patterns_for(REF, [IgnoredFields((path,))])


@pytest.mark.parametrize("path", ["spec", "status.x", "data", "metadata.annotations", 'metadata.labels["a/*"]'])
def test_all_other_fields_can_be_ignored(path: str) -> None:
    assert patterns_for(REF, [IgnoredFields((path,))]) == (parse(path),)


@pytest.mark.parametrize(
    ("path", "removed"),
    [
        ("spec.containers[main].image", ["spec", "containers", 0, "image"]),
        ("spec.containers[0].image", ["spec", "containers", 0, "image"]),
        ("spec.ports[1].nodePort", ["spec", "ports", 1, "nodePort"]),
        ("spec.ports", ["spec", "ports"]),
        ("metadata.annotations.other", ["metadata", "annotations", "other"]),
    ],
)
def test_a_path_covers_one_field_and_everything_below(path: str, removed: list[str | int]) -> None:
    expected: Any = copy.deepcopy(POD)
    parent = expected
    for step in removed[:-1]:
        parent = parent[step]
    del parent[removed[-1]]
    assert without_fields(POD, [parse(path)]) == expected


@pytest.mark.parametrize(
    ("path", "remaining"),
    [
        ('metadata.annotations["example.com/*"]', {"annotations": {"other": "3"}}),
        ('metadata.annotations["*"]', {"annotations": {}}),
        ('metadata["*"].other', {"annotations": {"example.com/a": "1", "example.com/b": "2"}}),
        ('metadata["ann*"]', {}),
    ],
)
def test_a_star_matches_any_text_in_a_name(path: str, remaining: dict[str, Any]) -> None:
    assert without_fields(POD, [parse(path)])["metadata"] == remaining


def test_a_star_matches_any_item() -> None:
    by_name = without_fields(POD, [parse('spec.containers[name="*"].image')])
    assert by_name["spec"]["containers"] == [{"name": "main", "args": ["a"]}, {"name": "side"}]
    assert (
        without_fields(POD, [parse('spec.containers[name="s*"]')])["spec"]["containers"]
        == POD["spec"]["containers"][:1]
    )
    anywhere = without_fields(POD, [parse('spec.ports["*"].nodePort')])
    assert anywhere["spec"]["ports"] == [{"port": 80}, {"port": 81}]


def test_ignored_fields_get_their_live_values() -> None:
    live = copy.deepcopy(POD)
    live["spec"]["containers"].reverse()
    live["spec"]["containers"][1]["image"] = "live"
    live["spec"]["ports"][0]["nodePort"] = 7
    del live["metadata"]["annotations"]["other"]
    paths = ("spec.containers[main].image", "spec.ports[0].nodePort", "metadata.annotations.other")
    patterns = [parse(path) for path in paths]
    merged = with_live_values(POD, live, patterns)
    expected = copy.deepcopy(POD)
    expected["spec"]["containers"][0]["image"] = "live"
    expected["spec"]["ports"][0]["nodePort"] = 7
    del expected["metadata"]["annotations"]["other"]  # absent in the live object
    assert merged == expected


maps = st.dictionaries(st.text(min_size=1), trees_of(scalars), max_size=4)


@given(maps, maps)
def test_without_patterns_nothing_changes(desired: dict[str, Any], live: dict[str, Any]) -> None:
    assert without_fields(desired, []) == desired
    assert with_live_values(desired, live, []) == desired


@given(maps, maps)
def test_covered_fields_only_get_live_values(desired: dict[str, Any], live: dict[str, Any]) -> None:
    everything = [parse('["*"]')]
    assert without_fields(desired, everything) == {}
    merged = with_live_values(desired, live, everything)
    assert merged == {key: live[key] for key in desired if key in live}
