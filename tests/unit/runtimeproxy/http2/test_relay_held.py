"""Requests and responses held by the relay: released, rewritten, refused, and limited in total."""

import h2.settings
import pytest
from hpack import NeverIndexedHeaderTuple

from governor.runtimeproxy.grpc.framing import wrap
from governor.runtimeproxy.http2.connection import Limits
from governor.runtimeproxy.http2.errors import ErrorCode
from governor.runtimeproxy.http2.events import RequestTooLarge
from governor.runtimeproxy.http2.held_budget import HeldBudget
from governor.runtimeproxy.http2.streams import Outcome, Peer
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


def test_a_never_indexed_field_stays_so_beside_a_replaced_body(bed: Bed) -> None:
    secret = NeverIndexedHeaderTuple(b"authorization", b"bearer secret")
    bed.caller.open(request_fields(HOOKED, (b"content-length", b"3"), secret), b"old")
    bed.settle()
    (held,) = bed.held_requests()
    assert bed.relay.release(held.stream_id, b"new body")
    bed.settle()
    (seen,) = bed.runtime.messages.values()
    assert [each for each in seen.fields if isinstance(each, NeverIndexedHeaderTuple)] == [secret]


def test_a_replaced_body_replaces_the_content_length(bed: Bed) -> None:
    bed.caller.open(request_fields(HOOKED, (b"content-length", b"3")), b"old")
    bed.settle()
    bed.relay.release(1, b"other")
    bed.settle()
    (seen,) = bed.runtime.messages.values()
    assert (dict(seen.fields)[b"content-length"], bytes(seen.body)) == (b"5", b"other")


def test_held_messages_of_16_mib_are_forwarded_through_small_windows() -> None:
    bed = Bed(
        limits=Limits(
            stream_window=65_535, connection_window=65_535, max_held_body=18 << 20, max_held_response=16 << 20
        )
    )
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


@pytest.mark.parametrize("announced", [True, False])
def test_a_request_too_large_to_be_held_is_reported_at_once_and_can_be_refused(announced: bool) -> None:
    bed = Bed(limits=Limits(stream_window=65_535, connection_window=65_535, max_held_body=1000))
    begun = wrap(bytes(2000))[:100] if announced else bytes(1001)
    call = bed.caller.open(request_fields(HOOKED), begun, ends=False)
    bed.settle()
    (event,) = (each for each in bed.events if isinstance(each, RequestTooLarge))
    assert (event.stream_id, event.path) == (call.stream_id, HOOKED)
    bed.relay.refuse(call.stream_id, 8, "too large")
    bed.settle()
    assert (grpc_status(call), call.ended) == (b"8", True)
    assert outcomes(bed) == [Outcome.REFUSED]
    bed.check_balanced()


def test_a_request_too_large_to_be_held_can_be_passed_on_as_it_arrives() -> None:
    bed = Bed(limits=Limits(stream_window=65_535, connection_window=65_535, max_held_body=1000))
    answer_all(bed.runtime, b"done")
    body = wrap(bytes(300_000))
    call = bed.caller.open(request_fields(HOOKED), body)
    bed.settle()
    assert bed.held_requests() == []
    assert bed.relay.held_bytes <= 65_535
    assert bed.relay.pass_on(call.stream_id)
    bed.settle()
    (seen,) = bed.runtime.messages.values()
    assert bytes(seen.body) == body
    (responded,) = bed.held_responses()
    assert responded.body == b"done"
    bed.relay.release_response(call.stream_id)
    bed.settle()
    assert call.trailers == OK
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
    bed = Bed(limits=Limits(stream_window=65_535, connection_window=65_535, max_held_total=3000))
    answer_all(bed.runtime, bytes(100))
    call = bed.caller.open(request_fields(HOOKED), wrap(bytes(5)))
    other = bed.caller.open(request_fields(HOOKED), wrap(bytes(980)))
    bed.settle()
    bed.relay.release(1, hold_response=True)
    bed.settle()
    (responded,) = bed.held_responses()
    assert len(responded.body) == 100
    bed.relay.release_response(1)
    bed.relay.release(other.stream_id)
    bed.settle()
    assert (bytes(call.body), call.trailers) == (bytes(100), OK)
    bed.check_balanced()


def test_requests_wait_for_memory_and_are_not_read_meanwhile() -> None:
    bed = Bed(limits=Limits(stream_window=65_535, connection_window=65_535, max_held_total=3 * 200_000))
    answer_all(bed.runtime)
    bodies = [wrap(bytes([number]) * 100_000) for number in range(4)]
    calls = [bed.caller.open(request_fields(HOOKED), body) for body in bodies]
    bed.settle()
    first = bed.held_requests()[0]
    assert [each.stream_id for each in bed.held_requests()] == [calls[0].stream_id]
    assert bed.relay.held_bytes <= len(bodies[0]) + 3 * 65_535
    for number in range(4):
        bed.relay.release(bed.held_requests()[number].stream_id)
        bed.settle()
    assert first.body == bodies[0]
    assert [each.body for each in bed.held_requests()] == bodies
    assert all(call.trailers == OK for call in calls)
    bed.check_balanced()


def test_a_request_that_fits_does_not_wait_for_a_larger_one() -> None:
    bed = Bed(limits=Limits(stream_window=65_535, connection_window=65_535, max_held_total=3 * 150_000))
    for size in (100_000, 90_000, 1000):
        bed.caller.open(request_fields(HOOKED), wrap(bytes(size)))
    bed.settle()
    assert [len(each.body) - 5 for each in bed.held_requests()] == [100_000, 1000]


@pytest.mark.parametrize("ending", ["refused", "cancelled", "lost"])
def test_memory_is_given_back_however_a_held_request_ends(ending: str) -> None:
    budget = HeldBudget(3 * 1000)
    one, other = (Bed(budget=budget) for _ in range(2))
    call = one.caller.open(request_fields(HOOKED), wrap(bytes(900)))
    one.settle()
    waiting = other.caller.open(request_fields(HOOKED), wrap(bytes(900)))
    other.settle()
    assert (len(one.held_requests()), other.held_requests(), budget.waiting) == (1, [], 1)
    if ending == "refused":
        one.relay.refuse(call.stream_id, 7, "no")
    elif ending == "cancelled":
        one.caller.cancel(call)
    else:
        one.relay.connection_lost(Peer.CLIENT)
    one.settle()
    other.settle()
    assert [each.stream_id for each in other.held_requests()] == [waiting.stream_id]
    assert budget.waiting == 0


def test_a_waiting_request_that_is_cancelled_waits_no_longer() -> None:
    bed = Bed(limits=Limits(stream_window=65_535, connection_window=65_535, max_held_total=3000))
    calls = [bed.caller.open(request_fields(HOOKED), wrap(bytes(900))) for _ in range(3)]
    bed.settle()
    bed.caller.cancel(calls[1])
    bed.settle()
    bed.relay.refuse(calls[0].stream_id, 7, "no")
    bed.settle()
    assert [each.stream_id for each in bed.held_requests()] == [calls[0].stream_id, calls[2].stream_id]
    bed.relay.refuse(calls[2].stream_id, 7, "no")
    bed.settle()
    bed.check_balanced()


def test_a_request_longer_than_announced_is_refused_when_memory_is_short() -> None:
    bed = Bed(limits=Limits(stream_window=65_535, connection_window=65_535, max_held_total=3000))
    call = bed.caller.open(request_fields(HOOKED), wrap(b"")[:5] + bytes(900), ends=False)
    bed.settle()
    bed.caller.finish(call, bytes(900))
    bed.settle()
    assert grpc_status(call) == b"8"


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
