"""The bound on what strangers may ask for."""

import pytest

from governor.errors import GovernorError, Kind
from governor.process.clock import VirtualClock
from governor.server.identity.rate import Rate


async def test_a_burst_is_used_up_and_saved_up_again() -> None:
    clock = VirtualClock()
    rate = Rate(clock, per_s=2, burst=3)
    taken: list[Kind | None] = []
    for seconds in (0, 0, 0, 0, 0.5, 0, 100, 0, 0, 0):
        await clock.advance(seconds)
        try:
            rate.take()
        except GovernorError as error:
            taken.append(error.kind)
        else:
            taken.append(None)
    refused = Kind.UNAVAILABLE
    assert taken == [None, None, None, refused, None, refused, None, None, None, refused]


async def test_a_refused_request_costs_nothing() -> None:
    clock = VirtualClock()
    rate = Rate(clock, per_s=1, burst=1)
    rate.take()
    for _ in range(10):
        with pytest.raises(GovernorError):
            rate.take()
    await clock.advance(1)
    rate.take()
