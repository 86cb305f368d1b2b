"""Requests and responses held by the relay: released, rewritten, refused, and limited in total."""

import h2.settings
import pytest

from governor.runtimeproxy.http2.connection import Limits
from governor.runtimeproxy.http2.errors import ErrorCode
from governor.runtimeproxy.http2.streams import Outcome
from tests.unit.runtimeproxy.http2.bed import (
    ANSWER,
    HOOKED,
    OK,
    PLAIN,
    Bed,
    answer_all,
    grpc_status,
    outcomes,
    request_fields,
)

Setting = h2.settings.SettingCodes


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_a_held_request_is_not_forwarded_until_it_is_released(bed: Bed) -> None:
    answer_all(bed.runtime)
    call = bed.caller.open(request_fields(HOOKED), b"held")
    bed.settle()
    (requested,) = bed.held_requests()
    assert (requested.path, requested.body) == (HOOKED, b"held")
    assert bed.runtime.messages == {}
    assert bed.relay.release(requested.stream_id)
    bed.settle()
    (seen,) = bed.runtime.messages.values()
    assert bytes(seen.body) == b"held"
    assert call.trailers == OK
    bed.check_balanced()


@pytest.mark.parametrize("size", [0, 1, 5, 65_535, 1_000_000])
def test_a_held_request_can_be_released_with_a_body_of_any_size(bed: Bed, size: int) -> None:
    answer_all(bed.runtime)
    call = bed.caller.open(request_fields(HOOKED), b"x" * 70_000)
    bed.settle()
    (requested,) = bed.held_requests()
    assert requested.body == b"x" * 70_000
    bed.relay.release(requested.stream_id, b"y" * size)
    bed.settle()
    (seen,) = bed.runtime.messages.values()
    assert bytes(seen.body) == b"y" * size
    assert call.ended
    bed.check_balanced()


def test_a_held_response_reaches_the_client_when_it_is_released() -> None:
    bed = Bed(limits=Limits(stream_window=65_535, connection_window=65_535, max_held_response=300_000))
    answer_all(bed.runtime, b"z" * 300_000)
    call = bed.caller.open(request_fields(HOOKED), b"held")
    bed.settle()
    bed.relay.release(1, hold_response=True)
    bed.settle()
    (responded,) = bed.held_responses()
    assert (responded.fields, responded.body, responded.trailers) == (ANSWER, b"z" * 300_000, OK)
    assert (call.headers, bytes(call.body), call.ended) == ([], b"", False)
    assert bed.relay.release_response(1)
    bed.settle()
    assert (call.fields, bytes(call.body), call.trailers) == (ANSWER, b"z" * 300_000, OK)
    bed.check_balanced()


def test_a_refused_request_ends_with_the_status_and_is_not_forwarded(bed: Bed) -> None:
    call = bed.caller.open(request_fields(HOOKED), b"held")
    bed.settle()
    assert bed.relay.refuse(1, 9, "plugin «a» says: 100% no", b"\x00\x01")
    bed.settle()
    assert call.ended
    assert call.fields == [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"9"),
        (b"grpc-message", b"plugin %C2%ABa%C2%BB says: 100%25 no"),
        (b"grpc-status-details-bin", b"AAE"),
    ]
    assert bed.runtime.messages == {}
    assert [event.outcome for event in bed.closed_streams()] == [Outcome.REFUSED]
    bed.check_balanced()


def test_a_replaced_body_replaces_the_content_length(bed: Bed) -> None:
    bed.caller.open(request_fields(HOOKED, (b"content-length", b"3")), b"old")
    bed.settle()
    bed.relay.release(1, b"other")
    bed.settle()
    (seen,) = bed.runtime.messages.values()
    assert (dict(seen.fields)[b"content-length"], bytes(seen.body)) == (b"5", b"other")


def test_held_messages_of_16_mib_are_forwarded_through_small_windows() -> None:
    bed = Bed(limits=Limits(stream_window=65_535, connection_window=65_535, max_held_response=16 << 20))
    body, longer = bytes(16 << 20), bytes(17 << 20)
    answer_all(bed.runtime, body)
    call = bed.caller.open(request_fields(HOOKED), body)
    bed.settle()
    assert bed.relay.held_bytes == len(body)
    assert bed.relay.release(1, longer, hold_response=True)
    bed.settle()
    assert len(bed.runtime.messages[1].body) == len(longer)
    assert bed.relay.release_response(1)
    bed.settle()
    assert len(call.body) == len(body)
    bed.check_balanced()


def test_a_request_too_large_to_be_held_is_refused() -> None:
    bed = Bed(limits=Limits(stream_window=65_535, connection_window=65_535, max_held_body=1000))
    call = bed.caller.open(request_fields(HOOKED), bytes(1001))
    bed.settle()
    assert grpc_status(call) == b"8"
    assert call.ended
    assert outcomes(bed) == [Outcome.REFUSED]
    bed.check_balanced()


@pytest.mark.parametrize("size", [1001, 300_000])
def test_a_response_too_large_to_be_held_is_forwarded_unread(size: int) -> None:
    """The runtime has done its work: refusing the response would leave an orphan."""
    limits = Limits(stream_window=65_535, connection_window=65_535, max_held_body=1000, max_held_response=1000)
    bed = Bed(limits=limits)
    answer_all(bed.runtime, bytes(size))
    call = bed.caller.open(request_fields(HOOKED), b"held")
    bed.settle()
    bed.relay.release(1, hold_response=True)
    bed.settle()
    assert bed.held_responses() == []
    assert (call.fields, bytes(call.body), call.trailers) == (ANSWER, bytes(size), OK)
    assert outcomes(bed) == [Outcome.COMPLETED]
    assert not bed.relay.release_response(1)
    bed.check_balanced()


def test_the_limit_of_held_requests_never_refuses_a_response() -> None:
    bed = Bed(limits=Limits(stream_window=65_535, connection_window=65_535, max_held_total=1000))
    answer_all(bed.runtime, bytes(100))
    call = bed.caller.open(request_fields(HOOKED), bytes(10))
    bed.caller.open(request_fields(HOOKED), bytes(990))
    bed.settle()
    bed.relay.release(1, hold_response=True)
    bed.settle()
    (responded,) = bed.held_responses()
    assert len(responded.body) == 100
    bed.relay.release_response(1)
    bed.relay.release(3)
    bed.settle()
    assert (bytes(call.body), call.trailers) == (bytes(100), OK)
    bed.check_balanced()


def test_the_total_size_of_held_messages_is_limited() -> None:
    bed = Bed(limits=Limits(stream_window=65_535, connection_window=65_535, max_held_total=1000))
    calls = [bed.caller.open(request_fields(HOOKED), bytes(400)) for _ in range(3)]
    bed.settle()
    assert [grpc_status(call) for call in calls] == [b"none", b"none", b"8"]
    assert bed.relay.held_bytes == 800
    bed.relay.refuse(1, 7, "no")
    assert bed.relay.held_bytes == 400


def test_relays_share_the_limit_and_each_keeps_its_equal_part() -> None:
    limits = Limits(stream_window=65_535, connection_window=65_535, max_held_total=1000)
    beds: list[Bed] = []

    def total_held() -> tuple[int, int]:
        return sum(each.relay.held_bytes for each in beds), len(beds)

    beds += [Bed(limits=limits, total_held=total_held) for _ in range(2)]
    greedy, modest = beds
    calls = [greedy.caller.open(request_fields(HOOKED), bytes(450)) for _ in range(2)]
    greedy.settle()
    calls.append(modest.caller.open(request_fields(HOOKED), bytes(450)))
    modest.settle()
    calls.append(greedy.caller.open(request_fields(HOOKED), bytes(100)))
    greedy.settle()
    assert [grpc_status(call) for call in calls] == [b"none", b"none", b"none", b"8"]
    assert (greedy.relay.held_bytes, modest.relay.held_bytes) == (900, 450)


def test_held_streams_do_not_block_others(bed: Bed) -> None:
    answer_all(bed.runtime, bytes(100_000))
    held = [bed.caller.open(request_fields(HOOKED), bytes(100_000)) for _ in range(20)]
    others = [bed.caller.open(request_fields(PLAIN), bytes(100_000)) for _ in range(5)]
    bed.settle()
    assert all(call.trailers == OK for call in others)
    assert not any(call.headers for call in held)
    for call in held:
        bed.relay.release(call.stream_id, hold_response=True)
    bed.settle()
    late = bed.caller.open(request_fields(PLAIN), bytes(100_000))
    bed.settle()
    assert late.trailers == OK
    for call in held:
        bed.relay.release_response(call.stream_id)
    bed.settle()
    bed.check_balanced()


def test_a_held_response_does_not_count_as_an_open_upstream_stream(bed: Bed) -> None:
    bed.settle()
    bed.runtime.change({Setting.MAX_CONCURRENT_STREAMS: 1})
    bed.settle()
    answer_all(bed.runtime)
    for number in range(3):
        bed.caller.open(request_fields(HOOKED), b"x")
        bed.settle()
        assert bed.relay.release(2 * number + 1, hold_response=True)
        bed.settle()
    assert len(bed.held_responses()) == 3


@pytest.mark.parametrize("complete", [True, False])
def test_a_request_can_be_refused_before_or_after_it_is_complete(bed: Bed, complete: bool) -> None:
    call = bed.caller.open(request_fields(HOOKED), b"x", ends=complete)
    bed.settle()
    assert bed.relay.refuse(1, 4, "too late")
    assert not bed.relay.refuse(1, 4, "twice")
    bed.settle()
    assert (grpc_status(call), call.ended) == (b"4", True)
    assert call.reset == (None if complete else 0)
    bed.check_balanced()


def test_an_incomplete_request_cannot_be_released(bed: Bed) -> None:
    bed.caller.open(request_fields(HOOKED), b"x", ends=False)
    bed.settle()
    assert bed.held_requests() == []
    assert not bed.relay.release(1)


def test_refusing_a_released_call_cancels_it_at_the_runtime(bed: Bed) -> None:
    call = bed.caller.open(request_fields(HOOKED), b"x")
    bed.settle()
    bed.relay.release(1)
    bed.settle()
    assert bed.relay.refuse(1, 4, "deadline")
    bed.settle()
    assert grpc_status(call) == b"4"
    assert bed.runtime.messages[1].reset == ErrorCode.CANCEL
    bed.check_balanced()


def test_a_held_response_can_be_refused(bed: Bed) -> None:
    answer_all(bed.runtime, bytes(100))
    call = bed.caller.open(request_fields(HOOKED), b"x")
    bed.settle()
    bed.relay.release(1, hold_response=True)
    bed.settle()
    assert bed.relay.refuse(1, 13, "the hook failed")
    bed.settle()
    assert (grpc_status(call), bytes(call.body), call.ended) == (b"13", b"", True)
    bed.check_balanced()


def test_a_request_without_a_body_is_held_too(bed: Bed) -> None:
    bed.caller.open(request_fields(HOOKED))
    bed.settle()
    (requested,) = bed.held_requests()
    assert requested.body == b""
    bed.relay.release(1, b"now it has one")
    bed.settle()
    assert bytes(bed.runtime.messages[1].body) == b"now it has one"
