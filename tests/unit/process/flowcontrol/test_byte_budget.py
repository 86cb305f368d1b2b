"""The budget of bytes in memory: shares grow and shrink, the sum is limited, and every exit frees the share."""

import pytest

from governor.errors import GovernorError, Kind
from governor.process.flowcontrol.byte_budget import ByteBudget, Reservation


def test_the_sum_of_all_shares_is_limited() -> None:
    budget = ByteBudget(10)
    with Reservation(budget) as one, Reservation(budget) as two:
        one.resize(6)
        two.resize(4)
        with pytest.raises(GovernorError, match="retry in a moment") as caught:
            two.resize(5)
        assert budget.used_bytes == 10
        one.resize(2)
        two.resize(8)
    assert (caught.value.kind, caught.value.code) == (Kind.UNAVAILABLE, "busy")
    assert budget.used_bytes == 0


def test_a_failing_holder_frees_its_share() -> None:
    budget = ByteBudget(10)

    def exceed() -> None:
        with Reservation(budget) as held:
            held.resize(10)
            held.resize(11)

    with pytest.raises(GovernorError):
        exceed()
    assert budget.used_bytes == 0
