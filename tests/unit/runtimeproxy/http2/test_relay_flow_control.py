"""Credit while streams are open, and streams that wait for a window when a peer is lost."""

import random

import pytest

from governor.runtimeproxy.http2.streams import Outcome, Peer
from tests.unit.runtimeproxy.http2.bed import ANSWER, HOOKED, OK, PLAIN, Bed, answer_all, request_fields


def check_windows_full(bed: Bed, streams: int) -> None:
    """Assert that the streams are open at both peers, and that all windows are full."""
    endpoints = {Peer.CLIENT: bed.caller, Peer.RUNTIME: bed.runtime}
    for peer, flow_control in bed.relay.flow_controls().items():
        assert len(flow_control.streams) == streams
        assert flow_control.unread_bytes == 0
        assert flow_control.is_full
        for stream_id, windows in flow_control.streams.items():
            window = endpoints[peer].connection.local_flow_control_window(stream_id)
            assert min(windows.receive_window, flow_control.receive_window) == window


@pytest.mark.parametrize("padded", [False, True])
def test_forwarded_bytes_are_fully_credited_on_open_streams(padded: bool) -> None:
    bed = Bed(rng=random.Random(1))
    bed.caller.padded = bed.runtime.padded = padded
    bed.runtime.on_request = lambda message: bed.runtime.send(message, ANSWER, bytes(300_000), ends=False)
    calls = [bed.caller.open(request_fields(PLAIN), bytes(200_000), ends=False) for _ in range(2)]
    bed.settle()
    assert [len(call.body) for call in calls] == [300_000, 300_000]
    assert [len(message.body) for message in bed.runtime.messages.values()] == [200_000, 200_000]
    check_windows_full(bed, 2)


@pytest.mark.parametrize("padded", [False, True])
def test_an_incomplete_held_request_is_fully_credited(padded: bool) -> None:
    bed = Bed(rng=random.Random(1))
    bed.caller.padded = padded
    bed.caller.open(request_fields(HOOKED), bytes(300_000), ends=False)
    bed.settle()
    assert bed.relay.held_bytes == 300_000
    flow_control = bed.relay.flow_controls()[Peer.CLIENT]
    assert flow_control.unread_bytes == 0
    assert flow_control.is_full


def test_a_complete_response_to_an_open_request_survives_the_loss_of_its_upstream() -> None:
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


def test_window_updates_do_not_release_a_held_response() -> None:
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


def test_a_closed_stream_is_not_blocked_on_the_connection_window() -> None:
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
