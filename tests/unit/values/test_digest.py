"""Digests: equal for equal configurations, different for all others."""

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.values.digest import canonical, digest
from governor.values.secret import Sealed, Secret
from governor.values.treediff import diff
from tests.unit.values.strategies import trees, trees_of

# All of these are different configurations.
DISTINCT: list[Any] = [
    None,
    {},
    [],
    "",
    0,
    1,
    1.0,
    1.5,
    True,
    False,
    "1",
    "null",
    "true",
    [1],
    [[1]],
    ["1"],
    [1, None],
    [None, 1],
    {"a": None},
    {"a": ""},
    {"a": {}},
    {"a": []},
    {"a": "b"},
    {"a": ["b"]},
    {"a": {"b": None}},
    {"ab": ""},
    {"": "ab"},
    [{"name": "a"}, {"name": "b"}],
    [{"name": "b"}, {"name": "a"}],
    Sealed("box", "mac-1"),
    Sealed("box", "mac-2"),
    {"a": Sealed("box", "mac-1")},
    "***",
]


def shuffled(tree: Any, rng: random.Random) -> Any:
    """Return the tree with its keys in another order and its sealed leaves encrypted again."""
    if isinstance(tree, dict):
        keys = rng.sample(list(tree), len(tree))
        return {key: shuffled(tree[key], rng) for key in keys}
    if isinstance(tree, list):
        return [shuffled(item, rng) for item in tree]
    return Sealed("re-encrypted", tree.mac) if isinstance(tree, Sealed) else tree


@given(trees, st.randoms(use_true_random=False))
def test_neither_key_order_nor_re_encryption_changes_a_digest(tree: Any, rng: random.Random) -> None:
    assert digest(shuffled(tree, rng)) == digest(tree)


def test_different_trees_have_different_digests() -> None:
    alike = [pair for pair in itertools.combinations(DISTINCT, 2) if len(set(map(digest, pair))) == 1]
    assert alike == []


# Few leaves, some equal in Python, so that trees are often nearly equal.
alike = trees_of(st.sampled_from([0, 0.0, False, 1, True, Sealed("a", "mac"), Sealed("b", "mac"), "mac"]), max_leaves=4)


@given(alike, alike)
def test_digests_are_equal_exactly_when_there_is_no_difference(one: Any, other: Any) -> None:
    assert (digest(one) == digest(other)) == (not diff(one, other))


def test_a_digest_names_its_algorithm_and_is_stable() -> None:
    tree = {"b": [1, 2.5, None, True], "a": {"ä": "ß"}, "c": Sealed("box", "mac")}
    assert digest(tree) == "sha256:689d67aca939e8955b9dba0423cedcec917efd60325c6b0387199b1f39a65c4f"


def test_the_canonical_form_is_compact_and_sorted() -> None:
    assert canonical({"b": 1, "a": {"d": "ä", "c": None}}) == '{"a":{"c":null,"d":"ä"},"b":1}'.encode()


def test_a_secret_has_no_digest_because_it_could_be_guessed() -> None:
    with pytest.raises(TypeError):
        digest({"password": Secret("short")})
