"""The byte copy between two `h2` endpoints: identical bytes, and draining while calls are in flight."""

import random

import pytest

from governor.runtimeproxy.http2 import frames
from governor.runtimeproxy.http2.byte_copy import ByteCopy
from governor.runtimeproxy.http2.errors import ErrorCode
from governor.runtimeproxy.http2.frames import PREFACE
from governor.runtimeproxy.http2.header_blocks import Fields
from governor.runtimeproxy.http2.streams import Peer
from governor.runtimeproxy.http2.watches import WATCHES
from tests.unit.runtimeproxy.http2.bed import (
    ANSWER,
    OK,
    PLAIN,
    Endpoint,
    Message,
    answer_all,
    grpc_status,
    request_fields,
)


class CopyBed:
    """A caller and a runtime; each ``move`` copies up to ``limit`` bytes from each, splitting frames anywhere."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.copy = ByteCopy()
        self.caller = Endpoint(client=True)
        self.runtime = Endpoint(client=False)
        self.sent = {Peer.CLIENT: b"", Peer.RUNTIME: b""}
        self.got = {Peer.CLIENT: b"", Peer.RUNTIME: b""}
        self._waiting = {Peer.CLIENT: b"", Peer.RUNTIME: b""}
        self._unparsed = {Peer.CLIENT: b"", Peer.RUNTIME: b""}
        self._rng = rng

    @property
    def endpoints(self) -> dict[Peer, Endpoint]:
        return {Peer.CLIENT: self.caller, Peer.RUNTIME: self.runtime}

    def settle(self) -> None:
        while self.move():
            pass

    def move(self, limit: int | None = None) -> bool:
        """Copy once in each direction; return whether anything moved."""
        moved = False
        for peer, endpoint in self.endpoints.items():
            self._waiting[peer] += endpoint.connection.data_to_send()
            size = limit or (self._rng.randint(1, 3000) if self._rng else len(self._waiting[peer]))
            data, self._waiting[peer] = self._waiting[peer][:size], self._waiting[peer][size:]
            if data:
                moved = True
                self.sent[peer] += data
                self.copy.receive(peer, data)
        for peer, endpoint in self.endpoints.items():
            data = self.copy.data_to_send(peer)
            self.got[peer] += data
            moved = moved or bool(data)
            self._deliver(endpoint, peer, data)
        return moved

    def _deliver(self, endpoint: Endpoint, peer: Peer, data: bytes) -> None:
        """Pass whole frames, as the endpoints require."""
        data = self._unparsed[peer] + data
        at = len(PREFACE) if peer is Peer.RUNTIME and data.startswith(PREFACE) else 0
        begin = 0
        while len(data) - at >= frames.HEADER_SIZE:
            stop = at + frames.HEADER_SIZE + int.from_bytes(data[at : at + 3])
            if stop > len(data):
                break
            endpoint.receive(data[begin:stop])
            at = begin = stop
        self._unparsed[peer] = data[begin:]


def fields(number: int) -> Fields:
    return request_fields(PLAIN, (b"number", b"%d" % number))


@pytest.mark.parametrize("seed", range(3))
def test_bytes_are_identical_in_both_directions(seed: int) -> None:
    bed = CopyBed(random.Random(seed))
    answer_all(bed.runtime, bytes(70_000))
    calls = [bed.caller.open(fields(number), bytes(number * 1000)) for number in range(10)]
    bed.caller.cancel(calls[3])
    bed.settle()
    assert bed.got[Peer.RUNTIME] == bed.sent[Peer.CLIENT]
    assert bed.got[Peer.CLIENT] == bed.sent[Peer.RUNTIME]
    assert all(call.trailers == OK for call in calls if call is not calls[3])
    assert bed.copy.streams == 0
    assert not bed.copy.should_close(Peer.CLIENT)


def open_calls(bed: CopyBed, count: int) -> tuple[list[Message], list[Message]]:
    """Open calls that the runtime received and did not answer."""
    seen: list[Message] = []
    bed.runtime.on_complete = seen.append
    calls = [bed.caller.open(fields(number), b"request") for number in range(count)]
    bed.settle()
    assert bed.copy.streams == count
    return calls, seen


def test_an_idle_connection_drains_at_once() -> None:
    bed = CopyBed()
    bed.settle()
    bed.copy.drain()
    assert not bed.copy.should_close(Peer.CLIENT)
    assert bed.copy.data_to_send(Peer.CLIENT) == frames.goaway(0, ErrorCode.NO_ERROR)
    assert bed.copy.should_close(Peer.CLIENT)
    assert bed.copy.should_close(Peer.RUNTIME)


def test_a_draining_connection_closes_after_its_last_call() -> None:
    bed = CopyBed()
    (first, second), seen = open_calls(bed, 2)
    bed.copy.drain()
    bed.settle()
    assert bed.caller.goaway_received == (second.stream_id, 0)
    bed.runtime.send(seen[0], ANSWER, bytes(200_000), trailers=OK)
    bed.settle()
    assert first.trailers == OK
    assert bytes(first.body) == bytes(200_000)
    assert not bed.copy.should_close(Peer.CLIENT)
    bed.runtime.cancel(seen[1], 2)
    bed.settle()
    assert second.reset == 2
    assert bed.copy.should_close(Peer.CLIENT)


def test_a_call_cancelled_by_the_client_is_no_longer_open() -> None:
    bed = CopyBed()
    (call,), _ = open_calls(bed, 1)
    bed.copy.drain()
    bed.settle()
    bed.copy.receive(Peer.CLIENT, frames.rst_stream(call.stream_id, ErrorCode.CANCEL))
    assert bed.copy.data_to_send(Peer.RUNTIME) == frames.rst_stream(call.stream_id, ErrorCode.CANCEL)
    assert bed.copy.should_close(Peer.RUNTIME)


def test_streams_opened_while_draining_are_refused_and_their_data_credited() -> None:
    """They were in flight when GOAWAY was sent; the runtime does not receive them."""
    bed = CopyBed()
    _, seen = open_calls(bed, 1)
    bed.copy.drain()
    late = bed.caller.open(fields(9), bytes(30_000))
    window = bed.caller.connection.outbound_flow_control_window
    before = len(bed.got[Peer.RUNTIME])
    bed.settle()
    assert late.reset == ErrorCode.REFUSED_STREAM
    assert bed.got[Peer.RUNTIME][before:] == b""
    assert bed.caller.connection.outbound_flow_control_window == window + 30_000
    bed.runtime.send(seen[0], ANSWER, b"x", trailers=OK)
    bed.settle()
    assert bed.copy.should_close(Peer.CLIENT)


def raw_copy(*, requests: bytes = b"", responses: bytes = b"") -> ByteCopy:
    copy = ByteCopy()
    copy.receive(Peer.CLIENT, PREFACE + frames.settings([]) + requests)
    copy.receive(Peer.RUNTIME, frames.settings([]) + responses)
    copy.data_to_send(Peer.CLIENT)
    copy.data_to_send(Peer.RUNTIME)
    return copy


GOAWAY = frames.goaway(1, ErrorCode.NO_ERROR)
REQUEST = frames.headers(1, b"\x83", end_stream=True, max_frame_size=100)
RESPONSE = frames.headers(1, b"\x88", end_stream=False, max_frame_size=100) + frames.frame(frames.DATA, 1, 1, b"body")


@pytest.mark.parametrize("cut", range(1, len(RESPONSE)))
def test_goaway_is_inserted_between_frames_wherever_the_responses_were_cut(cut: int) -> None:
    copy = raw_copy(requests=REQUEST)
    copy.receive(Peer.RUNTIME, RESPONSE[:cut])
    copy.drain()
    copy.receive(Peer.RUNTIME, RESPONSE[cut:])
    got = copy.data_to_send(Peer.CLIENT)
    first = len(RESPONSE) - len(frames.frame(frames.DATA, 1, 1, b"body"))
    at = first if cut <= first else len(RESPONSE)
    assert got == RESPONSE[:at] + GOAWAY + RESPONSE[at:]
    assert copy.should_close(Peer.CLIENT)


def test_goaway_is_not_inserted_within_a_header_block() -> None:
    copy = raw_copy(requests=REQUEST)
    begin = frames.frame(frames.HEADERS, frames.END_STREAM, 1, b"\x88")
    end = frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, b"\x88")
    copy.receive(Peer.RUNTIME, begin)
    copy.drain()
    assert copy.data_to_send(Peer.CLIENT) == begin
    assert not copy.should_close(Peer.CLIENT)
    copy.receive(Peer.RUNTIME, end)
    assert copy.data_to_send(Peer.CLIENT) == end + GOAWAY


def test_goaway_is_not_sent_before_the_runtimes_settings() -> None:
    copy = ByteCopy()
    copy.drain()
    copy.receive(Peer.CLIENT, PREFACE[:10])
    copy.receive(Peer.CLIENT, PREFACE[10:] + frames.settings([]) + REQUEST)
    assert copy.data_to_send(Peer.CLIENT) == b""
    copy.receive(Peer.RUNTIME, frames.settings([]))
    assert copy.data_to_send(Peer.CLIENT) == (
        frames.settings([]) + frames.goaway(0, ErrorCode.NO_ERROR) + frames.rst_stream(1, ErrorCode.REFUSED_STREAM)
    )
    assert copy.data_to_send(Peer.RUNTIME) == PREFACE + frames.settings([])


def test_the_client_preface_is_awaited_before_closing() -> None:
    copy = ByteCopy()
    copy.receive(Peer.RUNTIME, frames.settings([]))
    copy.drain()
    assert copy.data_to_send(Peer.CLIENT) == frames.settings([]) + frames.goaway(0, ErrorCode.NO_ERROR)
    assert not copy.should_close(Peer.CLIENT)
    copy.receive(Peer.CLIENT, PREFACE + frames.settings([]))
    assert copy.should_close(Peer.CLIENT)


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_stream_whose_first_bytes_were_copied_is_still_accepted(cut: int) -> None:
    copy = raw_copy()
    copy.receive(Peer.CLIENT, REQUEST[:cut])
    copy.drain()
    assert copy.data_to_send(Peer.CLIENT) == b""
    copy.receive(Peer.CLIENT, REQUEST[cut:])
    assert copy.data_to_send(Peer.CLIENT) == GOAWAY
    assert copy.data_to_send(Peer.RUNTIME) == REQUEST
    assert copy.streams == 1


@pytest.mark.parametrize("cut", range(9, 50))
def test_while_draining_only_frames_of_older_streams_are_forwarded(cut: int) -> None:
    copy = raw_copy(requests=REQUEST)
    body = frames.frame(frames.DATA, 0, 1, b"0123456789")
    newer = frames.headers(3, b"\x83", end_stream=False, max_frame_size=100) + frames.frame(frames.DATA, 1, 3, b"late")
    requests = body + newer + frames.window_update(3, 5) + frames.window_update(0, 5) + body
    copy.receive(Peer.CLIENT, requests[:9])
    copy.drain()
    copy.receive(Peer.CLIENT, requests[9:cut])
    copy.receive(Peer.CLIENT, requests[cut:])
    assert copy.data_to_send(Peer.RUNTIME) == body + frames.window_update(0, 5) + body
    assert copy.data_to_send(Peer.CLIENT) == (
        GOAWAY + frames.rst_stream(3, ErrorCode.REFUSED_STREAM) + frames.window_update(0, len(b"late"))
    )


def test_request_trailers_that_the_runtime_could_not_decode_reset_their_stream() -> None:
    copy = raw_copy(requests=REQUEST)
    copy.drain()
    copy.receive(Peer.CLIENT, frames.headers(3, b"\x83", end_stream=True, max_frame_size=100))
    copy.receive(Peer.CLIENT, frames.headers(1, b"ab", end_stream=True, max_frame_size=1))
    assert copy.data_to_send(Peer.RUNTIME) == frames.rst_stream(1, ErrorCode.CANCEL)
    assert copy.data_to_send(Peer.CLIENT).endswith(frames.rst_stream(1, ErrorCode.INTERNAL_ERROR))
    assert copy.should_close(Peer.CLIENT)


def test_the_runtimes_goaway_is_limited_to_our_last_stream_id() -> None:
    copy = raw_copy(requests=REQUEST)
    copy.drain()
    copy.receive(Peer.RUNTIME, frames.goaway(2**31 - 1, 0, "shutdown") + frames.goaway(0, 2))
    assert copy.data_to_send(Peer.CLIENT) == GOAWAY + frames.goaway(1, 0, "shutdown") + frames.goaway(0, 2)


def test_the_remaining_peer_gets_what_was_sent_before_the_other_disconnected() -> None:
    copy = raw_copy(requests=REQUEST)
    copy.receive(Peer.RUNTIME, RESPONSE)
    copy.connection_lost(Peer.RUNTIME)
    assert not copy.should_close(Peer.CLIENT)
    assert copy.data_to_send(Peer.CLIENT) == RESPONSE
    assert copy.should_close(Peer.CLIENT)


@pytest.mark.parametrize("has_headers", [False, True])
def test_a_drain_can_end_watches_and_lets_calls_finish(has_headers: bool) -> None:
    bed = CopyBed()
    bed.settle()
    call = bed.caller.open(request_fields(PLAIN), b"slow")
    watches = [bed.caller.open(request_fields(min(WATCHES)), b"watch") for _ in range(2)]
    bed.settle()
    for each in watches if has_headers else ():
        bed.runtime.send(bed.runtime.messages[each.stream_id], ANSWER, b"event", ends=False)
    bed.settle()

    bed.copy.drain(end_watches=True)
    bed.settle()

    for each in watches:
        assert (grpc_status(each), each.ended) == (b"14", True)
        assert bytes(each.body) == (b"event" if has_headers else b"")
        assert bed.runtime.messages[each.stream_id].reset == ErrorCode.CANCEL
    assert not bed.copy.should_close(Peer.CLIENT)
    bed.runtime.send(bed.runtime.messages[call.stream_id], ANSWER, b"done", trailers=OK)
    bed.settle()
    assert (bytes(call.body), call.trailers) == (b"done", OK)
    assert bed.copy.should_close(Peer.CLIENT)


def test_watches_are_ended_although_the_connection_drains_already() -> None:
    bed = CopyBed()
    watch = bed.caller.open(request_fields(max(WATCHES)), b"watch")
    bed.settle()
    bed.copy.drain()
    bed.settle()
    assert not watch.ended

    bed.copy.drain(end_watches=True)
    bed.settle()

    assert grpc_status(watch) == b"14"
    assert bed.copy.should_close(Peer.CLIENT)
