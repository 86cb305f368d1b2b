"""Walking and rebuilding trees, and the one rule for lists of named items.

A list whose items are all maps with unique, non-empty ``name`` is addressed by name; every other list is one value.
Merge, diff and sealing all use this rule from here.
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
    """Index a list by the names of its items, or None when it is an ordinary list."""
    names = [item.get("name") if isinstance(item, dict) else None for item in items]
    texts = [name for name in names if isinstance(name, str) and name]
    if not texts or len(set(texts)) < len(names):
        return None
    return dict(zip(texts, items, strict=True))


def named_path(tree: Tree, path: Path) -> Path:
    """The same path with the items of named lists addressed by name, as far as the tree has them."""
    steps: list[Step] = []
    for step in path:
        by_name = named_items(tree) if isinstance(tree, (list, tuple)) else None
        known = by_name is not None and isinstance(step, int) and step < len(by_name)
        steps.append(Item(tree[step]["name"]) if known else step)
        tree = _child(tree, step)
    return tuple(steps)


def position_path(tree: Tree, path: Path) -> tuple[str | int, ...]:
    """The same path with list items addressed by position, as far as the tree has them."""
    steps: list[str | int] = []
    for step in path:
        position = _position(tree, step.name) if isinstance(step, Item) else step
        if position is None:
            break
        steps.append(position)
        tree = _child(tree, step)
    return tuple(steps)


def same(left: Tree, right: Tree) -> bool:
    """Whether two trees have one digest: 1, 1.0 and True differ, sealed leaves are compared by mac."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Sealed) and isinstance(right, Sealed):
        return left.mac == right.mac
    return type(left) is type(right) and bool(left == right)


def map_leaves(tree: Tree, change: Callable[[Path, Tree], Tree], path: Path = ()) -> Tree:
    """Rebuild a tree with each leaf replaced by ``change(path, leaf)``; list items are addressed by position."""
    if isinstance(tree, dict):
        return {key: map_leaves(value, change, (*path, key)) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [map_leaves(value, change, (*path, index)) for index, value in enumerate(tree)]
    return change(path, tree)


def masked(tree: Tree) -> Tree:
    """Copy a tree for people: every sealed or secret leaf is shown as the mask."""
    return map_leaves(tree, lambda _, leaf: MASK if isinstance(leaf, (Sealed, Secret)) else leaf)


def leaf_at(tree: Tree, path: Path) -> Tree:
    """The value at a path, or None; names address items of named lists."""
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
    """Turn decoded JSON back into a tree: maps written for Sealed become Sealed again."""
    if isinstance(tree, dict):
        if SEALED_KEY in tree:
            return msgspec.convert(tree, Sealed)
        return {key: restore_sealed(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [restore_sealed(value) for value in tree]
    return tree
