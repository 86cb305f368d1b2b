"""Backoff delays: bounded, growing, jittered."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.process.flowcontrol.backoff import Backoff, Retries

limits = st.tuples(st.floats(0.001, 100), st.floats(0.001, 100_000)).map(
    lambda pair: Backoff(initial_s=min(pair), max_s=max(pair))
)


@given(limits, st.integers(1, 10_000), st.integers())
def test_a_delay_is_between_the_initial_delay_and_the_ceiling(backoff: Backoff, failures: int, seed: int) -> None:
    delay_s = backoff.delay_s(failures, random.Random(seed))
    assert backoff.initial_s <= delay_s <= backoff.ceiling_s(failures) <= backoff.max_s


@given(limits, st.integers(1, 200))
def test_the_ceiling_never_shrinks_with_more_failures(backoff: Backoff, failures: int) -> None:
    assert backoff.ceiling_s(failures) <= backoff.ceiling_s(failures + 1)


def test_the_ceiling_doubles_until_the_limit() -> None:
    backoff = Backoff(initial_s=1, max_s=10)
    assert [backoff.ceiling_s(failures) for failures in range(1, 6)] == [2, 4, 8, 10, 10]


def test_two_clients_have_different_delays() -> None:
    backoff = Backoff(initial_s=1, max_s=60)
    delays = {backoff.delay_s(5, random.Random(seed)) for seed in range(100)}
    assert len(delays) == 100


def test_a_reset_starts_over() -> None:
    retries = Retries(Backoff(initial_s=1, max_s=1000), random.Random(7))
    delays = [retries.next_delay_s() for _ in range(20)]
    retries.reset()
    assert max(delays) > 2
    assert retries.failures == 0
    assert retries.next_delay_s() <= 2


@pytest.mark.parametrize(("initial_s", "max_s"), [(0, 1), (-1, 1), (2, 1)])
def test_invalid_limits_are_rejected(initial_s: float, max_s: float) -> None:
    with pytest.raises(ValueError, match="initial_s"):
        Backoff(initial_s=initial_s, max_s=max_s)
