"""Label selectors behave as in Kubernetes."""

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
def test_an_expression_behaves_as_in_kubernetes(key: str, operator: str, values: list[str], expected: bool) -> None:
    expression = Expression(key, Operator(operator), tuple(values))
    assert matches(LABELS, {}, (expression,)) is expected


def test_all_labels_and_expressions_must_match() -> None:
    match = Expression("region", Operator.EXISTS)
    mismatch = Expression("region", Operator.DOES_NOT_EXIST)
    assert matches(LABELS, {"region": "eu"}, (match,))
    assert not matches(LABELS, {"region": "eu"}, (match, mismatch))
    assert not matches(LABELS, {"region": "us"}, (match,))
    assert not matches({}, {}, (match,))
    assert matches({}, {}, ())


@pytest.mark.parametrize("operator", Operator)
def test_only_operators_that_compare_take_values(operator: Operator) -> None:
    compares = operator in (Operator.IN, Operator.NOT_IN)
    wrong = {"key": "region", "operator": operator.value, "values": [] if compares else ["eu"]}
    need = "needs values" if compares else "takes no values"
    with pytest.raises(msgspec.ValidationError, match=f"operator {operator} on label 'region' {need} - at `\\$"):
        msgspec.convert([wrong], list[Expression])
