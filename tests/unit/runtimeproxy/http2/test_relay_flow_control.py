"""What is owed while streams are open, and what becomes of them when a peer is lost before both directions ended."""

import random

import pytest

from governor.runtimeproxy.http2.streams import Outcome, Peer
from tests.unit.runtimeproxy.http2.bed import ANSWER, HOOKED, OK, PLAIN, Bed, answer_all, request_fields


def check_nothing_is_owed(bed: Bed, streams: int) -> None:
    """Streams are open at both peers, and each may send on them and on the connection what it could at first."""
    endpoints = {Peer.CLIENT: bed.caller, Peer.RUNTIME: bed.runtime}
    for peer, flow_control in bed.relay.flow_controls().items():
        assert len(flow_control.streams) == streams
        assert flow_control.unread_bytes == 0
        assert flow_control.is_full
        for stream_id, windows in flow_control.streams.items():
            window = endpoints[peer].connection.local_flow_control_window(stream_id)
            assert min(windows.receive_window, flow_control.receive_window) == window


@pytest.mark.parametrize("padded", [False, True])
def test_an_open_stream_owes_nothing_for_what_was_passed_on(padded: bool) -> None:
    bed = Bed(rng=random.Random(1))
    bed.caller.padded = bed.runtime.padded = padded
    bed.runtime.on_request = lambda message: bed.runtime.send(message, ANSWER, bytes(300_000), ends=False)
    calls = [bed.caller.open(request_fields(PLAIN), bytes(200_000), ends=False) for _ in range(2)]
    bed.settle()
    assert [len(call.body) for call in calls] == [300_000, 300_000]
    assert [len(message.body) for message in bed.runtime.messages.values()] == [200_000, 200_000]
    check_nothing_is_owed(bed, 2)


@pytest.mark.parametrize("padded", [False, True])
def test_a_request_that_is_held_and_not_complete_owes_nothing(padded: bool) -> None:
    bed = Bed(rng=random.Random(1))
    bed.caller.padded = padded
    bed.caller.open(request_fields(HOOKED), bytes(300_000), ends=False)
    bed.settle()
    assert bed.relay.held_bytes == 300_000
    flow_control = bed.relay.flow_controls()[Peer.CLIENT]
    assert flow_control.unread_bytes == 0
    assert flow_control.is_full


def test_a_whole_answer_to_an_unfinished_request_stays_when_its_upstream_is_lost() -> None:
    bed = Bed()
    bed.caller.reading = False
    bed.runtime.on_request = lambda message: bed.runtime.send(message, ANSWER, bytes(90_000), trailers=OK)
    call = bed.caller.open(request_fields(PLAIN), b"begun", ends=False)
    bed.settle()
    assert (len(call.body), call.trailers) == (65_535, None)
    bed.relay.connection_lost(Peer.RUNTIME)
    bed.caller.reading = True
    bed.caller.resume_reading()
    bed.settle()
    assert (len(call.body), call.trailers) == (90_000, OK)
    assert [(event.outcome, event.grpc_status) for event in bed.closed_streams()] == [(Outcome.COMPLETED, b"0")]


def test_a_held_response_waits_for_its_release_whatever_the_client_grants() -> None:
    bed = Bed()
    answer_all(bed.runtime)
    call = bed.caller.open(request_fields(HOOKED), b"x")
    bed.settle()
    bed.relay.release(call.stream_id, hold_response=True)
    bed.settle()
    bed.caller.connection.increment_flow_control_window(1000, call.stream_id)
    bed.caller.connection.increment_flow_control_window(1000)
    bed.settle()
    assert (call.headers, bytes(call.body)) == ([], b"")
    assert bed.relay.release_response(call.stream_id)
    bed.settle()
    assert (bytes(call.body), call.trailers) == (b"answer", OK)


def test_a_stream_that_is_over_does_not_wait_for_the_connection_any_more() -> None:
    bed = Bed()
    answer_all(bed.runtime, bytes(70_000))
    bed.caller.reading = False
    calls = [bed.caller.open(request_fields(PLAIN), b"x") for _ in range(2)]
    bed.settle()
    writer = bed.relay._exchanges.client.writer
    assert writer.blocked
    for call in calls:
        bed.caller.cancel(call)
    bed.settle()
    assert not writer.blocked
