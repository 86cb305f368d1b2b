"""The hub of event streams: waking, closing and presence."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from governor.errors import GovernorError, Kind
from governor.process.clock import VirtualClock
from governor.server.watch.hub import Hub, Stream, Watcher


@pytest.fixture
def hub() -> Hub:
    return Hub(VirtualClock())


async def is_woken(stream: Stream) -> bool:
    """Return whether a stream was woken since the last call."""
    waiting = asyncio.ensure_future(stream.wait())
    await asyncio.sleep(0)
    if not waiting.done():
        waiting.cancel()
        await asyncio.wait({waiting})
    return not waiting.cancelled()


async def test_waking_a_topic_wakes_all_its_streams_and_no_others(hub: Hub) -> None:
    with hub.open("r1", "a") as one, hub.open("r1", "b") as two, hub.open("r2", "c") as other:
        hub.wake("r1")
        assert await is_woken(one)
        assert await is_woken(two)
        assert not await is_woken(other)


async def test_a_wake_up_before_the_wait_is_not_lost(hub: Hub) -> None:
    with hub.open("r1", "a") as stream:
        hub.wake("r1")
        hub.wake("r1")
        assert await is_woken(stream)
        assert not await is_woken(stream)


async def test_a_wake_up_ends_the_wait(hub: Hub) -> None:
    with hub.open("r1", "a") as stream:
        waiting = asyncio.create_task(stream.wait())
        await asyncio.sleep(0)
        hub.wake("r1")
        await waiting


async def test_blocking_a_credential_closes_its_streams_and_rejects_new_ones(hub: Hub) -> None:
    with hub.open("r1", "a") as blocked, hub.open("r1", "b") as other:
        hub.block("a")
        assert (blocked.closed, other.closed) == (True, False)
        assert await is_woken(blocked)
    with pytest.raises(GovernorError) as caught, hub.open("r1", "a"):
        pass
    assert caught.value.kind is Kind.UNAUTHENTICATED


async def test_closing_the_hub_closes_all_streams_and_rejects_new_ones(hub: Hub) -> None:
    with hub.open("r1", "a") as stream, hub.open("revision/1", "b") as progress:
        hub.close()
        assert stream.closed
        assert progress.closed
    with pytest.raises(GovernorError) as caught, hub.open("r1", "a"):
        pass
    assert caught.value.kind is Kind.UNAVAILABLE


async def test_presence_has_the_time_of_the_last_change() -> None:
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


async def test_sessions_increase_over_watches_and_over_starts_of_the_server() -> None:
    clock, sessions = VirtualClock(), []
    for hub in (Hub(clock, 1), Hub(clock, 2)):
        for runtime in ("r1", "r2", "r1"):
            with hub.open(runtime, "a", Watcher("boot")) as stream:
                sessions.append(stream.session)
    assert sessions == sorted(set(sessions))


async def test_only_sessions_since_this_start_are_known(hub: Hub) -> None:
    assert not hub.is_session("r1", 1)
    with hub.open("r1", "a", Watcher("boot")) as first:
        pass
    with hub.open("r1", "a", Watcher("boot")) as second:
        known = [hub.is_session("r1", number) for number in (0, first.session, second.session, second.session + 1)]
    assert known == [False, True, True, False]
    assert not hub.is_session("r2", first.session)
    assert (hub.session_of("r1", "boot"), hub.session_of("r1", "other")) == (second.session, None)


async def test_only_a_report_of_the_newest_session_shows_what_the_agent_held_sequence(hub: Hub) -> None:
    with hub.open("r1", "a", Watcher("old", held_sequence=8)) as old:
        assert hub.presence("r1").held_sequence == 8
    with hub.open("r1", "a", Watcher("new", held_sequence=5)) as new:
        hub.note_held("r1", old.session, 8)
        assert hub.presence("r1").held_sequence == 5
        hub.note_held("r1", new.session, 6)
        assert hub.presence("r1").held_sequence == 6


async def test_what_an_agent_process_confirmed_stays_confirmed_on_its_next_watch(hub: Hub) -> None:
    with hub.open("r1", "a", Watcher("one")) as stream:
        hub.note_held("r1", stream.session, 5)
    known = [hub.is_confirmed("r1", *each) for each in (("one", 5), ("one", 4), ("other", 5))]
    assert known == [True, False, False]
    assert not hub.is_confirmed("r2", "one", 5)


async def test_a_refusal_is_remembered_until_a_watch_is_accepted(hub: Hub) -> None:
    with hub.followers.follow("revision/1", {"r1"}), hub.open("revision/1", "b") as progress:
        hub.note_refusal("r1", "upgrade the agent")
        assert await is_woken(progress)
    assert (hub.presence("r1").refusal, hub.presence("r2").refusal) == ("upgrade the agent", "")
    with hub.open("r1", "a", Watcher("b1")):
        assert hub.presence("r1").refusal == ""
    assert hub.presence("r1").refusal == ""


@pytest.mark.parametrize(
    ("credential", "epoch", "replaces"),
    [
        ("a", 8, True),
        ("a", 7, False),
        ("a", 6, False),
        ("a", 0, False),
        ("b", 8, False),
    ],
    ids=["later", "equal", "earlier", "without an epoch", "other credential"],
)
async def test_only_a_later_process_of_the_same_agent_replaces_a_watch(
    hub: Hub, credential: str, epoch: int, *, replaces: bool
) -> None:
    with hub.open("r1", "a", Watcher("one", "node-1", epoch=7)) as present:
        if replaces:
            with hub.open("r1", credential, Watcher("two", epoch=epoch)) as later:
                assert hub.session_of("r1", "two") == later.session
        else:
            with pytest.raises(GovernorError) as caught, hub.open("r1", credential, Watcher("two", epoch=epoch)):
                pass
            assert caught.value.code == "runtime-in-use"
            assert "on host 'node-1'" in caught.value.message
        assert present.closed is replaces


async def test_a_replaced_process_is_rejected_while_its_successor_watches(hub: Hub) -> None:
    with hub.open("r1", "a", Watcher("one", epoch=1)), hub.open("r1", "a", Watcher("two", epoch=2)) as successor:
        with pytest.raises(GovernorError) as caught, hub.open("r1", "a", Watcher("one", epoch=1)):
            pass
        assert caught.value.code == "runtime-in-use"
        assert not successor.closed


class Recorder:
    """The connection of a stream; records what is written."""

    on_lost: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.buffered = 0
        self.aborted = False

    def write_chunk(self, parts: Sequence[bytes]) -> None:
        self.chunks.append(b"".join(parts))

    def buffered_bytes(self) -> int:
        return self.buffered

    def abort(self) -> None:
        self.aborted = True

    def is_lost(self) -> bool:
        return False


async def test_nothing_is_written_after_the_end_of_a_stream(hub: Hub) -> None:
    """Its connection may carry the next request then."""
    outlet = Recorder()
    with hub.open("revision/1", "a", outlet=outlet) as stream:
        assert stream.keep_alive(b": one\n\n", 1, 30)
    assert stream.keep_alive(b": two\n\n", 2, 30)
    assert outlet.chunks == [b": one\n\n"]
    assert outlet.on_lost is None


async def test_a_stream_that_is_not_read_is_aborted_after_the_limit(hub: Hub) -> None:
    outlet = Recorder()
    with hub.open("r1", "a", outlet=outlet) as stream:
        outlet.buffered = 100
        assert [stream.keep_alive(b":\n\n", now_s, 30) for now_s in (0, 29)] == [True, True]
        outlet.buffered = 50
        assert [stream.keep_alive(b":\n\n", now_s, 30) for now_s in (31, 60)] == [True, True]
        aborted = [outlet.aborted]
        assert not stream.keep_alive(b":\n\n", 61, 30)
        aborted.append(outlet.aborted)
        assert stream.closed
    assert (aborted, outlet.chunks) == ([False, True], [])
