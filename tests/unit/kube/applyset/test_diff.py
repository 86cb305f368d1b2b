"""What of two states of an object counts, and what of it may be shown."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError
from governor.kube.applyset.diff import Ignored, comparable, differences, patterns_for, with_live, without
from governor.kube.objects import Object, ObjectRef
from governor.values.paths import parse
from tests.unit.values.strategies import brief, scalars, trees_of

CANARY = "c4n4ry"


def secret(value: str, copied: str = "") -> Object:
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": copied} if copied else {}
    metadata: dict[str, Any] = {"name": "s", "annotations": annotations}
    values = {"data": {"a": value}, "stringData": {"b": value}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, **values}


def test_what_the_server_keeps_does_not_count() -> None:
    before: Object = {"kind": "X", "metadata": {"name": "a", "resourceVersion": "1", "uid": "1"}, "status": {"a": 1}}
    after: Object = {"kind": "X", "metadata": {"name": "a", "generation": 2, "managedFields": []}, "status": {"a": 2}}
    assert differences(before, after) == ()
    assert [each.path for each in differences(before, after | {"spec": 1})] == ["spec"]


@brief
@given(st.text(), st.text())
def test_a_secret_that_changed_is_seen_to_and_its_values_are_not(old: str, new: str) -> None:
    found = differences(secret(CANARY + old, CANARY), secret(CANARY + new, CANARY + "2"))
    assert CANARY not in repr(found)
    assert {each.path for each in found} == ({"data.a", "stringData.b"} if old != new else set()) | {
        'metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]'
    }


def test_a_secret_in_the_making_shows_no_values_either() -> None:
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
        (Ignored(("spec.a",)), True),
        (Ignored(("spec.a",), kind="Deployment"), True),
        (Ignored(("spec.a",), kind="Deploy*", name="or*rs"), True),
        (Ignored(("spec.a",), group="apps", namespace="shop", name="orders"), True),
        (Ignored(("spec.a",), group=""), False),
        (Ignored(("spec.a",), kind="StatefulSet"), False),
        (Ignored(("spec.a",), namespace="sho"), False),
        (Ignored(("spec.a",), name="o.ders"), False),
    ],
)
def test_a_rule_concerns_the_objects_that_it_names(rule: Ignored, expected: bool) -> None:
    assert rule.concerns(REF) is expected
    assert bool(patterns_for(REF, [rule])) is expected


def test_an_unreadable_path_is_refused() -> None:
    with pytest.raises(GovernorError, match="not a path"):
        patterns_for(REF, [Ignored(("spec..a",))])


@pytest.mark.parametrize(
    "path", ["", "kind", "metadata", "metadata.name", 'metadata["*"]', '["*"].x', "[0]", "apiVersion"]
)
def test_what_says_which_object_it_is_cannot_be_ignored(path: str) -> None:
    with pytest.raises(GovernorError, match="cannot be ignored"):
        patterns_for(REF, [Ignored((path,))])


@pytest.mark.parametrize("path", ["spec", "status.x", "data", "metadata.annotations", 'metadata.labels["a/*"]'])
def test_everything_else_can_be_ignored(path: str) -> None:
    assert patterns_for(REF, [Ignored((path,))]) == (parse(path),)


@pytest.mark.parametrize(
    ("path", "gone"),
    [
        ("spec.containers[main].image", ["spec", "containers", 0, "image"]),
        ("spec.containers[0].image", ["spec", "containers", 0, "image"]),
        ("spec.ports[1].nodePort", ["spec", "ports", 1, "nodePort"]),
        ("spec.ports", ["spec", "ports"]),
        ("metadata.annotations.other", ["metadata", "annotations", "other"]),
    ],
)
def test_a_path_covers_one_place_and_what_is_below(path: str, gone: list[str | int]) -> None:
    expected: Any = copy.deepcopy(POD)
    place = expected
    for step in gone[:-1]:
        place = place[step]
    del place[gone[-1]]
    assert without(POD, [parse(path)]) == expected


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ('metadata.annotations["example.com/*"]', {"annotations": {"other": "3"}}),
        ('metadata.annotations["*"]', {"annotations": {}}),
        ('metadata["*"].other', {"annotations": {"example.com/a": "1", "example.com/b": "2"}}),
        ('metadata["ann*"]', {}),
    ],
)
def test_a_star_stands_for_any_text_in_a_name(path: str, left: dict[str, Any]) -> None:
    assert without(POD, [parse(path)])["metadata"] == left


def test_a_star_stands_for_any_item() -> None:
    by_name = without(POD, [parse('spec.containers[name="*"].image')])
    assert by_name["spec"]["containers"] == [{"name": "main", "args": ["a"]}, {"name": "side"}]
    assert without(POD, [parse('spec.containers[name="s*"]')])["spec"]["containers"] == POD["spec"]["containers"][:1]
    anywhere = without(POD, [parse('spec.ports["*"].nodePort')])
    assert anywhere["spec"]["ports"] == [{"port": 80}, {"port": 81}]


def test_live_values_take_the_place_of_ignored_ones() -> None:
    live = copy.deepcopy(POD)
    live["spec"]["containers"].reverse()
    live["spec"]["containers"][1]["image"] = "live"
    live["spec"]["ports"][0]["nodePort"] = 7
    del live["metadata"]["annotations"]["other"]
    paths = ("spec.containers[main].image", "spec.ports[0].nodePort", "metadata.annotations.other")
    patterns = [parse(path) for path in paths]
    merged = with_live(POD, live, patterns)
    expected = copy.deepcopy(POD)
    expected["spec"]["containers"][0]["image"] = "live"
    expected["spec"]["ports"][0]["nodePort"] = 7
    del expected["metadata"]["annotations"]["other"]  # there is none, so none is asked for
    assert merged == expected


maps = st.dictionaries(st.text(min_size=1), trees_of(scalars), max_size=4)


@brief
@given(maps, maps)
def test_without_patterns_nothing_is_taken_or_left_out(wanted: dict[str, Any], live: dict[str, Any]) -> None:
    assert without(wanted, []) == wanted
    assert with_live(wanted, live, []) == wanted


@brief
@given(maps, maps)
def test_what_is_covered_is_never_asked_for_with_another_value(wanted: dict[str, Any], live: dict[str, Any]) -> None:
    everything = [parse('["*"]')]
    assert without(wanted, everything) == {}
    merged = with_live(wanted, live, everything)
    assert merged == {key: live[key] for key in wanted if key in live}
