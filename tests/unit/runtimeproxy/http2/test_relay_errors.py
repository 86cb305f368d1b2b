"""Protocol errors of a peer close its stream or connection with the code of RFC 9113, and end the other peer's stream
cleanly. Everything that a peer could send without end is limited."""

import pytest
from hpack import Encoder

from governor.runtimeproxy.http2 import frames
from governor.runtimeproxy.http2.connection import Limits
from governor.runtimeproxy.http2.errors import ErrorCode
from governor.runtimeproxy.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    FrameReader,
    frame,
)
from governor.runtimeproxy.http2.header_blocks import Fields
from governor.runtimeproxy.http2.relay import Relay
from governor.runtimeproxy.http2.streams import Outcome, Peer
from tests.unit.runtimeproxy.http2.bed import ANSWER, HOOKED, OK, PLAIN, Bed, request_fields

LIMITS = Limits(
    stream_window=65_535,
    connection_window=65_535,
    max_streams=10,
    max_header_list=5000,
    max_backlog=5000,
    max_resets=20,
)


class Raw:
    """A relay with hand-written frames for peers."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.relay = Relay(lambda path: path == HOOKED, limits=limits)
        self.encoders = {peer: Encoder() for peer in Peer}
        self.relay.attach(Peer.RUNTIME)
        self.relay.receive(Peer.CLIENT, PREFACE + frames.settings([]) + frames.SETTINGS_ACK)
        self.relay.receive(Peer.RUNTIME, frames.settings([]) + frames.SETTINGS_ACK)
        self.readers = {
            Peer.CLIENT: FrameReader(preface=False, max_frame_size=2**24 - 1),
            Peer.RUNTIME: FrameReader(preface=True, max_frame_size=2**24 - 1),
        }
        for peer in self.readers:
            self.sent_to(peer)

    def headers(self, peer: Peer, stream: int, fields: Fields, *, end_stream: bool = False) -> None:
        block = self.encoders[peer].encode(fields)
        self.relay.receive(peer, frames.headers(stream, block, end_stream=end_stream, max_frame_size=16_384))

    def open(self, stream: int = 1, path: bytes = PLAIN, *, end_stream: bool = False) -> None:
        self.headers(Peer.CLIENT, stream, request_fields(path), end_stream=end_stream)

    def sent_to(self, peer: Peer) -> list[tuple[int, int, bytes]]:
        """Return type, stream id and payload of the frames sent to a peer."""
        read = self.readers[peer].feed(self.relay.data_to_send(peer))
        return [(kind, stream, bytes(payload)) for kind, _, stream, payload in read]

    def goaway_code(self, peer: Peer) -> int | None:
        """Return the error code of the last GOAWAY sent to a peer."""
        codes = [frames.goaway_in(payload)[1] for kind, _, payload in self.sent_to(peer) if kind == GOAWAY]
        return codes[-1] if codes else None

    def reset_code(self, peer: Peer, stream: int = 1) -> int | None:
        """Return the error code of the last RST_STREAM sent to a peer for a stream."""
        found = [
            frames.uint32_in(payload) for kind, of, payload in self.sent_to(peer) if kind == RST_STREAM and of == stream
        ]
        return found[-1] if found else None


CONNECTION_ERRORS = [
    ("DATA on stream 0", frame(DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    ("DATA on an idle stream", frame(DATA, 0, 9, b"x"), ErrorCode.PROTOCOL_ERROR),
    ("padding longer than DATA", frame(DATA, PADDED, 1, b"\x09x"), ErrorCode.PROTOCOL_ERROR),
    ("oversized frame", frame(DATA, 0, 1, bytes(16_385)), ErrorCode.FRAME_SIZE_ERROR),
    ("HEADERS on stream 0", frame(HEADERS, END_HEADERS, 0, b"\x88"), ErrorCode.PROTOCOL_ERROR),
    ("HEADERS on an even stream", frame(HEADERS, END_HEADERS, 2, b"\x88"), ErrorCode.PROTOCOL_ERROR),
    (
        "truncated priority in HEADERS",
        frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 1, b"\x88"),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    (
        "undecodable block",
        frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"),
        ErrorCode.COMPRESSION_ERROR,
    ),
    ("header list too large", frame(HEADERS, END_HEADERS, 1, b"\x88" * 200), ErrorCode.ENHANCE_YOUR_CALM),
    ("CONTINUATION without HEADERS", frame(CONTINUATION, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
    ("frame within a block", frame(HEADERS, 0, 1, b"") + frame(PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    (
        "CONTINUATION of another stream",
        frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 3, b""),
        ErrorCode.PROTOCOL_ERROR,
    ),
    (
        "endless block",
        frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, b"") * 65,
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    (
        "block too large",
        frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, bytes(3000)) * 2,
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    ("PRIORITY on stream 0", frame(PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
    ("truncated PRIORITY", frame(PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
    ("RST_STREAM on stream 0", frame(RST_STREAM, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    ("RST_STREAM on an idle stream", frame(RST_STREAM, 0, 9, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    ("truncated RST_STREAM", frame(RST_STREAM, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    ("SETTINGS on a stream", frame(SETTINGS, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
    ("truncated SETTINGS", frame(SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
    ("SETTINGS ACK with a payload", frame(SETTINGS, 1, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
    (
        "initial window too large",
        frames.settings([(frames.INITIAL_WINDOW_SIZE, 2**31)]),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    ("max frame size too small", frames.settings([(frames.MAX_FRAME_SIZE, 16_383)]), ErrorCode.PROTOCOL_ERROR),
    ("max frame size too large", frames.settings([(frames.MAX_FRAME_SIZE, 2**24)]), ErrorCode.PROTOCOL_ERROR),
    ("invalid ENABLE_PUSH", frames.settings([(frames.ENABLE_PUSH, 2)]), ErrorCode.PROTOCOL_ERROR),
    ("PUSH_PROMISE", frame(PUSH_PROMISE, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    ("PING on a stream", frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    ("truncated PING", frame(PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    ("GOAWAY on a stream", frame(GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    ("truncated GOAWAY", frame(GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    ("WINDOW_UPDATE on an idle stream", frame(WINDOW_UPDATE, 0, 9, b"\0\0\0\1"), ErrorCode.PROTOCOL_ERROR),
    ("truncated WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    ("WINDOW_UPDATE by zero", frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    ("WINDOW_UPDATE beyond the maximum", frames.window_update(0, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
]


@pytest.mark.parametrize("peer", [Peer.CLIENT, Peer.RUNTIME])
@pytest.mark.parametrize(("what", "data", "code"), CONNECTION_ERRORS, ids=[each[0] for each in CONNECTION_ERRORS])
def test_a_connection_error_closes_the_connection_with_its_code(
    what: str, data: bytes, code: ErrorCode, peer: Peer
) -> None:
    raw = Raw()
    raw.open()
    if peer is Peer.RUNTIME:
        raw.headers(Peer.RUNTIME, 1, ANSWER)
    raw.relay.receive(peer, data)
    raw.relay.receive(peer, frame(PING, 0, 0, bytes(8)))
    assert raw.goaway_code(peer) == code, what
    assert raw.relay.should_close(peer)
    assert raw.relay.streams == 0


def stalled(peer: Peer) -> Raw:
    """Return a relay that cannot forward what ``peer`` sends: the other peer's window is 0."""
    raw = Raw()
    other = Peer.RUNTIME if peer is Peer.CLIENT else Peer.CLIENT
    raw.relay.receive(other, frames.settings([(frames.INITIAL_WINDOW_SIZE, 0)]))
    raw.open()
    return raw


@pytest.mark.parametrize("peer", [Peer.CLIENT, Peer.RUNTIME])
def test_data_beyond_a_window_closes_the_connection(peer: Peer) -> None:
    raw = stalled(peer)
    raw.headers(Peer.RUNTIME, 1, ANSWER)
    raw.relay.receive(peer, frame(DATA, 0, 1, bytes(16_384)) * 3)
    assert raw.goaway_code(peer) is None
    raw.relay.receive(peer, frame(DATA, 0, 1, bytes(16_384)))
    assert raw.goaway_code(peer) == ErrorCode.FLOW_CONTROL_ERROR
    assert raw.relay.flow_controls()[peer].unread_bytes <= 65_535


def test_a_clients_connection_error_cancels_its_calls_at_the_runtime() -> None:
    raw = Raw()
    raw.open()
    raw.relay.receive(Peer.CLIENT, frame(DATA, 0, 0, b""))
    assert raw.reset_code(Peer.RUNTIME) == ErrorCode.CANCEL
    raw.relay.data_to_send(Peer.CLIENT)
    assert raw.relay.should_close(Peer.CLIENT)
    assert raw.relay.should_close(Peer.RUNTIME)


def test_a_runtimes_connection_error_ends_calls_with_unavailable() -> None:
    bed = Bed()
    call = bed.caller.open(request_fields(PLAIN), b"x")
    bed.settle()
    bed.relay.receive(Peer.RUNTIME, frame(DATA, 0, 0, b""))
    bed.settle()
    answer = dict(call.fields)
    assert (answer[b"grpc-status"], b"runtime is not available" in answer[b"grpc-message"]) == (b"14", True)
    assert bed.caller.goaway_received == (1, 0)


CLIENT_STREAM_ERRORS = [
    ("WINDOW_UPDATE by zero", frames.window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
    ("WINDOW_UPDATE beyond the maximum", frames.window_update(1, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
    ("trailers without END_STREAM", frame(HEADERS, END_HEADERS, 1, b""), ErrorCode.PROTOCOL_ERROR),
    ("pseudo-header field in trailers", frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88"), ErrorCode.PROTOCOL_ERROR),
    ("DATA after END_STREAM", frame(DATA, END_STREAM, 1, b"") + frame(DATA, 0, 1, b"x"), ErrorCode.STREAM_CLOSED),
    (
        "HEADERS after END_STREAM",
        frame(DATA, END_STREAM, 1, b"") + frame(HEADERS, END_HEADERS | END_STREAM, 1, b""),
        ErrorCode.STREAM_CLOSED,
    ),
]


@pytest.mark.parametrize(("what", "data", "code"), CLIENT_STREAM_ERRORS, ids=[each[0] for each in CLIENT_STREAM_ERRORS])
def test_a_clients_stream_error_resets_only_that_stream(what: str, data: bytes, code: ErrorCode) -> None:
    raw = Raw()
    raw.open(1)
    raw.open(3)
    raw.relay.receive(Peer.CLIENT, data)
    assert raw.reset_code(Peer.CLIENT) == code, what
    assert raw.reset_code(Peer.RUNTIME) == ErrorCode.CANCEL
    assert raw.relay.streams == 1
    assert not raw.relay.should_close(Peer.CLIENT)


RUNTIME_STREAM_ERRORS = [
    ("DATA before HEADERS", frame(DATA, 0, 1, b"x")),
    ("response without :status", frame(HEADERS, END_HEADERS, 1, b"")),
    (
        "interim response with END_STREAM",
        frames.headers(1, Encoder().encode([(b":status", b"103")]), end_stream=True, max_frame_size=99),
    ),
    ("too many interim responses", frames.headers(1, b"\x08\x03103", end_stream=False, max_frame_size=99) * 17),
    (
        "response trailers without END_STREAM",
        frame(HEADERS, END_HEADERS, 1, b"\x88") + frame(HEADERS, END_HEADERS, 1, b""),
    ),
    ("WINDOW_UPDATE by zero", frames.window_update(1, 0)),
]


@pytest.mark.parametrize(("what", "data"), RUNTIME_STREAM_ERRORS, ids=[each[0] for each in RUNTIME_STREAM_ERRORS])
def test_a_runtimes_stream_error_ends_the_call_with_internal(what: str, data: bytes) -> None:
    bed = Bed()
    call = bed.caller.open(request_fields(PLAIN), b"x")
    other = bed.caller.open(request_fields(PLAIN), b"x")
    bed.settle()
    bed.relay.receive(Peer.RUNTIME, data)
    bed.settle()
    assert dict(call.trailers or call.fields)[b"grpc-status"] == b"13", what
    assert call.ended
    assert not other.ended
    assert bed.runtime.messages[1].reset is not None
    assert bed.relay.streams == 1


def test_data_after_a_complete_response_does_not_change_it() -> None:
    bed = Bed()
    bed.caller.reading = False
    bed.runtime.on_request = lambda message: bed.runtime.send(message, ANSWER, bytes(65_600), trailers=OK)
    call = bed.caller.open(request_fields(PLAIN), b"begins", ends=False)
    bed.settle()
    bed.relay.receive(Peer.RUNTIME, frame(DATA, 0, 1, b"and more"))
    bed.settle()
    assert bed.runtime.messages[1].reset == ErrorCode.STREAM_CLOSED
    bed.caller.reading = True
    bed.caller.resume_reading()
    bed.settle()
    assert (len(call.body), call.trailers, call.reset) == (65_600, OK, 0)
    assert [event.outcome for event in bed.closed_streams()] == [Outcome.COMPLETED]


def test_a_malformed_request_is_reset_and_not_forwarded() -> None:
    raw = Raw()
    raw.headers(Peer.CLIENT, 1, [(b":method", b"GET")])
    assert raw.reset_code(Peer.CLIENT) == ErrorCode.PROTOCOL_ERROR
    assert raw.sent_to(Peer.RUNTIME) == []
    assert raw.relay.streams == 0


LATE = frame(DATA, 0, 1, bytes(16_000)) * 3 + frames.rst_stream(1, 8) + frames.window_update(1, 5)


def test_late_frames_of_a_runtime_are_ignored_and_their_data_credited() -> None:
    raw = Raw()
    raw.open(end_stream=True)
    raw.headers(Peer.RUNTIME, 1, [*ANSWER, *OK], end_stream=True)
    assert raw.relay.streams == 0
    raw.sent_to(Peer.RUNTIME)
    raw.relay.receive(Peer.RUNTIME, LATE)
    raw.headers(Peer.RUNTIME, 1, OK, end_stream=True)
    assert raw.sent_to(Peer.RUNTIME) == [(WINDOW_UPDATE, 0, (48_000).to_bytes(4))]
    assert raw.relay.flow_controls()[Peer.RUNTIME].is_full


def test_frames_that_a_client_sent_before_our_reset_arrived_are_ignored_and_credited() -> None:
    raw = Raw()
    raw.open()
    raw.headers(Peer.RUNTIME, 1, [*ANSWER, *OK], end_stream=True)
    raw.relay.receive(Peer.RUNTIME, frames.rst_stream(1, ErrorCode.NO_ERROR))
    assert raw.relay.streams == 0
    assert raw.reset_code(Peer.CLIENT) == ErrorCode.NO_ERROR
    raw.relay.receive(Peer.CLIENT, LATE)
    raw.headers(Peer.CLIENT, 1, OK, end_stream=True)
    assert raw.sent_to(Peer.CLIENT) == [(WINDOW_UPDATE, 0, (48_000).to_bytes(4))]
    assert raw.relay.flow_controls()[Peer.CLIENT].is_full


def test_frames_on_a_stream_that_the_client_closed_itself_are_a_connection_error() -> None:
    for ending in (frames.rst_stream(1, ErrorCode.CANCEL), frame(DATA, END_STREAM, 1)):
        raw = Raw()
        raw.open()
        raw.relay.receive(Peer.CLIENT, ending)
        raw.headers(Peer.RUNTIME, 1, [*ANSWER, *OK], end_stream=True)
        assert raw.relay.streams == 0
        raw.sent_to(Peer.CLIENT)
        raw.relay.receive(Peer.CLIENT, frame(DATA, 0, 1, b"more"))
        assert raw.goaway_code(Peer.CLIENT) == ErrorCode.STREAM_CLOSED


def test_a_decreasing_stream_id_is_a_connection_error() -> None:
    raw = Raw()
    raw.open(5)
    raw.sent_to(Peer.CLIENT)
    raw.open(3)
    assert raw.goaway_code(Peer.CLIENT) == ErrorCode.PROTOCOL_ERROR


def test_only_the_newest_reset_streams_are_remembered() -> None:
    raw = Raw()
    for stream in range(1, 2 * 1100, 2):
        raw.headers(Peer.CLIENT, stream, [(b":method", b"GET")])
        assert raw.reset_code(Peer.CLIENT, stream) == ErrorCode.PROTOCOL_ERROR
    raw.relay.receive(Peer.CLIENT, frame(DATA, 0, 2 * 1100 - 1, b"late"))
    assert raw.sent_to(Peer.CLIENT) == []
    raw.relay.receive(Peer.CLIENT, frame(DATA, 0, 1, b"very late"))
    assert raw.goaway_code(Peer.CLIENT) == ErrorCode.STREAM_CLOSED


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param([frame(DATA, END_STREAM, 1, b"12")], id="shorter"),
        pytest.param([frame(DATA, END_STREAM, 1, b"1234")], id="longer"),
        pytest.param([frame(DATA, 0, 1, b"12"), frame(DATA, 0, 1, b"34")], id="longer in parts"),
        pytest.param([frame(DATA, 0, 1, b"12"), frame(DATA, END_STREAM, 1)], id="shorter in parts"),
    ],
)
@pytest.mark.parametrize("path", [PLAIN, HOOKED])
def test_a_request_that_contradicts_its_content_length_is_reset(path: bytes, sent: list[bytes]) -> None:
    raw = Raw()
    raw.headers(Peer.CLIENT, 1, [*request_fields(path), (b"content-length", b"3")])
    for data in sent:
        raw.relay.receive(Peer.CLIENT, data)
    assert raw.reset_code(Peer.CLIENT) == ErrorCode.PROTOCOL_ERROR
    assert raw.relay.streams == 0


def test_a_request_with_a_content_length_and_no_body_is_reset() -> None:
    raw = Raw()
    raw.headers(Peer.CLIENT, 1, [*request_fields(PLAIN), (b"content-length", b"3")], end_stream=True)
    assert raw.reset_code(Peer.CLIENT) == ErrorCode.PROTOCOL_ERROR
    raw.headers(Peer.CLIENT, 3, [*request_fields(PLAIN), (b"content-length", b"3")])
    raw.headers(Peer.CLIENT, 3, [(b"x", b"y")], end_stream=True)
    assert raw.reset_code(Peer.CLIENT, 3) == ErrorCode.PROTOCOL_ERROR


def test_a_request_that_matches_its_content_length_is_forwarded() -> None:
    raw = Raw()
    raw.headers(Peer.CLIENT, 1, [*request_fields(PLAIN), (b"content-length", b"3")])
    raw.relay.receive(Peer.CLIENT, frame(DATA, 0, 1, b"12") + frame(DATA, 0, 1, b"3") + frame(DATA, END_STREAM, 1))
    assert [payload for kind, _, payload in raw.sent_to(Peer.RUNTIME) if kind == DATA] == [b"12", b"3", b""]
    assert raw.relay.streams == 1


@pytest.mark.parametrize(
    "field", [(b"te", b"gzip"), (b"content-length", b"-1"), (b"content-length", b"three"), (b"content-length", b"")]
)
def test_an_invalid_field_value_resets_the_request(field: tuple[bytes, bytes]) -> None:
    raw = Raw()
    fields = [each for each in request_fields(PLAIN) if each[0] != field[0]]
    raw.headers(Peer.CLIENT, 1, [*fields, field])
    assert raw.reset_code(Peer.CLIENT) == ErrorCode.PROTOCOL_ERROR


def test_conflicting_content_lengths_reset_the_request() -> None:
    raw = Raw()
    raw.headers(Peer.CLIENT, 1, [*request_fields(PLAIN), (b"content-length", b"3"), (b"content-length", b"4")])
    assert raw.reset_code(Peer.CLIENT) == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("peer", [Peer.CLIENT, Peer.RUNTIME])
def test_unknown_frames_flags_and_settings_are_ignored(peer: Peer) -> None:
    raw = Raw()
    raw.open()
    raw.sent_to(Peer.RUNTIME)
    ignored = frame(0xEE, 0xFF, 77, b"x") + frame(PRIORITY, 0, 99, bytes(5)) + frame(PING, 1, 0, bytes(8))
    ignored += frame(DATA, 0xF0, 1, b"") if peer is Peer.CLIENT else b""
    raw.relay.receive(peer, ignored)
    assert raw.sent_to(Peer.CLIENT) == raw.sent_to(Peer.RUNTIME) == []
    raw.relay.receive(peer, frames.settings([(0x99, 5)]))
    assert raw.sent_to(peer) == [(SETTINGS, 0, b"")]
    assert raw.relay.streams == 1


@pytest.mark.parametrize("peer", [Peer.CLIENT, Peer.RUNTIME])
def test_a_ping_is_acknowledged_to_its_sender(peer: Peer) -> None:
    raw = Raw()
    raw.relay.receive(peer, frame(PING, 0, 0, b"ping-123"))
    raw.relay.write_deferred()
    assert raw.sent_to(Peer.CLIENT) + raw.sent_to(Peer.RUNTIME) == [(PING, 0, b"ping-123")]


@pytest.mark.parametrize("peer", [Peer.CLIENT, Peer.RUNTIME])
def test_a_ping_ack_waits_while_other_frames_are_written(peer: Peer) -> None:
    raw = Raw()
    raw.relay.receive(peer, frame(PING, 0, 0, b"ping-123") + frames.settings([]))
    assert raw.sent_to(peer) == [(SETTINGS, 0, b"")]
    assert raw.relay.has_deferred(peer)
    raw.relay.write_deferred()
    assert raw.sent_to(peer) == [(PING, 0, b"ping-123")]
    assert not raw.relay.has_deferred(peer)


@pytest.mark.parametrize("peer", [Peer.CLIENT, Peer.RUNTIME])
def test_only_a_few_ping_acks_wait(peer: Peer) -> None:
    raw = Raw()
    ping = frame(PING, 0, 0, b"ping-123")
    for _ in range(4):
        raw.relay.receive(peer, ping)
        assert raw.sent_to(peer) == []
    raw.relay.receive(peer, ping)
    assert raw.sent_to(peer) == [(PING, 0, b"ping-123")] * 5
    assert not raw.relay.has_deferred(peer)


@pytest.mark.parametrize("peer", [Peer.CLIENT, Peer.RUNTIME])
@pytest.mark.parametrize("soliciting", [frame(PING, 0, 0, bytes(8)), frames.settings([])])
def test_a_peer_that_requests_replies_and_does_not_read_them_is_disconnected(peer: Peer, soliciting: bytes) -> None:
    raw = Raw()
    for _ in range(1000):
        raw.relay.receive(peer, soliciting)
    out = raw.relay.data_to_send(peer)
    assert len(out) < 2 * LIMITS.max_backlog
    assert raw.relay.should_close(peer)


def test_a_peer_that_requests_replies_and_reads_them_is_served() -> None:
    raw = Raw()
    for _ in range(10_000):
        raw.relay.receive(Peer.CLIENT, frame(PING, 0, 0, bytes(8)))
        raw.relay.data_to_send(Peer.CLIENT)
    assert not raw.relay.should_close(Peer.CLIENT)


def test_rapid_resets_close_the_connection_unless_other_streams_complete() -> None:
    raw = Raw()
    stream = 1
    for _ in range(100):
        raw.open(stream)
        raw.relay.receive(Peer.CLIENT, frames.rst_stream(stream, 8))
        raw.open(stream + 2, end_stream=True)
        raw.headers(Peer.RUNTIME, stream + 2, [*ANSWER, *OK], end_stream=True)
        raw.relay.data_to_send(Peer.CLIENT)
        raw.relay.data_to_send(Peer.RUNTIME)
        stream += 4
    assert not raw.relay.should_close(Peer.CLIENT)
    for _ in range(30):
        raw.open(stream)
        raw.relay.receive(Peer.CLIENT, frames.rst_stream(stream, 8))
        stream += 2
    assert raw.goaway_code(Peer.CLIENT) == ErrorCode.ENHANCE_YOUR_CALM


def test_streams_beyond_the_limit_are_refused_with_refused_stream() -> None:
    raw = Raw()
    for number in range(12):
        raw.open(2 * number + 1)
    resets = [(stream, frames.uint32_in(load)) for kind, stream, load in raw.sent_to(Peer.CLIENT) if kind == RST_STREAM]
    assert resets == [(21, ErrorCode.REFUSED_STREAM), (23, ErrorCode.REFUSED_STREAM)]
    assert raw.relay.streams == LIMITS.max_streams


def test_a_client_that_opens_streams_and_does_not_read_is_disconnected() -> None:
    raw = Raw()
    for number in range(1000):
        raw.open(2 * number + 1)
        raw.relay.receive(Peer.CLIENT, frames.rst_stream(2 * number + 1, 8))
        raw.headers(Peer.CLIENT, 2 * number + 1001, [(b":method", b"GET")])
        raw.relay.data_to_send(Peer.RUNTIME)
    assert len(raw.relay.data_to_send(Peer.CLIENT)) < 2 * LIMITS.max_backlog
    assert raw.relay.should_close(Peer.CLIENT)


def test_no_streams_are_opened_at_a_runtime_that_does_not_read() -> None:
    raw = Raw(Limits(max_backlog=5000, max_resets=1000))
    statuses = []
    for number in range(200):
        raw.open(2 * number + 1)
        raw.relay.receive(Peer.CLIENT, frames.rst_stream(2 * number + 1, 8))
        statuses += [payload for kind, _, payload in raw.sent_to(Peer.CLIENT) if kind == HEADERS]
    assert len(raw.relay.data_to_send(Peer.RUNTIME)) < 6000
    assert statuses
    assert all(b"does not read" in status for status in statuses)
