"""Differences as text."""

import pytest

from governor.values.difftext import difference_lines
from governor.values.treediff import Difference, Operation


@pytest.mark.parametrize(
    ("difference", "lines"),
    [
        (Difference("a", Operation.ADDED, new=1), ["+ a: 1"]),
        (Difference("a", Operation.REMOVED, old="x"), ['- a: "x"']),
        (Difference("a", Operation.CHANGED, 1, "1"), ['~ a: 1 -> "1"']),
        (Difference("a", Operation.CHANGED, [], None), ["~ a: [] -> null"]),
        (Difference("a", Operation.ADDED, new={"b": [1, 2]}), ["+ a:", "+   b:", "+   - 1", "+   - 2"]),
        (Difference("a", Operation.CHANGED, {"b": 1}, "x"), ["~ a:", "-   b: 1", "+   x"]),
        (Difference("a", Operation.REORDERED, ["x", "y"], ["y", "x"]), ["~ a: in another order: x, y -> y, x"]),
        (Difference("", Operation.REMOVED, old={"b": 1}), ["- (all):", "-   b: 1"]),
    ],
)
def test_a_scalar_difference_takes_one_line_and_a_larger_one_is_yaml_below_it(
    difference: Difference, lines: list[str]
) -> None:
    assert difference_lines(difference) == lines
