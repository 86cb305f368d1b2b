"""The hub: waking, ending and presence."""

import asyncio

import pytest

from governor.errors import GovernorError, Kind
from governor.process.clock import VirtualClock
from governor.server.watch.hub import PROGRESS, Hub


@pytest.fixture
def hub() -> Hub:
    return Hub(VirtualClock())


async def test_a_wake_up_reaches_every_stream_of_its_topic_and_no_other(hub: Hub) -> None:
    with hub.open("r1", "a") as one, hub.open("r1", "b") as two, hub.open("r2", "c") as other:
        hub.wake("r1")
        assert await one.news(1)
        assert await two.news(1)
        assert not await other.news(0)


async def test_news_that_came_before_the_wait_is_not_lost(hub: Hub) -> None:
    with hub.open("r1", "a") as stream:
        hub.wake("r1")
        hub.wake("r1")
        assert await stream.news(1)
        assert not await stream.news(0)


async def test_news_wakes_a_waiting_stream(hub: Hub) -> None:
    with hub.open("r1", "a") as stream:
        waiting = asyncio.create_task(stream.news(10))
        await asyncio.sleep(0)
        hub.wake("r1")
        assert await waiting


async def test_an_ended_credential_closes_its_streams_and_opens_none(hub: Hub) -> None:
    with hub.open("r1", "a") as ended, hub.open("r1", "b") as other:
        hub.end("a")
        assert (ended.closed, other.closed) == (True, False)
        assert await ended.news(1)
    with pytest.raises(GovernorError) as caught, hub.open("r1", "a"):
        pass
    assert caught.value.kind is Kind.UNAUTHENTICATED


async def test_a_closed_hub_closes_all_and_opens_none(hub: Hub) -> None:
    with hub.open("r1", "a") as stream, hub.open(PROGRESS, "b") as progress:
        hub.close()
        assert stream.closed
        assert progress.closed
    with pytest.raises(GovernorError) as caught, hub.open("r1", "a"):
        pass
    assert caught.value.kind is Kind.UNAVAILABLE


async def test_presence_says_since_when() -> None:
    clock = VirtualClock()
    hub = Hub(clock)
    assert (hub.presence("r1").watching, hub.presence("r1").since) == (False, None)
    with hub.open("r1", "a"):
        began = clock.now()
        clock.jump(5)
        with hub.open("r1", "b"):
            assert (hub.presence("r1").watching, hub.presence("r1").since) == (True, began)
        assert hub.presence("r1").watching
        assert hub.open_watches() == 1
    assert (hub.presence("r1").watching, hub.presence("r1").since) == (False, clock.now())
    assert hub.open_watches() == 0
