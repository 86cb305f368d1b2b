"""The time limit of finalizers."""

import datetime

import pytest

from governor.kube.controller.finalizer import remaining_s

NOW = datetime.datetime(2026, 1, 1, 0, 5, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ("2026-01-01T00:05:00Z", 60.0),
        ("2026-01-01T00:04:30Z", 30.0),
        ("2026-01-01T00:00:00Z", -240.0),
        ("2026-01-01T01:04:30+01:00", 30.0),
        ("not a time", 60.0),
    ],
)
def test_the_limit_counts_from_the_request_to_delete(requested: str, expected: float) -> None:
    assert remaining_s(requested, 60.0, NOW) == expected
