"""The relay between two endpoints of the `h2` library: what passes, what is held, refused, reset and lost."""

import h2.settings
import pytest
from hpack import NeverIndexedHeaderTuple

from governor.runtimeproxy.http2 import frames
from governor.runtimeproxy.http2.events import Ended, Wanted
from governor.runtimeproxy.http2.faults import Code
from governor.runtimeproxy.http2.frames import SETTINGS_ACK
from governor.runtimeproxy.http2.limits import Limits
from governor.runtimeproxy.http2.streams import Outcome, Side
from tests.unit.runtimeproxy.http2.bed import (
    ANSWER,
    HOOKED,
    IMAGES,
    OK,
    PLAIN,
    Bed,
    Endpoint,
    Message,
    answer_all,
    request_fields,
)

Setting = h2.settings.SettingCodes


def grpc_status(message: Message) -> bytes:
    return dict(message.trailers or message.fields).get(b"grpc-status", b"none")


def outcomes(bed: Bed) -> list[Outcome]:
    return [event.outcome for event in bed.ended()]


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


def test_a_field_that_must_never_be_indexed_arrives_as_one(bed: Bed) -> None:
    bed.caller.open(request_fields(PLAIN, NeverIndexedHeaderTuple(b"authorization", b"bearer secret")))
    bed.settle()
    (seen,) = bed.runtime.messages.values()
    assert isinstance(seen.fields[-1], NeverIndexedHeaderTuple)


def test_large_header_lists_pass_in_continuation_frames(bed: Bed) -> None:
    large = [(b"x-%d" % number, bytes([97 + number]) * 9000) for number in range(2)]
    bed.runtime.on_complete = lambda message: bed.runtime.send(message, [*ANSWER, *large], b"x", trailers=[*OK, *large])
    call = bed.caller.open(request_fields(PLAIN, *large), b"x")
    for endpoint in (bed.caller, bed.runtime):
        endpoint.connection.decoder.max_header_list_size = 1 << 20
    bed.settle()
    assert bed.runtime.messages[1].fields == request_fields(PLAIN, *large)
    assert (call.fields, call.trailers) == ([*ANSWER, *large], [*OK, *large])


def test_a_stream_of_responses_passes_as_it_comes(bed: Bed) -> None:
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


def test_requests_and_responses_may_flow_at_once(bed: Bed) -> None:
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


def test_a_response_without_a_body_passes(bed: Bed) -> None:
    only = [*ANSWER, (b"grpc-status", b"5"), (b"grpc-message", b"no such container")]
    bed.runtime.on_complete = lambda message: bed.runtime.send(message, only)
    call = bed.caller.open(request_fields(PLAIN), b"x")
    bed.settle()
    assert (call.fields, call.trailers, call.ended) == (only, None, True)
    assert [event.status for event in bed.ended()] == [b"5"]


def test_a_released_request_with_a_declared_length_declares_the_new_one(bed: Bed) -> None:
    bed.caller.open(request_fields(HOOKED, (b"content-length", b"3")), b"old")
    bed.settle()
    bed.relay.release(1, b"other")
    bed.settle()
    (seen,) = bed.runtime.messages.values()
    assert (dict(seen.fields)[b"content-length"], bytes(seen.body)) == (b"5", b"other")


def test_a_held_message_of_16_mib_passes_both_ways_through_small_windows(bed: Bed) -> None:
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


@pytest.mark.parametrize("held", ["request", "response"])
def test_a_message_that_is_too_large_to_be_held_is_refused(held: str) -> None:
    bed = Bed(limits=Limits(stream_window=65_535, connection_window=65_535, held_body=1000))
    answer_all(bed.runtime, bytes(1001 if held == "response" else 5))
    call = bed.caller.open(request_fields(HOOKED), bytes(1001 if held == "request" else 5))
    bed.settle()
    bed.relay.release(1, hold_response=True)
    bed.settle()
    assert grpc_status(call) == b"8"
    assert call.ended
    assert outcomes(bed) == [Outcome.REFUSED]
    bed.check_balanced()


def test_all_held_messages_together_have_a_limit() -> None:
    bed = Bed(limits=Limits(stream_window=65_535, connection_window=65_535, held_bodies=1000))
    calls = [bed.caller.open(request_fields(HOOKED), bytes(400)) for _ in range(3)]
    bed.settle()
    assert [grpc_status(call) for call in calls] == [b"none", b"none", b"8"]
    assert bed.relay.held_bytes == 800
    bed.relay.refuse(1, 7, "no")
    assert bed.relay.held_bytes == 400


def test_relays_share_what_may_be_held_and_none_is_left_without_its_part() -> None:
    limits = Limits(stream_window=65_535, connection_window=65_535, held_bodies=1000)
    beds: list[Bed] = []

    def held_by_all() -> tuple[int, int]:
        return sum(each.relay.held_bytes for each in beds), len(beds)

    beds += [Bed(limits=limits, held_by_all=held_by_all) for _ in range(2)]
    greedy, modest = beds
    calls = [greedy.caller.open(request_fields(HOOKED), bytes(450)) for _ in range(2)]
    greedy.settle()
    calls.append(modest.caller.open(request_fields(HOOKED), bytes(450)))
    modest.settle()
    calls.append(greedy.caller.open(request_fields(HOOKED), bytes(100)))
    greedy.settle()
    assert [grpc_status(call) for call in calls] == [b"none", b"none", b"none", b"8"]
    assert (greedy.relay.held_bytes, modest.relay.held_bytes) == (900, 450)


def test_a_held_stream_keeps_no_other_waiting(bed: Bed) -> None:
    answer_all(bed.runtime, bytes(100_000))
    held = [bed.caller.open(request_fields(HOOKED), bytes(100_000)) for _ in range(20)]
    others = [bed.caller.open(request_fields(PLAIN), bytes(100_000)) for _ in range(5)]
    bed.settle()
    assert all(call.trailers == OK for call in others)
    assert not any(call.heads for call in held)
    for call in held:
        bed.relay.release(call.stream, hold_response=True)
    bed.settle()
    late = bed.caller.open(request_fields(PLAIN), bytes(100_000))
    bed.settle()
    assert late.trailers == OK
    for call in held:
        bed.relay.release_response(call.stream)
    bed.settle()
    bed.check_balanced()


def test_a_held_response_keeps_no_place_at_the_runtime(bed: Bed) -> None:
    bed.settle()
    bed.runtime.change({Setting.MAX_CONCURRENT_STREAMS: 1})
    bed.settle()
    answer_all(bed.runtime)
    for number in range(3):
        bed.caller.open(request_fields(HOOKED), b"x")
        bed.settle()
        assert bed.relay.release(2 * number + 1, hold_response=True)
        bed.settle()
    assert len(bed.responded()) == 3


def test_a_stream_whose_reader_is_slow_keeps_no_other_waiting(bed: Bed) -> None:
    """The slow one fills its own window, not the connection's."""
    bed.relay.receive(Side.CLIENT, b"")
    slow = bed.caller.open(request_fields(PLAIN), b"slow")
    bed.settle()
    bed.caller.change({Setting.INITIAL_WINDOW_SIZE: 0})
    bed.settle()
    bed.runtime.send(bed.runtime.messages[1], ANSWER, bytes(500_000), trailers=OK)
    bed.settle()
    assert bed.relay.ledgers()[Side.RUNTIME].outstanding == 65_535
    assert bytes(slow.body) == b""
    bed.caller.change({Setting.INITIAL_WINDOW_SIZE: 65_535})
    bed.caller.reading = False
    bed.settle()
    bed.caller.reading = True
    answer_all(bed.runtime, b"quick")
    quick = bed.caller.open(request_fields(PLAIN), b"quick")
    bed.caller.read_on()
    bed.settle()
    assert (quick.trailers, slow.trailers) == (OK, OK)
    bed.check_balanced()


def test_credit_waits_until_bytes_are_passed_on(bed: Bed) -> None:
    bed.runtime.change({Setting.INITIAL_WINDOW_SIZE: 10})
    bed.settle()
    bed.runtime.change({Setting.INITIAL_WINDOW_SIZE: 10})
    bed.settle()
    call = bed.caller.open(request_fields(PLAIN), bytes(200_000))
    bed.runtime.reading = False
    bed.settle()
    assert len(call.unsent) == 200_000 - 65_535
    assert bed.relay.ledgers()[Side.CLIENT].outstanding == 65_535 - 10


def test_large_bodies_share_a_small_connection_window_in_turns(bed: Bed) -> None:
    for _ in range(4):
        bed.caller.open(request_fields(PLAIN), bytes(300_000))
    bed.runtime.reading = False
    bed.settle()
    bed.runtime.reading = True
    bed.runtime.read_on()
    bed._move()
    bed._move()
    assert len([message for message in bed.runtime.messages.values() if message.body]) == 4
    bed.settle()
    assert [len(message.body) for message in bed.runtime.messages.values()] == [300_000] * 4


def test_data_is_cut_to_the_frames_that_the_receiver_takes(bed: Bed) -> None:
    bed.runtime.change({Setting.MAX_FRAME_SIZE: 40_000})
    bed.settle()
    bed.runtime.change({Setting.MAX_FRAME_SIZE: 40_000})
    bed.settle()
    bed.caller.open(request_fields(HOOKED), b"x")
    bed.settle()
    bed.relay.release(1, bytes(60_000))
    sizes = [
        len(part) - frames.HEADER_SIZE for part in whole(bed.relay.outgoing(Side.RUNTIME)) if part[3] == frames.DATA
    ]
    assert sizes == [40_000, 20_000]


def whole(data: bytes) -> list[bytes]:
    parts = []
    while data:
        size = frames.HEADER_SIZE + int.from_bytes(data[:3])
        parts.append(data[:size])
        data = data[size:]
    return parts


@pytest.mark.parametrize("stage", ["opened", "held", "released", "responding", "response held"])
def test_a_call_that_the_client_cancels_ends_everywhere(bed: Bed, stage: str) -> None:
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
    assert bed.settle() == [Ended(1, HOOKED if hooked else PLAIN, Outcome.CANCELLED, bed.ended()[0].status)]
    assert [message.reset for message in bed.runtime.messages.values()] == {
        "held": [],
        "response held": [None],
    }.get(stage, [8])
    assert not bed.relay.release(1)
    assert not bed.relay.release_response(1)
    assert not bed.relay.refuse(1, 7, "too late")
    bed.check_balanced()


def test_a_call_that_the_runtime_resets_is_reset_for_the_client(bed: Bed) -> None:
    bed.runtime.on_complete = lambda message: bed.runtime.cancel(message, Code.ENHANCE_YOUR_CALM)
    call = bed.caller.open(request_fields(PLAIN), b"x")
    bed.settle()
    assert call.reset == Code.ENHANCE_YOUR_CALM
    assert outcomes(bed) == [Outcome.RESET]
    bed.check_balanced()


def test_a_runtime_that_answers_and_reads_no_further_stops_the_client(bed: Bed) -> None:
    """As gRPC servers do: the whole answer, then RST_STREAM without an error."""

    def answer(message: Message) -> None:
        bed.runtime.send(message, [*ANSWER, (b"grpc-status", b"3")])
        bed.runtime.cancel(message, 0)

    bed.runtime.on_request = answer
    call = bed.caller.open(request_fields(PLAIN), bytes(500_000))
    bed.settle()
    assert (grpc_status(call), call.ended, call.reset) == (b"3", True, 0)
    assert outcomes(bed) == [Outcome.COMPLETED]
    bed.check_balanced()


def test_a_client_that_is_slow_to_read_such_an_answer_can_send_all_of_its_request(bed: Bed) -> None:
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
    bed.caller.read_on()
    bed.settle()
    assert (len(call.body), call.trailers) == (65_600, OK)
    bed.check_balanced()


@pytest.mark.parametrize("complete", [True, False])
def test_a_request_can_be_refused_before_and_after_it_is_complete(bed: Bed, complete: bool) -> None:
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
    assert bed.requested() == []
    assert not bed.relay.release(1)


def test_a_released_call_can_still_be_refused_and_is_cancelled_at_the_runtime(bed: Bed) -> None:
    call = bed.caller.open(request_fields(HOOKED), b"x")
    bed.settle()
    bed.relay.release(1)
    bed.settle()
    assert bed.relay.refuse(1, 4, "deadline")
    bed.settle()
    assert grpc_status(call) == b"4"
    assert bed.runtime.messages[1].reset == Code.CANCEL
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
    (requested,) = bed.requested()
    assert requested.body == b""
    bed.relay.release(1, b"now it has one")
    bed.settle()
    assert bytes(bed.runtime.messages[1].body) == b"now it has one"


def test_streams_wait_for_their_turn_when_the_runtime_takes_few_at_once(bed: Bed) -> None:
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


def test_image_calls_go_to_an_image_service_of_their_own() -> None:
    bed = Bed(images=True)
    for endpoint in bed.upstreams.values():
        answer_all(endpoint)
    for path in (PLAIN, IMAGES, b"/runtime.v1alpha2.ImageService/PullImage", b"/runtime.v1.ImageServiceX/A", b"/x"):
        bed.caller.open(request_fields(path), b"x")
    bed.settle()
    seen = {
        side: [dict(message.fields)[b":path"] for message in end.messages.values()]
        for side, end in bed.upstreams.items()
    }
    assert seen == {
        Side.RUNTIME: [PLAIN, b"/runtime.v1.ImageServiceX/A", b"/x"],
        Side.IMAGES: [IMAGES, b"/runtime.v1alpha2.ImageService/PullImage"],
    }
    bed.check_balanced()


def test_image_calls_go_to_the_runtime_if_it_has_no_image_service_beside_it(bed: Bed) -> None:
    bed.caller.open(request_fields(IMAGES), b"x")
    bed.settle()
    assert len(bed.runtime.messages) == 1


def test_an_upstream_is_asked_for_when_its_first_stream_comes() -> None:
    bed = Bed(images=True, attach=False)
    calls = [bed.caller.open(request_fields(path), bytes(1000)) for path in (PLAIN, IMAGES, PLAIN)]
    bed.settle()
    assert bed.wanted() == [Wanted(Side.RUNTIME), Wanted(Side.IMAGES)]
    answer_all(bed.runtime)
    bed.relay.attach(Side.RUNTIME)
    bed.relay.lost(Side.IMAGES, "nobody listens")
    bed.settle()
    assert [grpc_status(call) for call in calls] == [b"0", b"14", b"0"]
    assert b"image service is not available: nobody listens" in dict(calls[1].fields)[b"grpc-message"]
    assert bed.caller.told_to_go == (5, 0)


def test_a_lost_upstream_answers_every_open_stream_with_unavailable(bed: Bed) -> None:
    calls = [
        bed.caller.open(request_fields(PLAIN), b"waits for an answer"),
        bed.caller.open(request_fields(HOOKED), b"held"),
        bed.caller.open(request_fields(PLAIN), b"not complete", ends=False),
        bed.caller.open(request_fields(PLAIN), b"answered in part"),
    ]
    bed.settle()
    bed.runtime.send(bed.runtime.messages[5], ANSWER, bytes(100), ends=False)
    bed.settle()
    bed.relay.lost(Side.RUNTIME)
    bed.settle()
    assert [grpc_status(call) for call in calls] == [b"14"] * 4
    assert [call.ended for call in calls] == [True] * 4
    assert len(calls[3].body) == 100
    assert outcomes(bed) == [Outcome.REFUSED] * 4
    assert bed.caller.told_to_go == (7, 0)
    assert bed.relay.finished(Side.CLIENT)


def test_what_a_lost_upstream_answered_in_full_still_reaches_the_client(bed: Bed) -> None:
    answer_all(bed.runtime)
    held = bed.caller.open(request_fields(HOOKED), b"x")
    bed.settle()
    bed.relay.release(held.stream, hold_response=True)
    bed.settle()
    bed.relay.lost(Side.RUNTIME)
    assert bed.settle() == []
    assert bed.relay.release_response(held.stream)
    bed.settle()
    assert held.trailers == OK
    assert bed.relay.finished(Side.CLIENT)


@pytest.mark.parametrize("goes_away", [True, False])
def test_an_answer_that_waits_for_the_client_is_not_replaced_when_the_upstream_is_lost(
    bed: Bed, goes_away: bool
) -> None:
    bed.caller.reading = False
    call = bed.caller.open(request_fields(PLAIN), b"x")
    bed.settle()
    bed.runtime.send(bed.runtime.messages[1], ANSWER, bytes(70_000), ends=False)
    bed.settle()
    assert bed.relay.refuse(1, 4, "too late")
    if goes_away:
        bed.relay.receive(Side.RUNTIME, frames.goaway(0, 0))
    else:
        bed.relay.lost(Side.RUNTIME)
    bed.settle()
    assert not call.ended
    bed.caller.reading = True
    bed.caller.read_on()
    bed.settle()
    assert (grpc_status(call), len(call.body), call.reset) == (b"4", 70_000, None)


def test_one_lost_upstream_leaves_the_streams_of_the_other_alone() -> None:
    bed = Bed(images=True)
    plain, images = bed.caller.open(request_fields(PLAIN), b"x"), bed.caller.open(request_fields(IMAGES), b"x")
    bed.settle()
    bed.relay.lost(Side.IMAGES)
    bed.settle()
    assert (grpc_status(images), plain.ended) == (b"14", False)
    late = bed.caller.open(request_fields(PLAIN), b"x")
    bed.settle()
    assert late.reset == Code.REFUSED_STREAM
    assert not bed.relay.finished(Side.CLIENT)
    bed.runtime.send(bed.runtime.messages[1], ANSWER, b"x", trailers=OK)
    bed.settle()
    assert plain.trailers == OK
    assert bed.relay.finished(Side.CLIENT)
    assert bed.relay.finished(Side.RUNTIME)


def test_an_upstream_that_goes_away_ends_what_it_took_and_the_client_may_retry_the_rest(bed: Bed) -> None:
    calls = [bed.caller.open(request_fields(path), b"x") for path in (PLAIN, PLAIN, HOOKED)]
    bed.settle()
    bed.relay.receive(Side.RUNTIME, frames.goaway(1, 0))
    bed.settle()
    assert [call.reset for call in calls] == [None, Code.REFUSED_STREAM, None]
    assert bed.caller.told_to_go == (5, 0)
    assert bed.relay.release(5)
    bed.settle()
    assert calls[2].reset == Code.REFUSED_STREAM
    bed.runtime.send(bed.runtime.messages[1], ANSWER, b"x", trailers=OK)
    bed.settle()
    assert calls[0].trailers == OK
    assert bed.relay.finished(Side.CLIENT)


def test_a_stream_that_waits_for_its_turn_at_an_upstream_that_goes_away_can_be_retried_at_once(bed: Bed) -> None:
    bed.settle()
    bed.runtime.change({Setting.MAX_CONCURRENT_STREAMS: 1})
    bed.settle()
    calls = [bed.caller.open(request_fields(PLAIN), b"x") for _ in range(2)]
    bed.settle()
    bed.relay.receive(Side.RUNTIME, frames.goaway(2**31 - 1, 0))
    bed.settle()
    assert [call.reset for call in calls] == [None, Code.REFUSED_STREAM]


def test_a_client_that_is_lost_cancels_its_calls(bed: Bed) -> None:
    for path in (PLAIN, HOOKED, PLAIN):
        bed.caller.open(request_fields(path), b"x")
    bed.settle()
    bed.relay.lost(Side.CLIENT)
    bed.runtime.receive(bed.relay.outgoing(Side.RUNTIME))
    assert [message.reset for message in bed.runtime.messages.values()] == [Code.CANCEL] * 2
    assert [event.outcome for event in bed.relay.events() if isinstance(event, Ended)] == [Outcome.CANCELLED] * 3
    assert bed.relay.finished(Side.RUNTIME)
    assert bed.relay.streams == bed.relay.held_bytes == 0


def test_a_client_that_goes_away_gets_its_last_answers(bed: Bed) -> None:
    call = bed.caller.open(request_fields(PLAIN), b"x")
    bed.settle()
    bed.relay.receive(Side.CLIENT, frames.goaway(0, 0))
    bed.settle()
    assert not bed.relay.finished(Side.CLIENT)
    bed.runtime.send(bed.runtime.messages[1], ANSWER, b"x", trailers=OK)
    bed.settle()
    assert call.trailers == OK
    assert bed.relay.finished(Side.CLIENT)
    assert bed.relay.finished(Side.RUNTIME)


def test_a_retired_relay_takes_no_streams_and_ends_with_its_last(bed: Bed) -> None:
    call = bed.caller.open(request_fields(HOOKED), b"x")
    bed.settle()
    bed.relay.retire()
    bed.relay.retire()
    late = bed.caller.open(request_fields(PLAIN), bytes(1000))
    bed.settle()
    assert bed.caller.told_to_go == (1, 0)
    assert late.reset == Code.REFUSED_STREAM
    assert not bed.relay.finished(Side.CLIENT)
    bed.relay.refuse(1, 7, "no")
    bed.settle()
    assert call.ended
    assert bed.relay.finished(Side.CLIENT)


def test_a_client_that_has_not_spoken_when_its_relay_is_retired_is_waited_for(bed: Bed) -> None:
    bed.relay.retire()
    greeting = bed.caller.connection.data_to_send()
    bed.relay.outgoing(Side.CLIENT)
    assert not bed.relay.finished(Side.CLIENT)
    bed.relay.receive(Side.CLIENT, greeting)
    bed.relay.outgoing(Side.CLIENT)
    assert bed.relay.finished(Side.CLIENT)


def test_each_peer_is_told_our_windows_and_limits_first() -> None:
    bed = Bed(limits=Limits(stream_window=100_000, connection_window=200_000, streams=7))
    greeting = bed.relay.outgoing(Side.CLIENT)
    settings = dict(frames.settings_in(whole(greeting)[0][9:]))
    assert settings == {
        frames.INITIAL_WINDOW_SIZE: 100_000,
        frames.MAX_CONCURRENT_STREAMS: 7,
        frames.MAX_HEADER_LIST_SIZE: 256 * 1024,
    }
    assert whole(greeting)[1] == frames.window_update(0, 200_000 - 65_535)
    to_runtime = bed.relay.outgoing(Side.RUNTIME)
    assert to_runtime.startswith(frames.PREFACE)
    assert dict(frames.settings_in(whole(to_runtime[24:])[0][9:]))[frames.ENABLE_PUSH] == 0


def test_windows_smaller_than_the_default_count_only_when_the_peer_knows_them() -> None:
    bed = Bed(limits=Limits(stream_window=1000, connection_window=65_535))
    bed.caller = Endpoint(client=True)
    call = bed.caller.open(request_fields(HOOKED), bytes(60_000))
    bed.settle()
    assert [len(event.body) for event in bed.requested()] == [60_000]
    second = bed.caller.open(request_fields(HOOKED), bytes(60_000))
    bed.settle()
    assert [len(event.body) for event in bed.requested()] == [60_000] * 2
    for message in (call, second):
        bed.relay.refuse(message.stream, 7, "no")
    bed.settle()
    bed.check_balanced()


def test_a_chunk_that_is_waited_for_does_not_keep_what_came_with_it(bed: Bed) -> None:
    bed.runtime.change({Setting.INITIAL_WINDOW_SIZE: 0})
    bed.settle()
    bed.runtime.change({Setting.INITIAL_WINDOW_SIZE: 0})
    bed.settle()
    bed.caller.open(request_fields(PLAIN), bytes(30_000))
    bed.settle()
    (stream,) = bed.relay._board.streams.values()
    assert sum(map(len, stream.upstream.waiting)) == stream.upstream.size == 30_000
    assert all(isinstance(part, bytes) for part in stream.upstream.waiting)


def test_many_small_frames_are_kept_as_few_parts(bed: Bed) -> None:
    bed.caller.open(request_fields(HOOKED), ends=False)
    bed.settle()
    for _ in range(20_000):
        bed.relay.receive(Side.CLIENT, frames.frame(frames.DATA, 0, 1, b"x"))
    (stream,) = bed.relay._board.streams.values()
    assert stream.upstream.size == 20_000
    assert len(stream.upstream.waiting) < 10


def test_an_acknowledgement_that_was_not_asked_for_changes_nothing(bed: Bed) -> None:
    bed.settle()
    bed.relay.receive(Side.CLIENT, SETTINGS_ACK)
    assert bed.relay.ledgers()[Side.CLIENT].whole
