"""The masked diff: complete, empty for equal trees, and without secrets."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.values.paths import Item, Path, parse
from governor.values.secret import MASK, Sealed, Secret
from governor.values.treediff import Difference, Operation, diff
from governor.values.trees import masked
from tests.unit.values.strategies import CANARY, scalars, secrets, trees, trees_of

plain_trees = trees_of(scalars)


def applied(tree: Any, differences: tuple[Difference, ...]) -> Any:
    """Return the old tree with the differences applied."""
    root = {"root": copy.deepcopy(tree)}
    for difference in differences:
        apply_one(root, ("root", *parse(difference.path)), difference)
    return root["root"]


def apply_one(tree: Any, path: Path, difference: Difference) -> None:
    *above, last = path
    for step in above:
        tree = tree[position(tree, step)]
    if difference.operation is Operation.REMOVED:
        del tree[position(tree, last)]
    elif difference.operation is Operation.ADDED and isinstance(last, Item):
        tree.append(difference.new)
    elif difference.operation is Operation.REORDERED:
        items = tree[position(tree, last)]
        items.sort(key=lambda item: difference.new.index(item["name"]))
    else:
        tree[position(tree, last)] = difference.new


def position(tree: Any, step: Any) -> Any:
    return next(i for i, item in enumerate(tree) if item["name"] == step.name) if isinstance(step, Item) else step


def typed(tree: Any) -> str:
    """Encode a tree so that 1, 1.0 and True differ."""
    return msgspec.json.encode(tree, order="sorted").decode()


@given(trees)
def test_a_tree_does_not_differ_from_itself(tree: Any) -> None:
    assert diff(tree, copy.deepcopy(tree)) == ()


@given(plain_trees, plain_trees)
def test_the_differences_turn_the_old_tree_into_the_new_one(old: Any, new: Any) -> None:
    assert typed(applied(old, diff(old, new))) == typed(new)


@given(trees, trees)
def test_a_diff_changes_neither_tree(old: Any, new: Any) -> None:
    before = copy.deepcopy((old, new))
    diff(old, new)
    assert (old, new) == before


@given(trees_of(scalars | secrets | st.just(Sealed(CANARY, CANARY))), trees_of(scalars | secrets))
def test_a_difference_never_contains_a_secret(old: Any, new: Any) -> None:
    for differences in (diff(old, new), diff(new, old), diff(old, None), diff(None, new)):
        assert CANARY.encode() not in msgspec.json.encode(differences)
        assert CANARY not in repr(differences)


def test_a_changed_secret_is_a_difference_without_its_values() -> None:
    old, new = {"password": Secret("a")}, {"password": Secret("b")}
    assert diff(old, new) == (Difference("password", Operation.CHANGED, MASK, MASK),)
    assert diff(old, {"password": Secret("a")}) == ()


@pytest.mark.parametrize(
    ("place"),
    [lambda leaf: leaf, lambda leaf: {"a": leaf}, lambda leaf: [leaf], lambda leaf: [[{"a": leaf}]]],
    ids=["leaf", "in a map", "in a list", "deep in lists"],
)
@pytest.mark.parametrize(("old", "new"), [(1, 1.0), (1, True), (0, False), ("1", 1), (None, ""), ([], {}), ("", {})])
def test_values_of_different_types_differ_at_any_depth(place: Any, old: Any, new: Any) -> None:
    assert len(diff(place(old), place(new))) == 1
    assert len(diff(place(new), place(old))) == 1


@pytest.mark.parametrize("place", [lambda leaf: {"a": leaf}, lambda leaf: [leaf, 1]], ids=["map", "list"])
def test_sealed_leaves_differ_only_if_their_plain_texts_do(place: Any) -> None:
    assert diff(place(Sealed("box", "mac")), place(Sealed("re-encrypted", "mac"))) == ()
    assert len(diff(place(Sealed("box", "mac")), place(Sealed("box", "other")))) == 1
    assert len(diff(place(Sealed("box", "mac")), place("mac"))) == 1


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {"a": None}, [("a", "added", None, None)]),
        ({"a": {"b": 1}}, {"a": {}}, [("a.b", "removed", 1, None)]),
        ({"a": [1, 2]}, {"a": [1, 3]}, [("a", "changed", [1, 2], [1, 3])]),
        ([{"name": "p", "value": 1}], [{"name": "p", "value": 2}], [("[p].value", "changed", 1, 2)]),
        ([{"name": "p"}], [{"name": "p"}, {"name": "q"}], [("[q]", "added", None, {"name": "q"})]),
        ([{"name": "p"}, {"name": "q"}], [{"name": "q"}], [("[p]", "removed", {"name": "p"}, None)]),
        ([{"name": "p"}, {"name": "q"}], [{"name": "q"}, {"name": "p"}], [("", "reordered", ["p", "q"], ["q", "p"])]),
        (
            {"l": [{"name": "p"}]},
            {"l": [{"name": "q"}, {"name": "p"}]},
            [("l[q]", "added", None, {"name": "q"}), ("l", "reordered", ["p", "q"], ["q", "p"])],
        ),
        ({"l": [{"name": "p"}]}, {"l": []}, [("l", "changed", [{"name": "p"}], [])]),
        ({"x.y": 1}, {"x.y": 2}, [('["x.y"]', "changed", 1, 2)]),
        (1, {"a": 1}, [("", "changed", 1, {"a": 1})]),
    ],
)
def test_examples_of_differences(old: Any, new: Any, expected: list[tuple[str, str, Any, Any]]) -> None:
    assert [(d.path, d.operation.value, d.old, d.new) for d in diff(old, new)] == expected


def test_a_masked_tree_differs_from_the_original_only_in_its_secrets() -> None:
    tree = {"a": 1, "b": Secret("x"), "c": [Sealed("box", "mac")]}
    assert masked(tree) == {"a": 1, "b": MASK, "c": [MASK]}
