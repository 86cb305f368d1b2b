"""Peers that break the rules of HTTP/2 lose a stream or the connection, with the code of RFC 9113, and the other peer
hears of it in words that it understands. What could be sent without end has a limit."""

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
    """A relay whose peers are written by hand."""

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
            self.got(peer)

    def headers(self, peer: Peer, stream: int, fields: Fields, *, end_stream: bool = False) -> None:
        block = self.encoders[peer].encode(fields)
        self.relay.receive(peer, frames.headers(stream, block, end_stream=end_stream, max_frame_size=16_384))

    def open(self, stream: int = 1, path: bytes = PLAIN, *, end_stream: bool = False) -> None:
        self.headers(Peer.CLIENT, stream, request_fields(path), end_stream=end_stream)

    def got(self, peer: Peer) -> list[tuple[int, int, bytes]]:
        """Type, stream and payload of what a peer was sent."""
        read = self.readers[peer].feed(self.relay.data_to_send(peer))
        return [(kind, stream, bytes(payload)) for kind, _, stream, payload in read]

    def end(self, peer: Peer) -> int | None:
        """The code with which a connection was ended."""
        codes = [frames.goaway_in(payload)[1] for kind, _, payload in self.got(peer) if kind == GOAWAY]
        return codes[-1] if codes else None

    def reset(self, peer: Peer, stream: int = 1) -> int | None:
        """The code with which a stream was ended."""
        found = [
            frames.uint32_in(payload) for kind, of, payload in self.got(peer) if kind == RST_STREAM and of == stream
        ]
        return found[-1] if found else None


ENDS_CONNECTION = [
    ("DATA of the connection", frame(DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    ("DATA of an idle stream", frame(DATA, 0, 9, b"x"), ErrorCode.PROTOCOL_ERROR),
    ("padding longer than DATA", frame(DATA, PADDED, 1, b"\x09x"), ErrorCode.PROTOCOL_ERROR),
    ("a frame beyond the largest", frame(DATA, 0, 1, bytes(16_385)), ErrorCode.FRAME_SIZE_ERROR),
    ("HEADERS of the connection", frame(HEADERS, END_HEADERS, 0, b"\x88"), ErrorCode.PROTOCOL_ERROR),
    ("HEADERS of an even stream", frame(HEADERS, END_HEADERS, 2, b"\x88"), ErrorCode.PROTOCOL_ERROR),
    (
        "HEADERS within their priority",
        frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 1, b"\x88"),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    (
        "a block that cannot be decoded",
        frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"),
        ErrorCode.COMPRESSION_ERROR,
    ),
    ("a header list that is too large", frame(HEADERS, END_HEADERS, 1, b"\x88" * 200), ErrorCode.ENHANCE_YOUR_CALM),
    ("CONTINUATION of nothing", frame(CONTINUATION, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
    ("a block interrupted", frame(HEADERS, 0, 1, b"") + frame(PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    ("another's CONTINUATION", frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 3, b""), ErrorCode.PROTOCOL_ERROR),
    (
        "a block without end",
        frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, b"") * 65,
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    (
        "a large block",
        frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, bytes(3000)) * 2,
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    ("PRIORITY of the connection", frame(PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
    ("PRIORITY cut off", frame(PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
    ("RST_STREAM of the connection", frame(RST_STREAM, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    ("RST_STREAM of an idle stream", frame(RST_STREAM, 0, 9, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    ("RST_STREAM cut off", frame(RST_STREAM, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    ("SETTINGS of a stream", frame(SETTINGS, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
    ("SETTINGS cut off", frame(SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
    ("SETTINGS that acknowledge and set", frame(SETTINGS, 1, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
    (
        "a window that is too large",
        frames.settings([(frames.INITIAL_WINDOW_SIZE, 2**31)]),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    ("frames that are too small", frames.settings([(frames.MAX_FRAME_SIZE, 16_383)]), ErrorCode.PROTOCOL_ERROR),
    ("frames that are too large", frames.settings([(frames.MAX_FRAME_SIZE, 2**24)]), ErrorCode.PROTOCOL_ERROR),
    ("neither push nor none", frames.settings([(frames.ENABLE_PUSH, 2)]), ErrorCode.PROTOCOL_ERROR),
    ("PUSH_PROMISE", frame(PUSH_PROMISE, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    ("PING of a stream", frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    ("PING cut off", frame(PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    ("GOAWAY of a stream", frame(GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    ("GOAWAY cut off", frame(GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    ("WINDOW_UPDATE of an idle stream", frame(WINDOW_UPDATE, 0, 9, b"\0\0\0\1"), ErrorCode.PROTOCOL_ERROR),
    ("WINDOW_UPDATE cut off", frame(WINDOW_UPDATE, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    ("WINDOW_UPDATE by nothing", frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    ("WINDOW_UPDATE beyond the largest", frames.window_update(0, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
]


@pytest.mark.parametrize("peer", [Peer.CLIENT, Peer.RUNTIME])
@pytest.mark.parametrize(("what", "data", "code"), ENDS_CONNECTION, ids=[each[0] for each in ENDS_CONNECTION])
def test_a_broken_rule_of_the_connection_ends_it_with_its_code(
    what: str, data: bytes, code: ErrorCode, peer: Peer
) -> None:
    raw = Raw()
    raw.open()
    if peer is Peer.RUNTIME:
        raw.headers(Peer.RUNTIME, 1, ANSWER)
    raw.relay.receive(peer, data)
    raw.relay.receive(peer, frame(PING, 0, 0, bytes(8)))
    assert raw.end(peer) == code, what
    assert raw.relay.should_close(peer)
    assert raw.relay.streams == 0


def stalled(peer: Peer) -> Raw:
    """A relay that cannot pass on what ``peer`` sends, as the other peer gives no room for it."""
    raw = Raw()
    other = Peer.RUNTIME if peer is Peer.CLIENT else Peer.CLIENT
    raw.relay.receive(other, frames.settings([(frames.INITIAL_WINDOW_SIZE, 0)]))
    raw.open()
    return raw


@pytest.mark.parametrize("peer", [Peer.CLIENT, Peer.RUNTIME])
def test_more_data_than_a_window_allows_ends_the_connection(peer: Peer) -> None:
    raw = stalled(peer)
    raw.headers(Peer.RUNTIME, 1, ANSWER)
    raw.relay.receive(peer, frame(DATA, 0, 1, bytes(16_384)) * 3)
    assert raw.end(peer) is None
    raw.relay.receive(peer, frame(DATA, 0, 1, bytes(16_384)))
    assert raw.end(peer) == ErrorCode.FLOW_CONTROL_ERROR
    assert raw.relay.flow_controls()[peer].unread_bytes <= 65_535


def test_a_client_that_breaks_the_rules_cancels_its_calls_at_the_runtime() -> None:
    raw = Raw()
    raw.open()
    raw.relay.receive(Peer.CLIENT, frame(DATA, 0, 0, b""))
    assert raw.reset(Peer.RUNTIME) == ErrorCode.CANCEL
    raw.relay.data_to_send(Peer.CLIENT)
    assert raw.relay.should_close(Peer.CLIENT)
    assert raw.relay.should_close(Peer.RUNTIME)


def test_a_runtime_that_breaks_the_rules_is_unavailable() -> None:
    bed = Bed()
    call = bed.caller.open(request_fields(PLAIN), b"x")
    bed.settle()
    bed.relay.receive(Peer.RUNTIME, frame(DATA, 0, 0, b""))
    bed.settle()
    answer = dict(call.fields)
    assert (answer[b"grpc-status"], b"runtime is not available" in answer[b"grpc-message"]) == (b"14", True)
    assert bed.caller.goaway_received == (1, 0)


ENDS_STREAM_OF_CLIENT = [
    ("WINDOW_UPDATE by nothing", frames.window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
    ("WINDOW_UPDATE beyond the largest", frames.window_update(1, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
    ("HEADERS within a request", frame(HEADERS, END_HEADERS, 1, b""), ErrorCode.PROTOCOL_ERROR),
    ("trailers with a status", frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88"), ErrorCode.PROTOCOL_ERROR),
    ("DATA after the end", frame(DATA, END_STREAM, 1, b"") + frame(DATA, 0, 1, b"x"), ErrorCode.STREAM_CLOSED),
    (
        "HEADERS after the end",
        frame(DATA, END_STREAM, 1, b"") + frame(HEADERS, END_HEADERS | END_STREAM, 1, b""),
        ErrorCode.STREAM_CLOSED,
    ),
]


@pytest.mark.parametrize(
    ("what", "data", "code"), ENDS_STREAM_OF_CLIENT, ids=[each[0] for each in ENDS_STREAM_OF_CLIENT]
)
def test_a_broken_rule_of_a_stream_ends_it_and_no_other(what: str, data: bytes, code: ErrorCode) -> None:
    raw = Raw()
    raw.open(1)
    raw.open(3)
    raw.relay.receive(Peer.CLIENT, data)
    assert raw.reset(Peer.CLIENT) == code, what
    assert raw.reset(Peer.RUNTIME) == ErrorCode.CANCEL
    assert raw.relay.streams == 1
    assert not raw.relay.should_close(Peer.CLIENT)


ENDS_STREAM_OF_RUNTIME = [
    ("DATA before HEADERS", frame(DATA, 0, 1, b"x")),
    ("a response without status", frame(HEADERS, END_HEADERS, 1, b"")),
    (
        "an interim response that ends",
        frames.headers(1, Encoder().encode([(b":status", b"103")]), end_stream=True, max_frame_size=99),
    ),
    ("interim responses without end", frames.headers(1, b"\x08\x03103", end_stream=False, max_frame_size=99) * 17),
    ("trailers that do not end", frame(HEADERS, END_HEADERS, 1, b"\x88") + frame(HEADERS, END_HEADERS, 1, b"")),
    ("WINDOW_UPDATE by nothing", frames.window_update(1, 0)),
]


@pytest.mark.parametrize(("what", "data"), ENDS_STREAM_OF_RUNTIME, ids=[each[0] for each in ENDS_STREAM_OF_RUNTIME])
def test_a_runtime_that_breaks_the_rules_of_a_stream_is_answered_for_with_internal(what: str, data: bytes) -> None:
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


def test_a_runtime_that_goes_on_after_its_whole_answer_changes_nothing_of_it() -> None:
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


def test_a_malformed_request_is_reset_and_never_relayed() -> None:
    raw = Raw()
    raw.headers(Peer.CLIENT, 1, [(b":method", b"GET")])
    assert raw.reset(Peer.CLIENT) == ErrorCode.PROTOCOL_ERROR
    assert raw.got(Peer.RUNTIME) == []
    assert raw.relay.streams == 0


LATE = frame(DATA, 0, 1, bytes(16_000)) * 3 + frames.rst_stream(1, 8) + frames.window_update(1, 5)


def test_what_a_runtime_sends_on_a_stream_that_is_over_is_ignored_and_its_data_credited() -> None:
    raw = Raw()
    raw.open(end_stream=True)
    raw.headers(Peer.RUNTIME, 1, [*ANSWER, *OK], end_stream=True)
    assert raw.relay.streams == 0
    raw.got(Peer.RUNTIME)
    raw.relay.receive(Peer.RUNTIME, LATE)
    raw.headers(Peer.RUNTIME, 1, OK, end_stream=True)
    assert raw.got(Peer.RUNTIME) == [(WINDOW_UPDATE, 0, (48_000).to_bytes(4))]
    assert raw.relay.flow_controls()[Peer.RUNTIME].is_full


def test_what_a_client_had_sent_before_it_heard_that_its_stream_is_over_is_ignored_and_credited() -> None:
    raw = Raw()
    raw.open()
    raw.headers(Peer.RUNTIME, 1, [*ANSWER, *OK], end_stream=True)
    raw.relay.receive(Peer.RUNTIME, frames.rst_stream(1, ErrorCode.NO_ERROR))
    assert raw.relay.streams == 0
    assert raw.reset(Peer.CLIENT) == ErrorCode.NO_ERROR
    raw.relay.receive(Peer.CLIENT, LATE)
    raw.headers(Peer.CLIENT, 1, OK, end_stream=True)
    assert raw.got(Peer.CLIENT) == [(WINDOW_UPDATE, 0, (48_000).to_bytes(4))]
    assert raw.relay.flow_controls()[Peer.CLIENT].is_full


def test_what_a_client_sends_on_a_stream_that_it_ended_itself_ends_its_connection() -> None:
    for ending in (frames.rst_stream(1, ErrorCode.CANCEL), frame(DATA, END_STREAM, 1)):
        raw = Raw()
        raw.open()
        raw.relay.receive(Peer.CLIENT, ending)
        raw.headers(Peer.RUNTIME, 1, [*ANSWER, *OK], end_stream=True)
        assert raw.relay.streams == 0
        raw.got(Peer.CLIENT)
        raw.relay.receive(Peer.CLIENT, frame(DATA, 0, 1, b"more"))
        assert raw.end(Peer.CLIENT) == ErrorCode.STREAM_CLOSED


def test_a_stream_with_a_smaller_number_than_one_before_ends_the_connection_and_not_in_silence() -> None:
    raw = Raw()
    raw.open(5)
    raw.got(Peer.CLIENT)
    raw.open(3)
    assert raw.end(Peer.CLIENT) == ErrorCode.PROTOCOL_ERROR


def test_of_many_streams_that_we_ended_the_newest_are_remembered() -> None:
    raw = Raw()
    for stream in range(1, 2 * 1100, 2):
        raw.headers(Peer.CLIENT, stream, [(b":method", b"GET")])
        assert raw.reset(Peer.CLIENT, stream) == ErrorCode.PROTOCOL_ERROR
    raw.relay.receive(Peer.CLIENT, frame(DATA, 0, 2 * 1100 - 1, b"late"))
    assert raw.got(Peer.CLIENT) == []
    raw.relay.receive(Peer.CLIENT, frame(DATA, 0, 1, b"very late"))
    assert raw.end(Peer.CLIENT) == ErrorCode.STREAM_CLOSED


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
def test_a_request_that_is_not_as_long_as_it_says_is_reset(path: bytes, sent: list[bytes]) -> None:
    raw = Raw()
    raw.headers(Peer.CLIENT, 1, [*request_fields(path), (b"content-length", b"3")])
    for data in sent:
        raw.relay.receive(Peer.CLIENT, data)
    assert raw.reset(Peer.CLIENT) == ErrorCode.PROTOCOL_ERROR
    assert raw.relay.streams == 0


def test_a_request_that_says_a_length_and_has_no_body_is_reset() -> None:
    raw = Raw()
    raw.headers(Peer.CLIENT, 1, [*request_fields(PLAIN), (b"content-length", b"3")], end_stream=True)
    assert raw.reset(Peer.CLIENT) == ErrorCode.PROTOCOL_ERROR
    raw.headers(Peer.CLIENT, 3, [*request_fields(PLAIN), (b"content-length", b"3")])
    raw.headers(Peer.CLIENT, 3, [(b"x", b"y")], end_stream=True)
    assert raw.reset(Peer.CLIENT, 3) == ErrorCode.PROTOCOL_ERROR


def test_a_request_that_is_as_long_as_it_says_passes() -> None:
    raw = Raw()
    raw.headers(Peer.CLIENT, 1, [*request_fields(PLAIN), (b"content-length", b"3")])
    raw.relay.receive(Peer.CLIENT, frame(DATA, 0, 1, b"12") + frame(DATA, 0, 1, b"3") + frame(DATA, END_STREAM, 1))
    assert [payload for kind, _, payload in raw.got(Peer.RUNTIME) if kind == DATA] == [b"12", b"3", b""]
    assert raw.relay.streams == 1


@pytest.mark.parametrize(
    "field", [(b"te", b"gzip"), (b"content-length", b"-1"), (b"content-length", b"three"), (b"content-length", b"")]
)
def test_a_field_with_a_value_that_it_cannot_have_resets_the_request(field: tuple[bytes, bytes]) -> None:
    raw = Raw()
    fields = [each for each in request_fields(PLAIN) if each[0] != field[0]]
    raw.headers(Peer.CLIENT, 1, [*fields, field])
    assert raw.reset(Peer.CLIENT) == ErrorCode.PROTOCOL_ERROR


def test_two_lengths_of_one_request_reset_it() -> None:
    raw = Raw()
    raw.headers(Peer.CLIENT, 1, [*request_fields(PLAIN), (b"content-length", b"3"), (b"content-length", b"4")])
    assert raw.reset(Peer.CLIENT) == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("peer", [Peer.CLIENT, Peer.RUNTIME])
def test_what_rfc_9113_says_to_ignore_is_ignored(peer: Peer) -> None:
    raw = Raw()
    raw.open()
    raw.got(Peer.RUNTIME)
    ignored = frame(0xEE, 0xFF, 77, b"x") + frame(PRIORITY, 0, 99, bytes(5)) + frame(PING, 1, 0, bytes(8))
    ignored += frame(DATA, 0xF0, 1, b"") if peer is Peer.CLIENT else b""
    raw.relay.receive(peer, ignored)
    assert raw.got(Peer.CLIENT) == raw.got(Peer.RUNTIME) == []
    raw.relay.receive(peer, frames.settings([(0x99, 5)]))
    assert raw.got(peer) == [(SETTINGS, 0, b"")]
    assert raw.relay.streams == 1


@pytest.mark.parametrize("peer", [Peer.CLIENT, Peer.RUNTIME])
def test_a_ping_is_answered_to_who_asked(peer: Peer) -> None:
    raw = Raw()
    raw.relay.receive(peer, frame(PING, 0, 0, b"question"))
    assert raw.got(peer) == [(PING, 0, b"question")]


@pytest.mark.parametrize("peer", [Peer.CLIENT, Peer.RUNTIME])
def test_answers_to_a_few_pings_can_wait_for_company_and_nothing_else_can(peer: Peer) -> None:
    raw = Raw()
    ping = frame(PING, 0, 0, b"question")
    assert not raw.relay.can_defer(peer)
    for _ in range(4):
        raw.relay.receive(peer, ping)
        assert raw.relay.can_defer(peer)
    raw.relay.receive(peer, ping)
    assert not raw.relay.can_defer(peer)
    assert raw.got(peer) == [(PING, 0, b"question")] * 5
    raw.relay.receive(peer, ping + frames.settings([]))
    assert not raw.relay.can_defer(peer)


@pytest.mark.parametrize("peer", [Peer.CLIENT, Peer.RUNTIME])
@pytest.mark.parametrize("asked", [frame(PING, 0, 0, bytes(8)), frames.settings([])])
def test_who_asks_without_end_and_reads_no_answer_is_cut_off(peer: Peer, asked: bytes) -> None:
    raw = Raw()
    for _ in range(1000):
        raw.relay.receive(peer, asked)
    out = raw.relay.data_to_send(peer)
    assert len(out) < 2 * LIMITS.max_backlog
    assert raw.relay.should_close(peer)


def test_who_asks_without_end_and_reads_the_answers_is_served() -> None:
    raw = Raw()
    for _ in range(10_000):
        raw.relay.receive(Peer.CLIENT, frame(PING, 0, 0, bytes(8)))
        raw.relay.data_to_send(Peer.CLIENT)
    assert not raw.relay.should_close(Peer.CLIENT)


def test_streams_opened_to_be_cancelled_end_the_connection_unless_others_come_to_their_end() -> None:
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
    assert raw.end(Peer.CLIENT) == ErrorCode.ENHANCE_YOUR_CALM


def test_streams_beyond_the_limit_are_refused_in_a_way_that_is_safe_to_retry() -> None:
    raw = Raw()
    for number in range(12):
        raw.open(2 * number + 1)
    resets = [(stream, frames.uint32_in(load)) for kind, stream, load in raw.got(Peer.CLIENT) if kind == RST_STREAM]
    assert resets == [(21, ErrorCode.REFUSED_STREAM), (23, ErrorCode.REFUSED_STREAM)]
    assert raw.relay.streams == LIMITS.max_streams


def test_a_client_that_opens_streams_and_reads_nothing_is_cut_off() -> None:
    raw = Raw()
    for number in range(1000):
        raw.open(2 * number + 1)
        raw.relay.receive(Peer.CLIENT, frames.rst_stream(2 * number + 1, 8))
        raw.headers(Peer.CLIENT, 2 * number + 1001, [(b":method", b"GET")])
        raw.relay.data_to_send(Peer.RUNTIME)
    assert len(raw.relay.data_to_send(Peer.CLIENT)) < 2 * LIMITS.max_backlog
    assert raw.relay.should_close(Peer.CLIENT)


def test_a_runtime_that_does_not_read_gets_no_more_streams() -> None:
    raw = Raw(Limits(max_backlog=5000, max_resets=1000))
    statuses = []
    for number in range(200):
        raw.open(2 * number + 1)
        raw.relay.receive(Peer.CLIENT, frames.rst_stream(2 * number + 1, 8))
        statuses += [payload for kind, _, payload in raw.got(Peer.CLIENT) if kind == HEADERS]
    assert len(raw.relay.data_to_send(Peer.RUNTIME)) < 6000
    assert statuses
    assert all(b"does not read" in status for status in statuses)
