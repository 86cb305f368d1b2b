"""Label selectors mean what they mean in Kubernetes."""

import msgspec
import pytest

from governor.values.selectors import Expression, Operator, matches

LABELS = {"region": "eu", "tier": "", "example.com/team": "orders"}


@pytest.mark.parametrize(
    ("match_labels", "expected"),
    [
        ({}, True),
        ({"region": "eu"}, True),
        ({"region": "us"}, False),
        ({"region": "eu", "tier": ""}, True),
        ({"region": "eu", "tier": "x"}, False),
        ({"tier": ""}, True),
        ({"absent": ""}, False),
        ({"example.com/team": "orders"}, True),
        ({"Region": "eu"}, False),
    ],
)
def test_all_labels_must_match(match_labels: dict[str, str], expected: bool) -> None:
    assert matches(LABELS, match_labels, ()) is expected


@pytest.mark.parametrize(
    ("key", "operator", "values", "expected"),
    [
        ("region", "In", ["eu", "us"], True),
        ("region", "In", ["us"], False),
        ("tier", "In", [""], True),
        ("absent", "In", ["eu"], False),
        ("absent", "In", [""], False),
        ("region", "NotIn", ["us"], True),
        ("region", "NotIn", ["eu", "us"], False),
        ("absent", "NotIn", ["eu"], True),
        ("absent", "NotIn", [""], True),
        ("region", "Exists", [], True),
        ("tier", "Exists", [], True),
        ("absent", "Exists", [], False),
        ("region", "DoesNotExist", [], False),
        ("tier", "DoesNotExist", [], False),
        ("absent", "DoesNotExist", [], True),
    ],
)
def test_an_expression_means_what_it_means_in_kubernetes(
    key: str, operator: str, values: list[str], expected: bool
) -> None:
    expression = Expression(key, Operator(operator), tuple(values))
    assert matches(LABELS, {}, (expression,)) is expected


def test_labels_and_expressions_must_all_hold() -> None:
    holds = Expression("region", Operator.EXISTS)
    fails = Expression("region", Operator.DOES_NOT_EXIST)
    assert matches(LABELS, {"region": "eu"}, (holds,))
    assert not matches(LABELS, {"region": "eu"}, (holds, fails))
    assert not matches(LABELS, {"region": "us"}, (holds,))
    assert not matches({}, {}, (holds,))
    assert matches({}, {}, ())


@pytest.mark.parametrize("operator", Operator)
def test_an_operator_has_values_exactly_when_it_compares_them(operator: Operator) -> None:
    compares = operator in (Operator.IN, Operator.NOT_IN)
    wrong = {"key": "region", "operator": operator.value, "values": [] if compares else ["eu"]}
    need = "needs values" if compares else "takes no values"
    with pytest.raises(msgspec.ValidationError, match=f"operator {operator} on label 'region' {need} - at `\\$"):
        msgspec.convert([wrong], list[Expression])
