"""The relay between two endpoints of the `h2` library: what passes, what is held, refused, reset and lost."""

import pytest

from governor.runtimeproxy.http2.streams import Outcome, Side
from tests.unit.runtimeproxy.http2.bed import ANSWER, HOOKED, OK, PLAIN, Bed, answer_all, request_fields


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_a_call_passes_with_its_fields_payload_and_trailers(bed: Bed) -> None:
    answer_all(bed.runtime, b"the answer")
    fields = request_fields(PLAIN, (b"grpc-timeout", b"2S"), (b"traceparent", b"00-1-2-03"))
    call = bed.caller.open(fields, b"the request")
    bed.settle()
    (seen,) = bed.runtime.messages.values()
    assert (seen.fields, bytes(seen.body)) == (fields, b"the request")
    assert (call.fields, bytes(call.body), call.trailers, call.ended) == (ANSWER, b"the answer", OK, True)
    assert [(event.outcome, event.status) for event in bed.ended()] == [(Outcome.COMPLETED, b"0")]
    bed.check_balanced()


def test_a_held_request_is_unknown_to_the_runtime_until_it_is_released(bed: Bed) -> None:
    answer_all(bed.runtime)
    call = bed.caller.open(request_fields(HOOKED), b"held")
    bed.settle()
    (requested,) = bed.requested()
    assert (requested.path, requested.body) == (HOOKED, b"held")
    assert bed.runtime.messages == {}
    assert bed.relay.release(requested.stream)
    bed.settle()
    (seen,) = bed.runtime.messages.values()
    assert bytes(seen.body) == b"held"
    assert call.trailers == OK
    bed.check_balanced()


@pytest.mark.parametrize("size", [0, 1, 5, 65_535, 1_000_000])
def test_a_held_request_can_become_longer_or_shorter(bed: Bed, size: int) -> None:
    answer_all(bed.runtime)
    call = bed.caller.open(request_fields(HOOKED), b"x" * 70_000)
    bed.settle()
    (requested,) = bed.requested()
    assert requested.body == b"x" * 70_000
    bed.relay.release(requested.stream, b"y" * size)
    bed.settle()
    (seen,) = bed.runtime.messages.values()
    assert bytes(seen.body) == b"y" * size
    assert call.ended
    bed.check_balanced()


def test_a_held_response_reaches_the_client_when_it_is_released(bed: Bed) -> None:
    answer_all(bed.runtime, b"z" * 300_000)
    call = bed.caller.open(request_fields(HOOKED), b"held")
    bed.settle()
    bed.relay.release(1, hold_response=True)
    bed.settle()
    (responded,) = bed.responded()
    assert (responded.fields, responded.body, responded.trailers) == (ANSWER, b"z" * 300_000, OK)
    assert (call.heads, bytes(call.body), call.ended) == ([], b"", False)
    assert bed.relay.release_response(1)
    bed.settle()
    assert (call.fields, bytes(call.body), call.trailers) == (ANSWER, b"z" * 300_000, OK)
    bed.check_balanced()


def test_a_refused_request_is_answered_with_the_status_and_never_seen_by_the_runtime(bed: Bed) -> None:
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
    assert [event.outcome for event in bed.ended()] == [Outcome.REFUSED]
    bed.check_balanced()


def test_a_lost_upstream_answers_every_open_stream_with_unavailable(bed: Bed) -> None:
    calls = [bed.caller.open(request_fields(PLAIN), b"x"), bed.caller.open(request_fields(HOOKED), b"x")]
    bed.settle()
    bed.relay.lost(Side.RUNTIME)
    bed.settle()
    assert [dict(call.fields)[b"grpc-status"] for call in calls] == [b"14", b"14"]
    assert bed.caller.told_to_go is not None
    assert bed.relay.finished(Side.CLIENT)
