"""The tap: calls are published in order, bounded, and only while there are readers."""

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
from tests.unit.runtimeproxy.pods import MAIN, PodRecords

TIME = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
PATH = b"/runtime.v1.RuntimeService/"


def call(path: str = "/s/Version") -> TapCall:
    return TapCall(TIME, path, "completed", "OK")


def read(part: bytes) -> list[TapLine]:
    return [msgspec.json.decode(line, type=TapLine) for line in part.splitlines()]


async def test_the_first_and_the_last_reader_trigger_changed() -> None:
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


async def test_a_reader_receives_matching_calls_in_order() -> None:
    tap = Tap()
    async with aclosing(tap.lines(CallFilter(method="V*"))) as lines:
        await anext(lines)
        for path in ("/s/Version", "/s/Status", "/s/Verify"):
            tap.publish(call(path))
        assert read(await anext(lines)) == [call("/s/Version"), call("/s/Verify")]


async def test_a_slow_reader_receives_the_number_of_dropped_calls() -> None:
    tap = Tap()
    async with aclosing(tap.lines(CallFilter())) as lines:
        await anext(lines)
        for _ in range(1500):
            tap.publish(call())
        lines_read = read(await anext(lines))
        assert (len(lines_read) - 1, lines_read[-1]) == (1024, TapDropped(476))
        tap.publish(call())
        assert read(await anext(lines)) == [call()]


async def test_one_reader_too_many_is_rejected() -> None:
    tap = Tap()
    async with AsyncExitStack() as stack:
        for _ in range(8):
            tap.check_capacity()
            await anext(await stack.enter_async_context(aclosing(tap.lines(CallFilter()))))
        with pytest.raises(GovernorError) as caught:
            tap.check_capacity()
    assert caught.value.kind is Kind.EXHAUSTED
    tap.check_capacity()


async def tapped(message: bytes, *events: Any, method: bytes = b"ContainerStatus") -> TapCall:
    """Return the published call of a stream whose request arrives in two parts."""
    tap = Tap()
    connection = ConnectionTap(tap, PodRecords())
    async with aclosing(tap.lines(CallFilter())) as lines:
        await anext(lines)
        connection.opened(StreamOpened(1, PATH + method, [(b":path", PATH + method), *events]))
        connection.received(RequestData(1, message[:3]))
        connection.received(RequestData(1, message[3:]))
        connection.ended(StreamClosed(1, PATH + method, False, Outcome.COMPLETED, b"5"), None)
        [line] = read(await anext(lines))
    assert isinstance(line, TapCall)
    return line


async def test_a_stream_is_published_with_its_subject() -> None:
    line = await tapped(wrap(cri_pb2.ContainerStatusRequest(container_id="c1").SerializeToString()))
    assert (line.subject, line.status, line.outcome, line.held) == (MAIN, "NOT_FOUND", "completed", False)
    assert line.seconds is not None


@pytest.mark.parametrize(
    "message",
    [b"", b"\1\0\0\0\3abc", b"\0\0\0\0\5abc", wrap(b"\xff" * 9), wrap(bytes(70_000))],
    ids=["nothing", "compressed", "cut", "garbage", "long"],
)
async def test_an_undecodable_request_has_no_subject(message: bytes) -> None:
    assert (await tapped(message)).subject == Subject()


async def test_a_stream_opened_before_the_tap_has_no_duration() -> None:
    tap = Tap()
    async with aclosing(tap.lines(CallFilter())) as lines:
        await anext(lines)
        ConnectionTap(tap, PodRecords()).ended(
            StreamClosed(1, PATH + b"GetContainerEvents", False, Outcome.CANCELLED, b""), None
        )
        [line] = read(await anext(lines))
    assert isinstance(line, TapCall)
    assert (line.method, line.seconds, line.status, line.outcome) == ("GetContainerEvents", None, "", "cancelled")


async def test_a_stream_that_ends_after_the_tap_is_discarded() -> None:
    connection = ConnectionTap(Tap(), PodRecords())
    connection.opened(StreamOpened(1, PATH, []))
    connection.ended(StreamClosed(1, PATH, False, Outcome.COMPLETED, b"0"), None)
    assert connection._streams == {}
