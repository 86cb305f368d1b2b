"""Walking and rebuilding trees, and the rule for lists of named items.

Items of a list are addressed by name if all of them are maps with a unique, non-empty ``name``; any other list is one
value. Merge, diff and sealing use this rule.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from governor.values.paths import Item, Path, Step
from governor.values.secret import MASK, SEALED_KEY, Sealed, Secret

Tree: TypeAlias = Any
"""None, bool, int, float, str, Sealed, Secret, list[Tree] or dict[str, Tree]."""

Manifest: TypeAlias = dict[str, Any]
"""A tree that is a map: one Kubernetes-style object."""


def named_items(items: Sequence[Tree]) -> dict[str, Tree] | None:
    """Return the items of a list by name, or None if it is not a list of named items."""
    names = [item.get("name") if isinstance(item, dict) else None for item in items]
    texts = [name for name in names if isinstance(name, str) and name]
    if not texts or len(set(texts)) < len(names):
        return None
    return dict(zip(texts, items, strict=True))


def named_path(tree: Tree, path: Path) -> Path:
    """Return the path with items of named lists addressed by name, as far as the tree contains them."""
    steps: list[Step] = []
    for step in path:
        by_name = named_items(tree) if isinstance(tree, (list, tuple)) else None
        known = by_name is not None and isinstance(step, int) and step < len(by_name)
        steps.append(Item(tree[step]["name"]) if known else step)
        tree = _child(tree, step)
    return tuple(steps)


def position_path(tree: Tree, path: Path) -> tuple[str | int, ...]:
    """Return the path with list items addressed by position, as far as the tree contains them."""
    steps: list[str | int] = []
    for step in path:
        position = _position(tree, step.name) if isinstance(step, Item) else step
        if position is None:
            break
        steps.append(position)
        tree = _child(tree, step)
    return tuple(steps)


def same(left: Tree, right: Tree) -> bool:
    """Whether two trees have the same digest: 1, 1.0 and True differ, sealed leaves are compared by MAC."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Sealed) and isinstance(right, Sealed):
        return left.mac == right.mac
    return type(left) is type(right) and bool(left == right)


def map_leaves(tree: Tree, change: Callable[[Path, Tree], Tree], path: Path = ()) -> Tree:
    """Return a copy with each leaf replaced by ``change(path, leaf)``; list items are addressed by position."""
    if isinstance(tree, dict):
        return {key: map_leaves(value, change, (*path, key)) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [map_leaves(value, change, (*path, index)) for index, value in enumerate(tree)]
    return change(path, tree)


def masked(tree: Tree) -> Tree:
    """Return a copy with every sealed or secret leaf replaced by the mask."""
    return map_leaves(tree, lambda _, leaf: MASK if isinstance(leaf, (Sealed, Secret)) else leaf)


def leaf_at(tree: Tree, path: Path) -> Tree:
    """Return the value at a path, or None."""
    for step in path:
        tree = _child(tree, step)
        if tree is None:
            return None
    return tree


def _child(tree: Tree, step: Step) -> Tree:
    if isinstance(step, str):
        return tree.get(step) if isinstance(tree, dict) else None
    position = _position(tree, step.name) if isinstance(step, Item) else step
    if position is None or not isinstance(tree, (list, tuple)):
        return None
    return tree[position] if 0 <= position < len(tree) else None


def _position(tree: Tree, name: str) -> int | None:
    items = tree if isinstance(tree, (list, tuple)) else ()
    return next((i for i, item in enumerate(items) if isinstance(item, dict) and item.get("name") == name), None)


def restore_sealed(tree: Tree) -> Tree:
    """Return decoded JSON as a tree: maps that encode a Sealed become Sealed again."""
    if isinstance(tree, dict):
        if SEALED_KEY in tree:
            return msgspec.convert(tree, Sealed)
        return {key: restore_sealed(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [restore_sealed(value) for value in tree]
    return tree
