"""``${runtime.id}`` and ``${runtime.labels.NAME}`` in string values; nothing else is evaluated.

``$${`` is an escaped ``${``. Any other ``${`` is kept, because Dapr and applications have their own templates.
"""

import re
from collections.abc import Mapping
from typing import Final

from governor.errors import Detail
from governor.values import paths
from governor.values.trees import Tree, map_leaves

_ID: Final = "runtime.id"
_LABELS: Final = "runtime.labels."
_TEMPLATE = re.compile(r"\$(?P<escape>\$\{)|\$\{(?P<name>runtime\.[^}]*|runtime)\}")


def substitute(tree: Tree, runtime: str, labels: Mapping[str, str]) -> tuple[Tree, tuple[Detail, ...]]:
    """Return the tree with its variables substituted, and a detail for each unknown variable."""
    problems: list[Detail] = []

    def substitute_leaf(path: paths.Path, leaf: Tree) -> Tree:
        if not isinstance(leaf, str):
            return leaf
        return _TEMPLATE.sub(lambda match: value_of(match, path), leaf)

    def value_of(match: re.Match[str], path: paths.Path) -> str:
        if match["escape"]:
            return "${"
        value = lookup(match["name"], runtime, labels)
        if value is None:
            problems.append(Detail(reason=_unknown_reason(match["name"], runtime, labels), path=paths.render(path)))
        return value or ""

    return map_leaves(tree, substitute_leaf), tuple(problems)


def used_variables(tree: Tree) -> frozenset[str]:
    """Return the names of the variables in a tree."""
    names: set[str] = set()

    def collect(_: paths.Path, leaf: Tree) -> Tree:
        if isinstance(leaf, str):
            names.update(match["name"] for match in _TEMPLATE.finditer(leaf) if match["name"])
        return leaf

    map_leaves(tree, collect)
    return frozenset(names)


def unknown_variables(tree: Tree) -> tuple[Detail, ...]:
    """Return a detail for each variable that is unknown for every runtime."""
    problems: list[Detail] = []

    def check_leaf(path: paths.Path, leaf: Tree) -> Tree:
        names = [match["name"] or _ID for match in _TEMPLATE.finditer(leaf)] if isinstance(leaf, str) else []
        unknown = [name for name in names if name != _ID and not name.startswith(_LABELS)]
        problems.extend(Detail(reason=_unknown_name(name), path=paths.render(path)) for name in unknown)
        return leaf

    map_leaves(tree, check_leaf)
    return tuple(problems)


def has_variables(text: str) -> bool:
    """Whether a text contains a variable; sealed values must not, because they are never unsealed for substitution."""
    return any(match["name"] for match in _TEMPLATE.finditer(text))


def lookup(name: str, runtime: str, labels: Mapping[str, str]) -> str | None:
    """Return the value of a variable for a runtime, or None if it is unknown."""
    if name == _ID:
        return runtime
    return labels.get(name.removeprefix(_LABELS)) if name.startswith(_LABELS) else None


def _unknown_reason(name: str, runtime: str, labels: Mapping[str, str]) -> str:
    if not name.startswith(_LABELS):
        return _unknown_name(name)
    known = ", ".join(sorted(labels)) or "none"
    return f"runtime {runtime!r} has no label for ${{{name}}}; its labels: {known}"


def _unknown_name(name: str) -> str:
    return (
        f"unknown variable ${{{name}}}; known: ${{runtime.id}}, ${{runtime.labels.NAME}}; write $${{ for a literal ${{"
    )
