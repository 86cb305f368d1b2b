"""Readiness rules given by the caller: path, operator and value; no expression language.

A path is written as in ``values.paths``. A list item is addressed by its name or, if items have no name, by its type:
``status.conditions[Ready].status``.
"""

import enum
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from governor.errors import GovernorError
from governor.kube.objects import Object
from governor.kube.readiness.state import Readiness, failed, progressing, ready
from governor.values.paths import Item, Path, Step, parse
from governor.values.trees import Tree, leaf_at

Scalar: TypeAlias = str | int | float | bool


class Operator(enum.StrEnum):
    """Comparison of the field at a path. A null counts as absent; a number never equals a string."""

    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    EQUALS = "Equals"
    NOT_EQUALS = "NotEquals"
    """Also holds if the field is absent, as does NotIn; both as in label selectors."""
    IN = "In"
    NOT_IN = "NotIn"
    AT_LEAST = "AtLeast"
    """Holds if the field is a number not below the value."""


_MAX_SHOWN: Final = 80
_WITHOUT_VALUE: Final = frozenset({Operator.EXISTS, Operator.DOES_NOT_EXIST})
_WITH_LIST: Final = frozenset({Operator.IN, Operator.NOT_IN})


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A condition on one field; an invalid rule raises ValueError with the problem."""

    path: str
    """Path of the field, such as status.conditions[Ready].status."""
    operator: Operator
    """How the field is compared."""
    value: Scalar | tuple[Scalar, ...] | None = None
    """What it is compared with: one value, a list for In and NotIn, none for Exists and DoesNotExist."""

    def __post_init__(self) -> None:
        if problem := _path_problem(self.path) or _value_problem(self.operator, self.value):
            raise ValueError(f"rule on {self.path!r}: {problem}")

    def __str__(self) -> str:
        return " ".join([self.path, self.operator, *([] if self.value is None else [_shown(self.value)])])

    def holds(self, manifest: Object) -> bool:
        """Return whether the object satisfies the rule."""
        found = _field_at(manifest, parse(self.path))
        match self.operator:
            case Operator.EXISTS:
                return found is not None
            case Operator.DOES_NOT_EXIST:
                return found is None
            case Operator.EQUALS | Operator.IN:
                return _is_any_of(found, self.value)
            case Operator.NOT_EQUALS | Operator.NOT_IN:
                return not _is_any_of(found, self.value)
            case Operator.AT_LEAST:
                return _is_number(found) and found >= self.value

    def explain(self, manifest: Object) -> str:
        """Return the rule with the current value; values of a Secret are hidden."""
        found = _field_at(manifest, parse(self.path))
        hidden = found is not None and manifest.get("kind") == "Secret"
        return f"{self} (is {'set' if hidden else _shown(found)})"


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Ready if all rules of ``ready`` hold, failed if one rule of ``failed`` holds."""

    ready: tuple[Rule, ...]
    failed: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        if not self.ready:
            raise ValueError("readiness needs at least one rule under ready: without one, every object would be ready")

    def __call__(self, manifest: Object) -> Readiness:
        """Return the readiness of one object."""
        if matched := [rule for rule in self.failed if rule.holds(manifest)]:
            return failed("FailureRule", _explain(matched, manifest))
        if unmet := [rule for rule in self.ready if not rule.holds(manifest)]:
            return progressing("ReadinessRule", f"waits for: {_explain(unmet, manifest)}")
        return ready("Rules")


def _explain(rules: Iterable[Rule], manifest: Object) -> str:
    return "; ".join(rule.explain(manifest) for rule in rules)


def _path_problem(path: str) -> str:
    try:
        return "" if parse(path) else "the path is empty"
    except GovernorError as error:
        return error.message


def _value_problem(operator: Operator, value: object) -> str:
    if operator in _WITHOUT_VALUE:
        return "" if value is None else f"{operator} takes no value"
    if operator in _WITH_LIST:
        return "" if isinstance(value, tuple) and value else f"{operator} needs a list of values"
    if operator is Operator.AT_LEAST:
        return "" if _is_number(value) else f"{operator} needs a number"
    return f"{operator} needs one value" if value is None or isinstance(value, tuple) else ""


def _field_at(tree: Tree, path: Path) -> Tree:
    for step in path:
        tree = _child(tree, step)
    return tree


def _child(tree: Tree, step: Step) -> Tree:
    found = leaf_at(tree, (step,))
    if found is None and isinstance(step, Item) and isinstance(tree, Sequence):
        typed = (each for each in tree if isinstance(each, dict) and each.get("type") == step.name)
        return next(typed, None)
    return found


def _is_any_of(found: Tree, expected: object) -> bool:
    candidates = expected if isinstance(expected, tuple) else (expected,)
    return any(_equal(found, each) for each in candidates)


def _equal(found: Tree, expected: object) -> bool:
    """Compare as JSON does: 1 equals 1.0, and true is not a number."""
    if _is_number(found) and _is_number(expected):
        return bool(found == expected)
    return type(found) is type(expected) and bool(found == expected)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = "absent" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
