"""The masked tree diff for preview, drift, dry run and audit.

Old and new values are masked, so a difference may be shown to anyone who may see the tree.
"""

import enum
from collections.abc import Iterator
from typing import Any

import msgspec

from governor.values.paths import Item, Path, render
from governor.values.trees import Tree, masked, named_items, same


class Operation(enum.StrEnum):
    """The kind of a difference."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    REORDERED = "reordered"


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One difference; ``old`` and ``new`` are masked. For a reordered list they are the names of its items."""

    path: str
    operation: Operation
    old: Any = None
    new: Any = None


_ABSENT = object()


def diff(old: Tree, new: Tree) -> tuple[Difference, ...]:
    """Return the differences that turn ``old`` into ``new``, in the order of the tree."""
    return tuple(_walk(old, new, ()))


def _walk(old: Tree, new: Tree, path: Path) -> Iterator[Difference]:
    old_children, new_children = _children(old, new)
    if old_children is None or new_children is None:
        if not same(old, new):
            yield Difference(render(path), Operation.CHANGED, masked(old), masked(new))
        return
    for step in dict.fromkeys([*old_children, *new_children]):
        before, after = old_children.get(step, _ABSENT), new_children.get(step, _ABSENT)
        if before is _ABSENT:
            yield Difference(render((*path, step)), Operation.ADDED, new=masked(after))
        elif after is _ABSENT:
            yield Difference(render((*path, step)), Operation.REMOVED, old=masked(before))
        else:
            yield from _walk(before, after, (*path, step))
    if isinstance(new, (list, tuple)):
        yield from _order(old_children, new_children, path)


def _order(old: dict[Item, Tree], new: dict[Item, Tree], path: Path) -> Iterator[Difference]:
    """Yield a difference if named items are reordered; new items are expected at the end.

    The order can matter, for instance for Dapr's middleware.
    """
    expected = [item.name for item in dict.fromkeys([*old, *new]) if item in new]
    names = [item.name for item in new]
    if expected != names:
        yield Difference(render(path), Operation.REORDERED, expected, names)


def _children(old: Tree, new: Tree) -> tuple[dict[Any, Tree] | None, dict[Any, Tree] | None]:
    if isinstance(old, dict) and isinstance(new, dict):
        return old, new
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return _by_name(old), _by_name(new)
    return None, None


def _by_name(items: Tree) -> dict[Item, Tree] | None:
    by_name = named_items(items)
    return None if by_name is None else {Item(name): item for name, item in by_name.items()}
