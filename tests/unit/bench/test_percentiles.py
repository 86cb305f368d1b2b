"""Percentiles of samples."""

import pytest

from bench.percentiles import p99


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (60, 60), (99, 99), (100, 99), (200, 198)])
def test_the_percentile_is_the_value_of_the_nearest_rank(count: int, expected: int) -> None:
    assert p99(range(count, 0, -1)) == expected
