"""Walking trees: the rule for named lists, and paths by name or position."""

from typing import Any

import pytest
from hypothesis import given

from governor.values.paths import Item, Path
from governor.values.secret import Sealed
from governor.values.trees import leaf_at, map_leaves, named_items, named_path, position_path, same
from tests.unit.values.strategies import trees


@pytest.mark.parametrize(
    ("items", "names"),
    [
        ([], None),
        (["a"], None),
        ([{"name": "a"}], ["a"]),
        ([{"name": "a", "value": 1}, {"name": "b"}], ["a", "b"]),
        ([{"name": "a"}, {"name": "a"}], None),
        ([{"name": "a"}, {"value": 1}], None),
        ([{"name": "a"}, "b"], None),
        ([{"name": ""}], None),
        ([{"name": 1}], None),
        ([{"name": None}, {"name": "a"}], None),
    ],
)
def test_a_list_is_named_if_each_item_has_a_unique_name(items: list[Any], names: list[str] | None) -> None:
    by_name = named_items(items)
    assert (None if by_name is None else list(by_name)) == names


@given(trees)
def test_a_leaf_is_found_by_position_and_by_name(tree: Any) -> None:
    found: dict[Path, Any] = {}
    rebuilt = map_leaves(tree, found.setdefault)
    assert same(rebuilt, tree)
    for path, leaf in found.items():
        assert leaf_at(tree, path) is leaf
        assert leaf_at(tree, named_path(tree, path)) is leaf
        assert named_path(tree, named_path(tree, path)) == named_path(tree, path)
        assert position_path(tree, named_path(tree, path)) == path


def test_only_items_of_named_lists_get_a_name() -> None:
    tree = {"named": [{"name": "a", "plain": [1, 2]}]}
    assert named_path(tree, ("named", 0, "plain", 1)) == ("named", Item("a"), "plain", 1)
    assert named_path(tree, ("named", 7, "x", 0)) == ("named", 7, "x", 0)
    assert named_path(tree, ()) == ()


def test_positions_are_resolved_as_far_as_the_tree_has_the_names() -> None:
    tree = {"named": [{"name": "a"}, {"name": "b"}]}
    assert position_path(tree, ("named", Item("b"), "gone", 3)) == ("named", 1, "gone", 3)
    assert position_path(tree, ("named", Item("z"), "value")) == ("named",)
    assert position_path(tree, ("gone", Item("a"))) == ("gone",)


@pytest.mark.parametrize("path", [("x",), ("a", "b", "c"), ("l", 2), ("l", "a"), ("l", Item("z")), (0,), (Item("a"),)])
def test_the_value_at_an_absent_path_is_none(path: Path) -> None:
    assert leaf_at({"a": {"b": 1}, "l": [{"name": "q"}]}, path) is None


def test_sealed_leaves_are_compared_by_mac() -> None:
    assert same([Sealed("box", "mac")], [Sealed("re-encrypted", "mac")])
    assert not same([Sealed("box", "mac")], [Sealed("box", "other")])
    assert not same(Sealed("box", "mac"), "mac")
