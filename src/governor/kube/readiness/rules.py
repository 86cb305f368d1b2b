"""Readiness of a kind that only the caller knows, as rules of path, operator and value; no expression language.

A path is written as in ``values.paths``. An item of a list is addressed by its name or, where items have a type in
place of a name, by that: ``status.conditions[Ready].status``.
"""

import enum
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from governor.errors import GovernorError
from governor.kube.objects import Object
from governor.kube.readiness.verdict import Readiness, failed, progressing, ready
from governor.values.paths import Item, Path, Step, parse
from governor.values.trees import Tree, leaf_at

Scalar: TypeAlias = str | int | float | bool


class Operator(enum.StrEnum):
    """How a rule compares what is at its path. A null counts as absent; numbers and texts are never equal."""

    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    EQUALS = "Equals"
    NOT_EQUALS = "NotEquals"
    """Also holds when there is nothing, as NotIn does; both as in label selectors."""
    IN = "In"
    NOT_IN = "NotIn"
    AT_LEAST = "AtLeast"
    """A number not below the value; nothing, and what is no number, does not hold."""


_MOST_SHOWN: Final = 80
_WITHOUT_VALUE: Final = frozenset({Operator.EXISTS, Operator.DOES_NOT_EXIST})
_OF_SEVERAL: Final = frozenset({Operator.IN, Operator.NOT_IN})


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One statement about one field; a wrong one is a ValueError that says what is wrong with it."""

    path: str
    operator: Operator
    value: Scalar | tuple[Scalar, ...] | None = None

    def __post_init__(self) -> None:
        if problem := _problem_of_path(self.path) or _problem_of_value(self.operator, self.value):
            raise ValueError(f"rule on {self.path!r}: {problem}")

    def __str__(self) -> str:
        return " ".join([self.path, self.operator, *([] if self.value is None else [_shown(self.value)])])

    def holds(self, manifest: Object) -> bool:
        """Whether an object satisfies it."""
        found = _at(manifest, parse(self.path))
        match self.operator:
            case Operator.EXISTS:
                return found is not None
            case Operator.DOES_NOT_EXIST:
                return found is None
            case Operator.EQUALS | Operator.IN:
                return _among(found, self.value)
            case Operator.NOT_EQUALS | Operator.NOT_IN:
                return not _among(found, self.value)
            case Operator.AT_LEAST:
                return _is_number(found) and found >= self.value

    def told(self, manifest: Object) -> str:
        """The rule and what is there instead; never what is in a Secret."""
        found = _at(manifest, parse(self.path))
        hidden = found is not None and manifest.get("kind") == "Secret"
        return f"{self} (is {'there' if hidden else _shown(found)})"


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Ready when all of ``ready`` hold, failed as soon as one of ``failed`` does."""

    ready: tuple[Rule, ...]
    failed: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        if not self.ready:
            raise ValueError("readiness needs at least one rule under ready: none would always hold")

    def __call__(self, manifest: Object) -> Readiness:
        """The verdict on one object."""
        if broken := [rule for rule in self.failed if rule.holds(manifest)]:
            return failed("FailureRule", _told(broken, manifest))
        if open_rules := [rule for rule in self.ready if not rule.holds(manifest)]:
            return progressing("ReadinessRule", f"waits for: {_told(open_rules, manifest)}")
        return ready("Rules")


def _told(rules: Iterable[Rule], manifest: Object) -> str:
    return "; ".join(rule.told(manifest) for rule in rules)


def _problem_of_path(path: str) -> str:
    try:
        return "" if parse(path) else "the path is empty"
    except GovernorError as error:
        return error.message


def _problem_of_value(operator: Operator, value: object) -> str:
    if operator in _WITHOUT_VALUE:
        return "" if value is None else f"{operator} takes no value"
    if operator in _OF_SEVERAL:
        return "" if isinstance(value, tuple) and value else f"{operator} needs a list of values"
    if operator is Operator.AT_LEAST:
        return "" if _is_number(value) else f"{operator} needs a number"
    return f"{operator} needs one value" if value is None or isinstance(value, tuple) else ""


def _at(tree: Tree, path: Path) -> Tree:
    for step in path:
        tree = _child(tree, step)
    return tree


def _child(tree: Tree, step: Step) -> Tree:
    found = leaf_at(tree, (step,))
    if found is None and isinstance(step, Item) and isinstance(tree, Sequence):
        typed = (each for each in tree if isinstance(each, dict) and each.get("type") == step.name)
        return next(typed, None)
    return found


def _among(found: Tree, wanted: object) -> bool:
    candidates = wanted if isinstance(wanted, tuple) else (wanted,)
    return any(_equal(found, each) for each in candidates)


def _equal(found: Tree, wanted: object) -> bool:
    """As in JSON: 1 and 1.0 are the same number, and true is none."""
    if _is_number(found) and _is_number(wanted):
        return bool(found == wanted)
    return type(found) is type(wanted) and bool(found == wanted)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = "absent" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
