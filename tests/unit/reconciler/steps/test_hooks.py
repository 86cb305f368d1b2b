"""How long a hook that has failed is not run again."""

from datetime import UTC, datetime, timedelta

import pytest

from governor.reconciler.steps.hooks import retry_pause_s

BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(("failing_s", "pause_s"), [(0, 1), (1, 1), (5, 5), (200, 200), (4000, 300)])
def test_the_pause_grows_with_the_time_that_it_has_been_failing(failing_s: int, pause_s: int) -> None:
    assert retry_pause_s(BEGAN, BEGAN + timedelta(seconds=failing_s)) == pause_s
