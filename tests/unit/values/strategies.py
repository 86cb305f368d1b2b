"""Hypothesis strategies for trees."""

from typing import Any

from hypothesis import strategies as st

from governor.values.secret import Sealed, Secret

CANARY = "hunter2-canary"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
words = st.sampled_from(["a", "b", "c", "name", "value", "x.y", "", "1"])
# 0.0 and -0.0 are equal in Python and different in JSON; no configuration depends on it.
floats = st.floats(-100, 100, width=16).map(lambda number: number or 0.0)
sealed = st.builds(Sealed, st.text("0123456789", max_size=3), st.sampled_from(["mac-1", "mac-2"]))
secrets = st.sampled_from([Secret(CANARY), Secret(f"other {CANARY}")])
scalars = st.none() | st.booleans() | st.integers(-2, 2) | floats | texts | words
leaves = scalars | sealed


def trees_of(leaf: st.SearchStrategy[Any], max_leaves: int = 12) -> st.SearchStrategy[Any]:
    """Return trees with these leaves; many of their lists have named items."""
    return st.recursive(
        leaf,
        lambda inner: st.dictionaries(words, inner, max_size=4) | st.lists(inner, max_size=3) | named_lists_of(inner),
        max_leaves=max_leaves,
    )


def named_lists_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Return lists whose items have unique names."""
    item = st.tuples(
        st.sampled_from(["p", "q", "r", "8", "x]"]), st.dictionaries(st.sampled_from(["value", "v"]), inner)
    )
    return st.lists(item.map(lambda pair: {"name": pair[0], **pair[1]}), max_size=4, unique_by=lambda it: it["name"])


trees = trees_of(leaves)
maps = st.dictionaries(words, trees, max_size=4)
