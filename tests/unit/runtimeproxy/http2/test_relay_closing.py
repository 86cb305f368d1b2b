"""Relayed streams that end early: cancelled, reset, or because a peer disconnects or sends GOAWAY."""

import h2.settings
import pytest
from hpack import Encoder

from governor.runtimeproxy.http2 import frames
from governor.runtimeproxy.http2.errors import ErrorCode
from governor.runtimeproxy.http2.events import StreamClosed
from governor.runtimeproxy.http2.relay import Relay
from governor.runtimeproxy.http2.streams import Outcome, Peer
from governor.runtimeproxy.http2.watches import WATCHES
from tests.unit.runtimeproxy.http2.bed import (
    ANSWER,
    HOOKED,
    IMAGES,
    OK,
    PLAIN,
    Bed,
    Message,
    answer_all,
    grpc_status,
    outcomes,
    request_fields,
)

Setting = h2.settings.SettingCodes


@pytest.fixture
def bed() -> Bed:
    return Bed()


@pytest.mark.parametrize("stage", ["opened", "held", "released", "responding", "response held"])
def test_a_call_cancelled_by_the_client_is_closed_at_both_peers(bed: Bed, stage: str) -> None:
    hooked = stage in {"held", "released", "response held"}
    if stage == "response held":
        answer_all(bed.runtime)
    call = bed.caller.open(request_fields(HOOKED if hooked else PLAIN), bytes(1000), ends=stage != "opened")
    bed.settle()
    if stage in {"released", "response held"}:
        bed.relay.release(1, hold_response=True)
    if stage == "responding":
        bed.runtime.send(bed.runtime.messages[1], ANSWER, b"part", ends=False)
    bed.settle()
    bed.caller.cancel(call)
    assert bed.settle() == [
        StreamClosed(1, HOOKED if hooked else PLAIN, hooked, Outcome.CANCELLED, bed.closed_streams()[0].grpc_status)
    ]
    assert [message.reset for message in bed.runtime.messages.values()] == {
        "held": [],
        "response held": [None],
    }.get(stage, [8])
    assert not bed.relay.release(1)
    assert not bed.relay.release_response(1)
    assert not bed.relay.refuse(1, 7, "too late")
    bed.check_balanced()


def test_a_call_reset_by_the_runtime_is_reset_at_the_client(bed: Bed) -> None:
    bed.runtime.on_complete = lambda message: bed.runtime.cancel(message, ErrorCode.ENHANCE_YOUR_CALM)
    call = bed.caller.open(request_fields(PLAIN), b"x")
    bed.settle()
    assert call.reset == ErrorCode.ENHANCE_YOUR_CALM
    assert outcomes(bed) == [Outcome.RESET]
    bed.check_balanced()


def test_a_response_followed_by_a_reset_stops_the_request(bed: Bed) -> None:
    """As gRPC servers do: the complete response, then RST_STREAM with NO_ERROR."""

    def answer(message: Message) -> None:
        bed.runtime.send(message, [*ANSWER, (b"grpc-status", b"3")])
        bed.runtime.cancel(message, 0)

    bed.runtime.on_request = answer
    call = bed.caller.open(request_fields(PLAIN), bytes(500_000))
    bed.settle()
    assert (grpc_status(call), call.ended, call.reset) == (b"3", True, 0)
    assert outcomes(bed) == [Outcome.COMPLETED]
    bed.check_balanced()


def test_a_client_that_reads_such_a_response_slowly_can_send_its_whole_request(bed: Bed) -> None:
    def answer(message: Message) -> None:
        bed.runtime.send(message, ANSWER, bytes(65_600), trailers=OK)

    bed.runtime.on_request = answer
    bed.caller.reading = False
    call = bed.caller.open(request_fields(PLAIN), b"begins", ends=False)
    bed.settle()
    bed.runtime.cancel(bed.runtime.messages[1], 0)
    bed.settle()
    bed.caller.finish(call, bytes(300_000))
    bed.settle()
    assert (len(call.unsent), call.trailers, bed.relay.streams) == (0, None, 1)
    bed.caller.reading = True
    bed.caller.resume_reading()
    bed.settle()
    assert (len(call.body), call.trailers) == (65_600, OK)
    bed.check_balanced()


def test_open_streams_of_a_lost_upstream_end_with_unavailable(bed: Bed) -> None:
    calls = [
        bed.caller.open(request_fields(PLAIN), b"waits for an answer"),
        bed.caller.open(request_fields(HOOKED), b"held"),
        bed.caller.open(request_fields(PLAIN), b"not complete", ends=False),
        bed.caller.open(request_fields(PLAIN), b"answered in part"),
    ]
    bed.settle()
    bed.runtime.send(bed.runtime.messages[5], ANSWER, bytes(100), ends=False)
    bed.settle()
    bed.relay.connection_lost(Peer.RUNTIME)
    bed.settle()
    assert [grpc_status(call) for call in calls] == [b"14"] * 4
    assert [call.ended for call in calls] == [True] * 4
    assert len(calls[3].body) == 100
    assert outcomes(bed) == [Outcome.REFUSED] * 4
    assert bed.caller.goaway_received == (7, 0)
    assert bed.relay.should_close(Peer.CLIENT)


def test_a_complete_response_of_a_lost_upstream_still_reaches_the_client(bed: Bed) -> None:
    answer_all(bed.runtime)
    held = bed.caller.open(request_fields(HOOKED), b"x")
    bed.settle()
    bed.relay.release(held.stream_id, hold_response=True)
    bed.settle()
    bed.relay.connection_lost(Peer.RUNTIME)
    assert bed.settle() == []
    assert bed.relay.release_response(held.stream_id)
    bed.settle()
    assert held.trailers == OK
    assert bed.relay.should_close(Peer.CLIENT)


@pytest.mark.parametrize("goes_away", [True, False])
def test_a_queued_refusal_is_not_replaced_when_the_upstream_is_lost(bed: Bed, goes_away: bool) -> None:
    bed.caller.reading = False
    call = bed.caller.open(request_fields(PLAIN), b"x")
    bed.settle()
    bed.runtime.send(bed.runtime.messages[1], ANSWER, bytes(70_000), ends=False)
    bed.settle()
    assert bed.relay.refuse(1, 4, "too late")
    if goes_away:
        bed.relay.receive(Peer.RUNTIME, frames.goaway(0, 0))
    else:
        bed.relay.connection_lost(Peer.RUNTIME)
    bed.settle()
    assert not call.ended
    bed.caller.reading = True
    bed.caller.resume_reading()
    bed.settle()
    assert (grpc_status(call), len(call.body), call.reset) == (b"4", 70_000, None)


def test_losing_one_upstream_does_not_affect_streams_of_the_other() -> None:
    bed = Bed(images=True)
    plain, images = bed.caller.open(request_fields(PLAIN), b"x"), bed.caller.open(request_fields(IMAGES), b"x")
    bed.settle()
    bed.relay.connection_lost(Peer.IMAGES)
    bed.settle()
    assert (grpc_status(images), plain.ended) == (b"14", False)
    late = bed.caller.open(request_fields(PLAIN), b"x")
    bed.settle()
    assert late.reset == ErrorCode.REFUSED_STREAM
    assert not bed.relay.should_close(Peer.CLIENT)
    bed.runtime.send(bed.runtime.messages[1], ANSWER, b"x", trailers=OK)
    bed.settle()
    assert plain.trailers == OK
    assert bed.relay.should_close(Peer.CLIENT)
    assert bed.relay.should_close(Peer.RUNTIME)


def test_streams_after_an_upstreams_goaway_are_refused_and_earlier_ones_complete(bed: Bed) -> None:
    calls = [bed.caller.open(request_fields(path), b"x") for path in (PLAIN, PLAIN, HOOKED)]
    bed.settle()
    bed.relay.receive(Peer.RUNTIME, frames.goaway(1, 0))
    bed.settle()
    assert [call.reset for call in calls] == [None, ErrorCode.REFUSED_STREAM, None]
    assert bed.caller.goaway_received == (5, 0)
    assert bed.relay.release(5)
    bed.settle()
    assert calls[2].reset == ErrorCode.REFUSED_STREAM
    bed.runtime.send(bed.runtime.messages[1], ANSWER, b"x", trailers=OK)
    bed.settle()
    assert calls[0].trailers == OK
    assert bed.relay.should_close(Peer.CLIENT)


def test_a_queued_stream_is_refused_on_an_upstreams_goaway(bed: Bed) -> None:
    bed.settle()
    bed.runtime.change({Setting.MAX_CONCURRENT_STREAMS: 1})
    bed.settle()
    calls = [bed.caller.open(request_fields(PLAIN), b"x") for _ in range(2)]
    bed.settle()
    bed.relay.receive(Peer.RUNTIME, frames.goaway(2**31 - 1, 0))
    bed.settle()
    assert [call.reset for call in calls] == [None, ErrorCode.REFUSED_STREAM]


def test_the_calls_of_a_lost_client_are_cancelled(bed: Bed) -> None:
    for path in (PLAIN, HOOKED, PLAIN):
        bed.caller.open(request_fields(path), b"x")
    bed.settle()
    bed.relay.connection_lost(Peer.CLIENT)
    bed.runtime.receive(bed.relay.data_to_send(Peer.RUNTIME))
    assert [message.reset for message in bed.runtime.messages.values()] == [ErrorCode.CANCEL] * 2
    assert [event.outcome for event in bed.relay.events() if isinstance(event, StreamClosed)] == [Outcome.CANCELLED] * 3
    assert bed.relay.should_close(Peer.RUNTIME)
    assert bed.relay.streams == bed.relay.held_bytes == 0


def test_a_client_that_sent_goaway_gets_its_last_responses(bed: Bed) -> None:
    call = bed.caller.open(request_fields(PLAIN), b"x")
    bed.settle()
    bed.relay.receive(Peer.CLIENT, frames.goaway(0, 0))
    bed.settle()
    assert not bed.relay.should_close(Peer.CLIENT)
    bed.runtime.send(bed.runtime.messages[1], ANSWER, b"x", trailers=OK)
    bed.settle()
    assert call.trailers == OK
    assert bed.relay.should_close(Peer.CLIENT)
    assert bed.relay.should_close(Peer.RUNTIME)


def test_a_draining_relay_refuses_streams_and_closes_after_its_last(bed: Bed) -> None:
    call = bed.caller.open(request_fields(HOOKED), b"x")
    bed.settle()
    bed.relay.drain()
    bed.relay.drain()
    late = bed.caller.open(request_fields(PLAIN), bytes(1000))
    bed.settle()
    assert bed.caller.goaway_received == (1, 0)
    assert late.reset == ErrorCode.REFUSED_STREAM
    assert not bed.relay.should_close(Peer.CLIENT)
    bed.relay.refuse(1, 7, "no")
    bed.settle()
    assert call.ended
    assert bed.relay.should_close(Peer.CLIENT)


def test_the_client_preface_is_awaited_before_a_draining_relay_closes(bed: Bed) -> None:
    bed.relay.drain()
    greeting = bed.caller.connection.data_to_send()
    bed.relay.data_to_send(Peer.CLIENT)
    assert not bed.relay.should_close(Peer.CLIENT)
    bed.relay.receive(Peer.CLIENT, greeting)
    bed.relay.data_to_send(Peer.CLIENT)
    assert bed.relay.should_close(Peer.CLIENT)


@pytest.mark.parametrize("path", [PLAIN, HOOKED])
def test_an_end_in_an_empty_data_frame_is_forwarded_as_one_after_queueing(path: bytes) -> None:
    relay = Relay(lambda path: path == HOOKED)
    block = Encoder().encode(request_fields(path))
    relay.receive(Peer.CLIENT, frames.PREFACE + frames.settings([]))
    relay.receive(Peer.CLIENT, frames.headers(1, block, end_stream=False, max_frame_size=16_384))
    relay.receive(Peer.CLIENT, frames.frame(frames.DATA, frames.END_STREAM, 1))
    if path == HOOKED:
        assert relay.release(1)
    relay.attach(Peer.RUNTIME)
    relay.receive(Peer.RUNTIME, frames.settings([]))
    sent = frames.FrameReader(preface=True).feed(relay.data_to_send(Peer.RUNTIME))
    of_stream = [(kind, flags) for kind, flags, stream, _ in sent if stream == 1]
    assert of_stream == [(frames.HEADERS, frames.END_HEADERS), (frames.DATA, frames.END_STREAM)]


def test_a_response_ended_by_empty_data_does_not_become_trailers_only(bed: Bed) -> None:
    call = bed.caller.open(request_fields(HOOKED), b"x")
    bed.settle()
    bed.relay.release(call.stream_id, hold_response=True)
    bed.settle()
    block = Encoder().encode(ANSWER)
    bed.relay.receive(Peer.RUNTIME, frames.headers(1, block, end_stream=False, max_frame_size=16_384))
    bed.relay.receive(Peer.RUNTIME, frames.frame(frames.DATA, frames.END_STREAM, 1))
    bed.relay.data_to_send(Peer.CLIENT)
    assert bed.relay.release_response(call.stream_id)
    sent = frames.FrameReader(preface=False).feed(bed.relay.data_to_send(Peer.CLIENT))
    assert [(kind, flags) for kind, flags, _, _ in sent] == [
        (frames.HEADERS, frames.END_HEADERS),
        (frames.DATA, frames.END_STREAM),
    ]


def test_a_drain_can_end_watches_and_lets_calls_finish(bed: Bed) -> None:
    call = bed.caller.open(request_fields(PLAIN), b"slow")
    watch = bed.caller.open(request_fields(min(WATCHES)), b"watch")
    bed.settle()
    bed.runtime.send(bed.runtime.messages[watch.stream_id], ANSWER, b"event", ends=False)
    bed.settle()

    bed.relay.drain(end_watches=True)
    bed.settle()

    assert (grpc_status(watch), watch.ended, bytes(watch.body)) == (b"14", True, b"event")
    assert bed.runtime.messages[watch.stream_id].reset == ErrorCode.CANCEL
    bed.runtime.send(bed.runtime.messages[call.stream_id], ANSWER, b"done", trailers=OK)
    bed.settle()
    assert (bytes(call.body), call.trailers) == (b"done", OK)
    bed.check_balanced()
