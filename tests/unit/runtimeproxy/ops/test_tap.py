"""Who looks at calls: told in order, bounded, and only while they look."""

import datetime
from contextlib import AsyncExitStack, aclosing
from typing import Any

import msgspec
import pytest

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.grpc.framing import wrap
from governor.runtimeproxy.http2.events import RequestData, StreamClosed, StreamOpened
from governor.runtimeproxy.http2.streams import Outcome
from governor.runtimeproxy.ops.control import CallFilter, Subject, TapCall, TapDropped, TapLine, TapOpened
from governor.runtimeproxy.ops.tap import ConnectionTap, Tap
from tests.unit.runtimeproxy.pods import MAIN, KnownPod

TIME = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
PATH = b"/runtime.v1.RuntimeService/"


def call(path: str = "/s/Version") -> TapCall:
    return TapCall(TIME, path, "completed", "OK")


def read(part: bytes) -> list[TapLine]:
    return [msgspec.json.decode(line, type=TapLine) for line in part.splitlines()]


async def test_the_first_who_looks_and_the_last_who_leaves_are_noticed() -> None:
    tap, changes = Tap(), list[bool]()

    def changed() -> int:
        changes.append(tap.is_open)
        return 3

    tap.changed = changed
    async with aclosing(tap.lines(CallFilter())) as first:
        assert changes == []
        assert read(await anext(first)) == [TapOpened(3)]
        async with aclosing(tap.lines(CallFilter())) as second:
            assert read(await anext(second)) == [TapOpened(0)]
            assert tap.readers == 2
    assert changes == [True, False]


async def test_each_is_told_what_it_wants_in_order() -> None:
    tap = Tap()
    async with aclosing(tap.lines(CallFilter(method="V*"))) as lines:
        await anext(lines)
        for path in ("/s/Version", "/s/Status", "/s/Verify"):
            tap.publish(call(path))
        assert read(await anext(lines)) == [call("/s/Version"), call("/s/Verify")]


async def test_who_does_not_keep_up_is_told_how_much_it_lost() -> None:
    tap = Tap()
    async with aclosing(tap.lines(CallFilter())) as lines:
        await anext(lines)
        for _ in range(1500):
            tap.publish(call())
        told = read(await anext(lines))
        assert (len(told) - 1, told[-1]) == (1024, TapDropped(476))
        tap.publish(call())
        assert read(await anext(lines)) == [call()]


async def test_one_reader_too_many_is_refused() -> None:
    tap = Tap()
    async with AsyncExitStack() as stack:
        for _ in range(8):
            tap.check_capacity()
            await anext(await stack.enter_async_context(aclosing(tap.lines(CallFilter()))))
        with pytest.raises(GovernorError) as caught:
            tap.check_capacity()
    assert caught.value.kind is Kind.EXHAUSTED
    tap.check_capacity()


async def seen(message: bytes, *events: Any, method: bytes = b"ContainerStatus") -> TapCall:
    """What is told of a stream on which this was said in two parts."""
    tap = Tap()
    watch = ConnectionTap(tap, KnownPod())
    async with aclosing(tap.lines(CallFilter())) as lines:
        await anext(lines)
        watch.opened(StreamOpened(1, PATH + method, [(b":path", PATH + method), *events]))
        watch.received(RequestData(1, message[:3]))
        watch.received(RequestData(1, message[3:]))
        watch.ended(StreamClosed(1, PATH + method, False, Outcome.COMPLETED, b"5"), None)
        [line] = read(await anext(lines))
    assert isinstance(line, TapCall)
    return line


async def test_a_stream_is_told_with_what_was_said_on_it() -> None:
    line = await seen(wrap(cri_pb2.ContainerStatusRequest(container_id="c1").SerializeToString()))
    assert (line.subject, line.status, line.outcome, line.held) == (MAIN, "NOT_FOUND", "completed", False)
    assert line.seconds is not None


@pytest.mark.parametrize(
    "message",
    [b"", b"\1\0\0\0\3abc", b"\0\0\0\0\5abc", wrap(b"\xff" * 9), wrap(bytes(70_000))],
    ids=["nothing", "compressed", "cut", "garbage", "long"],
)
async def test_what_cannot_be_read_is_told_without_its_subject(message: bytes) -> None:
    assert (await seen(message)).subject == Subject()


async def test_a_stream_that_was_there_before_has_no_duration() -> None:
    tap = Tap()
    async with aclosing(tap.lines(CallFilter())) as lines:
        await anext(lines)
        ConnectionTap(tap, KnownPod()).ended(
            StreamClosed(1, PATH + b"GetContainerEvents", False, Outcome.CANCELLED, b""), None
        )
        [line] = read(await anext(lines))
    assert isinstance(line, TapCall)
    assert (line.method, line.seconds, line.status, line.outcome) == ("GetContainerEvents", None, "", "cancelled")


async def test_nothing_is_made_of_a_stream_when_nobody_looks_any_more() -> None:
    watch = ConnectionTap(Tap(), KnownPod())
    watch.opened(StreamOpened(1, PATH, []))
    watch.ended(StreamClosed(1, PATH, False, Outcome.COMPLETED, b"0"), None)
    assert watch._streams == {}
