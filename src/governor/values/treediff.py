"""The one masked tree diff: for preview, drift, dry run and audit.

Old and new values come out masked, so a difference may be shown to anyone who may see the tree at all.
"""

import enum
from collections.abc import Iterator
from typing import Any

import msgspec

from governor.values.paths import Item, Path, render
from governor.values.trees import Tree, masked, named_items


class Operation(enum.StrEnum):
    """What happened at a path."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One changed place; ``old`` and ``new`` are masked."""

    path: str
    operation: Operation
    old: Any = None
    new: Any = None


_ABSENT = object()


def diff(old: Tree, new: Tree) -> tuple[Difference, ...]:
    """List what turns ``old`` into ``new``, in the order of the tree."""
    return tuple(_walk(old, new, ()))


def _walk(old: Tree, new: Tree, path: Path) -> Iterator[Difference]:
    old_children, new_children = _children(old, new)
    if old_children is None or new_children is None:
        yield from _compare(old, new, path)
        return
    for step in dict.fromkeys([*old_children, *new_children]):
        before, after = old_children.get(step, _ABSENT), new_children.get(step, _ABSENT)
        if before is _ABSENT:
            yield Difference(render((*path, step)), Operation.ADDED, new=masked(after))
        elif after is _ABSENT:
            yield Difference(render((*path, step)), Operation.REMOVED, old=masked(before))
        else:
            yield from _walk(before, after, (*path, step))


def _compare(old: Tree, new: Tree, path: Path) -> Iterator[Difference]:
    if _identity(old) != _identity(new):
        yield Difference(render(path), Operation.CHANGED, masked(old), masked(new))


def _children(old: Tree, new: Tree) -> tuple[dict[Any, Tree] | None, dict[Any, Tree] | None]:
    if isinstance(old, dict) and isinstance(new, dict):
        return old, new
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return _by_name(old), _by_name(new)
    return None, None


def _by_name(items: Tree) -> dict[Item, Tree] | None:
    by_name = named_items(items)
    return None if by_name is None else {Item(name): item for name, item in by_name.items()}


def _identity(leaf: Tree) -> Tree:
    """Compare sealed leaves by mac, and keep 1, 1.0 and True apart."""
    mac = getattr(leaf, "mac", None)
    return ("sealed", mac) if mac is not None else (type(leaf).__name__, leaf)
