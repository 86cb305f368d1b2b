"""Label selectors with the semantics of Kubernetes: all matchLabels and matchExpressions must match."""

import enum
from collections.abc import Mapping

import msgspec


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


def matches(
    labels: Mapping[str, str], match_labels: Mapping[str, str], match_expressions: tuple[Expression, ...]
) -> bool:
    """Whether the labels match the selector; an empty selector matches everything."""
    return all(labels.get(key) == value for key, value in match_labels.items()) and all(
        expression.matches(labels) for expression in match_expressions
    )
