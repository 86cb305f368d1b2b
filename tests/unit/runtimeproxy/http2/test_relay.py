"""The relay between `h2` endpoints: what is forwarded, and how streams share windows and upstreams."""

import gc

import h2.settings
import pytest
from hpack import Encoder, NeverIndexedHeaderTuple

from governor.runtimeproxy.http2 import frames
from governor.runtimeproxy.http2.connection import Limits
from governor.runtimeproxy.http2.events import RequestHeld, UpstreamNeeded
from governor.runtimeproxy.http2.frames import SETTINGS_ACK
from governor.runtimeproxy.http2.relay import Relay
from governor.runtimeproxy.http2.streams import Exchange, Outcome, Peer, Stream
from tests.unit.runtimeproxy.http2.bed import (
    ANSWER,
    HOOKED,
    IMAGES,
    OK,
    PLAIN,
    Bed,
    Endpoint,
    answer_all,
    grpc_status,
    outcomes,
    request_fields,
)

Setting = h2.settings.SettingCodes


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_a_call_is_forwarded_with_fields_payload_and_trailers(bed: Bed) -> None:
    answer_all(bed.runtime, b"the answer")
    fields = request_fields(PLAIN, (b"grpc-timeout", b"2S"), (b"traceparent", b"00-1-2-03"))
    call = bed.caller.open(fields, b"the request")
    bed.settle()
    (seen,) = bed.runtime.messages.values()
    assert (seen.fields, bytes(seen.body)) == (fields, b"the request")
    assert (call.fields, bytes(call.body), call.trailers, call.ended) == (ANSWER, b"the answer", OK, True)
    assert [(event.outcome, event.grpc_status) for event in bed.closed_streams()] == [(Outcome.COMPLETED, b"0")]
    bed.check_balanced()


def test_a_call_leaves_nothing_to_the_garbage_collector(bed: Bed) -> None:
    answer_all(bed.runtime, b"the answer")
    gc.collect()
    before = exchanges_in_memory()
    gc.disable()
    try:
        for path in (PLAIN, HOOKED):
            bed.caller.open(request_fields(path), b"the request")
            bed.settle()
            for held in [event for event in bed.events if isinstance(event, RequestHeld)]:
                assert bed.relay.release(held.stream_id)
            bed.settle()
        assert len(bed.closed_streams()) == 2
        assert exchanges_in_memory() == before
    finally:
        gc.enable()


def exchanges_in_memory() -> int:
    return sum(isinstance(each, Exchange | Stream) for each in gc.get_objects())


def test_a_never_indexed_field_stays_never_indexed(bed: Bed) -> None:
    bed.caller.open(request_fields(PLAIN, NeverIndexedHeaderTuple(b"authorization", b"bearer secret")))
    bed.settle()
    (seen,) = bed.runtime.messages.values()
    assert isinstance(seen.fields[-1], NeverIndexedHeaderTuple)


def test_large_header_lists_are_forwarded_in_continuation_frames(bed: Bed) -> None:
    large = [(b"x-%d" % number, bytes([97 + number]) * 9000) for number in range(2)]
    bed.runtime.on_complete = lambda message: bed.runtime.send(message, [*ANSWER, *large], b"x", trailers=[*OK, *large])
    call = bed.caller.open(request_fields(PLAIN, *large), b"x")
    for endpoint in (bed.caller, bed.runtime):
        endpoint.connection.decoder.max_header_list_size = 1 << 20
    bed.settle()
    assert bed.runtime.messages[1].fields == request_fields(PLAIN, *large)
    assert (call.fields, call.trailers) == ([*ANSWER, *large], [*OK, *large])


def test_streamed_responses_are_forwarded_as_they_arrive(bed: Bed) -> None:
    call = bed.caller.open(request_fields(PLAIN), b"events, please")
    bed.settle()
    (served,) = bed.runtime.messages.values()
    bed.runtime.send(served, ANSWER, b"first", ends=False)
    bed.settle()
    assert bytes(call.body) == b"first"
    served.unsent = memoryview(b"second")
    bed.runtime.pump(served)
    bed.settle()
    assert bytes(call.body) == b"firstsecond"
    served.sends_trailers = OK
    bed.runtime.finish(served)
    bed.settle()
    assert call.trailers == OK
    bed.check_balanced()


def test_a_response_may_end_before_its_request(bed: Bed) -> None:
    call = bed.caller.open(request_fields(PLAIN), b"question", ends=False)
    bed.settle()
    (served,) = bed.runtime.messages.values()
    bed.runtime.send(served, ANSWER, b"answer", trailers=OK)
    bed.settle()
    assert call.trailers == OK
    assert bed.relay.streams == 1
    bed.caller.finish(call, b"more")
    bed.settle()
    assert bytes(served.body) == b"questionmore"
    assert outcomes(bed) == [Outcome.COMPLETED]
    bed.check_balanced()


def test_a_trailers_only_response_is_forwarded(bed: Bed) -> None:
    only = [*ANSWER, (b"grpc-status", b"5"), (b"grpc-message", b"no such container")]
    bed.runtime.on_complete = lambda message: bed.runtime.send(message, only)
    call = bed.caller.open(request_fields(PLAIN), b"x")
    bed.settle()
    assert (call.fields, call.trailers, call.ended) == (only, None, True)
    assert [event.grpc_status for event in bed.closed_streams()] == [b"5"]


def test_a_slow_receiver_of_one_stream_does_not_block_others(bed: Bed) -> None:
    """The slow stream fills its own window, not the connection's."""
    bed.relay.receive(Peer.CLIENT, b"")
    slow = bed.caller.open(request_fields(PLAIN), b"slow")
    bed.settle()
    bed.caller.change({Setting.INITIAL_WINDOW_SIZE: 0})
    bed.settle()
    bed.runtime.send(bed.runtime.messages[1], ANSWER, bytes(500_000), trailers=OK)
    bed.settle()
    assert bed.relay.flow_controls()[Peer.RUNTIME].unread_bytes == 65_535
    assert bytes(slow.body) == b""
    bed.caller.change({Setting.INITIAL_WINDOW_SIZE: 65_535})
    bed.caller.reading = False
    bed.settle()
    bed.caller.reading = True
    answer_all(bed.runtime, b"quick")
    quick = bed.caller.open(request_fields(PLAIN), b"quick")
    bed.caller.resume_reading()
    bed.settle()
    assert (quick.trailers, slow.trailers) == (OK, OK)
    bed.check_balanced()


def test_credit_is_granted_only_for_forwarded_bytes(bed: Bed) -> None:
    bed.runtime.change({Setting.INITIAL_WINDOW_SIZE: 10})
    bed.settle()
    bed.runtime.change({Setting.INITIAL_WINDOW_SIZE: 10})
    bed.settle()
    call = bed.caller.open(request_fields(PLAIN), bytes(200_000))
    bed.runtime.reading = False
    bed.settle()
    assert len(call.unsent) == 200_000 - 65_535
    assert bed.relay.flow_controls()[Peer.CLIENT].unread_bytes == 65_535 - 10


def test_large_bodies_share_a_small_connection_window_round_robin(bed: Bed) -> None:
    for _ in range(4):
        bed.caller.open(request_fields(PLAIN), bytes(300_000))
    bed.runtime.reading = False
    bed.settle()
    bed.runtime.reading = True
    bed.runtime.resume_reading()
    bed._move()
    bed._move()
    assert len([message for message in bed.runtime.messages.values() if message.body]) == 4
    bed.settle()
    assert [len(message.body) for message in bed.runtime.messages.values()] == [300_000] * 4


def test_data_frames_respect_the_receivers_max_frame_size(bed: Bed) -> None:
    bed.runtime.change({Setting.MAX_FRAME_SIZE: 40_000})
    bed.settle()
    bed.runtime.change({Setting.MAX_FRAME_SIZE: 40_000})
    bed.settle()
    bed.caller.open(request_fields(HOOKED), b"x")
    bed.settle()
    bed.relay.release(1, bytes(60_000))
    sizes = [
        len(part) - frames.HEADER_SIZE for part in whole(bed.relay.data_to_send(Peer.RUNTIME)) if part[3] == frames.DATA
    ]
    assert sizes == [40_000, 20_000]


def whole(data: bytes) -> list[bytes]:
    parts = []
    while data:
        size = frames.HEADER_SIZE + int.from_bytes(data[:3])
        parts.append(data[:size])
        data = data[size:]
    return parts


def test_streams_queue_when_the_runtime_limits_concurrent_streams(bed: Bed) -> None:
    bed.settle()
    bed.runtime.change({Setting.MAX_CONCURRENT_STREAMS: 2})
    bed.settle()
    calls = [bed.caller.open(request_fields(PLAIN), bytes(1000)) for _ in range(5)]
    bed.settle()
    assert len(bed.runtime.messages) == 2
    bed.caller.cancel(calls[2])
    bed.settle()
    bed.runtime.send(bed.runtime.messages[1], ANSWER, b"x", trailers=OK)
    bed.settle()
    assert len(bed.runtime.messages) == 3
    bed.runtime.change({Setting.MAX_CONCURRENT_STREAMS: 9})
    answer_all(bed.runtime)
    bed.settle()
    assert len(bed.runtime.messages) == 4
    for message in list(bed.runtime.messages.values()):
        if not message.over:
            bed.runtime.send(message, ANSWER, b"x", trailers=OK)
    bed.settle()
    assert [call.trailers for call in calls] == [OK, OK, None, OK, OK]
    bed.check_balanced()


def test_image_calls_go_to_a_separate_image_service() -> None:
    bed = Bed(images=True)
    for endpoint in bed.upstreams.values():
        answer_all(endpoint)
    for path in (PLAIN, IMAGES, b"/runtime.v1alpha2.ImageService/PullImage", b"/runtime.v1.ImageServiceX/A", b"/x"):
        bed.caller.open(request_fields(path), b"x")
    bed.settle()
    seen = {
        peer: [dict(message.fields)[b":path"] for message in end.messages.values()]
        for peer, end in bed.upstreams.items()
    }
    assert seen == {
        Peer.RUNTIME: [PLAIN, b"/runtime.v1.ImageServiceX/A", b"/x"],
        Peer.IMAGES: [IMAGES, b"/runtime.v1alpha2.ImageService/PullImage"],
    }
    bed.check_balanced()


def test_image_calls_go_to_the_runtime_without_a_separate_image_service(bed: Bed) -> None:
    bed.caller.open(request_fields(IMAGES), b"x")
    bed.settle()
    assert len(bed.runtime.messages) == 1


def test_an_upstream_is_needed_once_its_first_stream_is_opened() -> None:
    bed = Bed(images=True, attach=False)
    calls = [bed.caller.open(request_fields(path), bytes(1000)) for path in (PLAIN, IMAGES, PLAIN)]
    bed.settle()
    assert bed.needed_upstreams() == [UpstreamNeeded(Peer.RUNTIME), UpstreamNeeded(Peer.IMAGES)]
    answer_all(bed.runtime)
    bed.relay.attach(Peer.RUNTIME)
    bed.relay.connection_lost(Peer.IMAGES, "connection refused")
    bed.settle()
    assert [grpc_status(call) for call in calls] == [b"0", b"14", b"0"]
    assert b"image service is not available: connection refused" in dict(calls[1].fields)[b"grpc-message"]
    assert bed.caller.goaway_received == (5, 0)


def test_each_peer_first_gets_our_settings_and_window() -> None:
    bed = Bed(limits=Limits(stream_window=100_000, connection_window=200_000, max_streams=7))
    greeting = bed.relay.data_to_send(Peer.CLIENT)
    settings = dict(frames.settings_in(whole(greeting)[0][9:]))
    assert settings == {
        frames.INITIAL_WINDOW_SIZE: 100_000,
        frames.MAX_CONCURRENT_STREAMS: 7,
        frames.MAX_HEADER_LIST_SIZE: 256 * 1024,
    }
    assert whole(greeting)[1] == frames.window_update(0, 200_000 - 65_535)
    to_runtime = bed.relay.data_to_send(Peer.RUNTIME)
    assert to_runtime.startswith(frames.PREFACE)
    assert dict(frames.settings_in(whole(to_runtime[24:])[0][9:]))[frames.ENABLE_PUSH] == 0


def test_windows_below_the_default_apply_only_after_the_settings_ack() -> None:
    bed = Bed(limits=Limits(stream_window=1000, connection_window=65_535))
    bed.caller = Endpoint(client=True)
    call = bed.caller.open(request_fields(HOOKED), bytes(60_000))
    bed.settle()
    assert [len(event.body) for event in bed.held_requests()] == [60_000]
    second = bed.caller.open(request_fields(HOOKED), bytes(60_000))
    bed.settle()
    assert [len(event.body) for event in bed.held_requests()] == [60_000] * 2
    for message in (call, second):
        bed.relay.refuse(message.stream_id, 7, "no")
    bed.settle()
    bed.check_balanced()


def test_buffered_chunks_do_not_keep_the_read_buffer_alive(bed: Bed) -> None:
    bed.runtime.change({Setting.INITIAL_WINDOW_SIZE: 0})
    bed.settle()
    bed.runtime.change({Setting.INITIAL_WINDOW_SIZE: 0})
    bed.settle()
    bed.caller.open(request_fields(PLAIN), bytes(30_000))
    bed.settle()
    (exchange,) = bed.relay._exchanges.by_id.values()
    assert sum(map(len, exchange.upstream.queued_data)) == exchange.upstream.buffered_bytes == 30_000
    assert all(isinstance(part, bytes) for part in exchange.upstream.queued_data)


def test_many_small_frames_are_merged_into_few_chunks(bed: Bed) -> None:
    bed.caller.open(request_fields(HOOKED), ends=False)
    bed.settle()
    for _ in range(20_000):
        bed.relay.receive(Peer.CLIENT, frames.frame(frames.DATA, 0, 1, b"x"))
    (exchange,) = bed.relay._exchanges.by_id.values()
    assert exchange.upstream.buffered_bytes == 20_000
    assert len(exchange.upstream.queued_data) < 10


def test_an_unsolicited_settings_ack_is_ignored(bed: Bed) -> None:
    bed.settle()
    bed.relay.receive(Peer.CLIENT, SETTINGS_ACK)
    assert bed.relay.flow_controls()[Peer.CLIENT].is_full


def test_no_upstream_stream_is_opened_before_the_runtimes_settings() -> None:
    relay = Relay(lambda _: False)
    encoder, reader = Encoder(), frames.FrameReader(preface=True)
    relay.receive(Peer.CLIENT, frames.PREFACE + frames.settings([]))
    for stream in (1, 3, 5):
        block = encoder.encode(request_fields(PLAIN))
        relay.receive(Peer.CLIENT, frames.headers(stream, block, end_stream=True, max_frame_size=16_384))
    relay.attach(Peer.RUNTIME)

    def opened() -> list[int]:
        return [
            stream for kind, _, stream, _ in reader.feed(relay.data_to_send(Peer.RUNTIME)) if kind == frames.HEADERS
        ]

    assert opened() == []
    relay.receive(Peer.RUNTIME, frames.settings([(frames.MAX_CONCURRENT_STREAMS, 2)]))
    assert opened() == [1, 3]
    answer = Encoder().encode([*ANSWER, *OK])
    relay.receive(Peer.RUNTIME, frames.headers(1, answer, end_stream=True, max_frame_size=16_384))
    assert opened() == [5]
