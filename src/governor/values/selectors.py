"""Label selectors with the semantics of Kubernetes: all matchLabels and matchExpressions must match."""

import enum
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from governor.errors import invalid


class Operator(enum.StrEnum):
    """How an expression compares a label."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Expression(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One condition on one label."""

    key: str
    """Name of the label."""
    operator: Operator
    """How the label is compared."""
    values: tuple[str, ...] = ()
    """Values for In and NotIn."""

    def __post_init__(self) -> None:
        needs_values = self.operator in (Operator.IN, Operator.NOT_IN)
        if needs_values != bool(self.values):
            need = "needs values" if needs_values else "takes no values"
            raise ValueError(f"operator {self.operator} on label {self.key!r} {need}")

    @property
    def requirement(self) -> str:
        """Operator and values as text."""
        return f"{self.operator} ({', '.join(self.values)})" if self.values else str(self.operator)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy the expression. As in Kubernetes, NotIn also matches an absent label."""
        match self.operator:
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:
                return labels.get(self.key) not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case Operator.DOES_NOT_EXIST:
                return self.key not in labels


class LabelSelector(NamedTuple):
    """A label selector."""

    match_labels: Mapping[str, str] = MappingProxyType({})
    match_expressions: tuple[Expression, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels match."""
        return matches(labels, self.match_labels, self.match_expressions)


_TERM = re.compile(
    r"\s*(?:(?P<absent>!)\s*(?P<no>[^\s=!,()]+)|(?P<key>[^\s=!,()]+)\s*"
    r"(?:(?P<equal>==?|!=)\s*(?P<value>[^\s=!,()]*)|(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*"
)


def parse(text: str) -> LabelSelector:
    """Parse a selector as kubectl writes it: ``a=b,c!=d,e in (f,g),h,!i``."""
    expressions, position = [], 0
    while position < len(text):
        term = _TERM.match(text, position)
        end = term.end() if term else position
        if term is None or (end < len(text) and text[end] != ",") or end == len(text) - 1:
            raise invalid("selector", f"{text!r} is not a label selector; write for example region=eu,tier!=test")
        expressions.append(_expression(term))
        position = end + 1
    return LabelSelector({}, tuple(expressions))


def _expression(term: re.Match[str]) -> Expression:
    if term["absent"]:
        return Expression(term["no"], Operator.DOES_NOT_EXIST)
    if term["equal"]:
        return Expression(term["key"], Operator.NOT_IN if term["equal"] == "!=" else Operator.IN, (term["value"],))
    if term["set"]:
        values = tuple(each.strip() for each in term["values"].split(","))
        return Expression(term["key"], Operator.IN if term["set"] == "in" else Operator.NOT_IN, values)
    return Expression(term["key"], Operator.EXISTS)


def mismatch(
    labels: Mapping[str, str], match_labels: Mapping[str, str], match_expressions: tuple[Expression, ...]
) -> str:
    """Return what the labels do not match, or ``""``."""
    wrong = [
        f"label {key} must be {value!r} but {actual(labels, key)}"
        for key, value in match_labels.items()
        if labels.get(key) != value
    ]
    wrong += [
        f"label {each.key} must be {each.requirement} but {actual(labels, each.key)}"
        for each in match_expressions
        if not each.matches(labels)
    ]
    return "; ".join(wrong)


def actual(entries: Mapping[str, str], key: str) -> str:
    """Return an entry's value, or that it is missing, as a part of a sentence."""
    return f"is {entries[key]!r}" if key in entries else "is not set"


def matches(
    labels: Mapping[str, str], match_labels: Mapping[str, str], match_expressions: tuple[Expression, ...]
) -> bool:
    """Whether the labels match the selector; an empty selector matches everything."""
    return all(labels.get(key) == value for key, value in match_labels.items()) and all(
        expression.matches(labels) for expression in match_expressions
    )
