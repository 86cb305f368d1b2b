"""``${runtime.id}`` and ``${runtime.labels.x}`` in string values; nothing else is evaluated.

``$${`` escapes. Any other ``${`` passes, because Dapr and applications have templates of their own.
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


def evaluate(tree: Tree, runtime: str, labels: Mapping[str, str]) -> tuple[Tree, tuple[Detail, ...]]:
    """The tree with its variables filled in, and a detail for each that cannot be."""
    problems: list[Detail] = []

    def fill(path: paths.Path, leaf: Tree) -> Tree:
        if not isinstance(leaf, str):
            return leaf
        return _TEMPLATE.sub(lambda match: _value(match, path), leaf)

    def _value(match: re.Match[str], path: paths.Path) -> str:
        if match["escape"]:
            return "${"
        value = _lookup(match["name"], runtime, labels)
        if value is None:
            problems.append(Detail(reason=_why_unknown(match["name"], runtime, labels), path=paths.render(path)))
        return value or ""

    return map_leaves(tree, fill), tuple(problems)


def misnamed(tree: Tree) -> tuple[Detail, ...]:
    """A detail for each variable that no runtime whatsoever could fill in."""
    problems: list[Detail] = []

    def look(path: paths.Path, leaf: Tree) -> Tree:
        names = [match["name"] or _ID for match in _TEMPLATE.finditer(leaf)] if isinstance(leaf, str) else []
        wrong = [name for name in names if name != _ID and not name.startswith(_LABELS)]
        problems.extend(Detail(reason=_why_misnamed(name), path=paths.render(path)) for name in wrong)
        return leaf

    map_leaves(tree, look)
    return tuple(problems)


def names_variable(text: str) -> bool:
    """Whether a text asks for a variable; sealed values may not, since they are never opened to be filled."""
    return any(match["name"] for match in _TEMPLATE.finditer(text))


def _lookup(name: str, runtime: str, labels: Mapping[str, str]) -> str | None:
    if name == _ID:
        return runtime
    return labels.get(name.removeprefix(_LABELS)) if name.startswith(_LABELS) else None


def _why_unknown(name: str, runtime: str, labels: Mapping[str, str]) -> str:
    if not name.startswith(_LABELS):
        return _why_misnamed(name)
    has = ", ".join(sorted(labels)) or "none"
    return f"runtime {runtime!r} lacks the label that ${{{name}}} asks for; its labels: {has}"


def _why_misnamed(name: str) -> str:
    return f"unknown variable ${{{name}}}; known: ${{runtime.id}}, ${{runtime.labels.NAME}}; $${{ gives a literal ${{"
