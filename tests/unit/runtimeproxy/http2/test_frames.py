"""Frames: split from chunks of any size, checked, and built as RFC 9113 specifies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.runtimeproxy.http2 import frames
from governor.runtimeproxy.http2.errors import ErrorCode, Http2ConnectionError
from governor.runtimeproxy.http2.frames import PREFACE, Frame, FrameReader

WRITTEN = [
    (frames.frame(frames.DATA, 1, 3, b"ab"), "000002 00 01 00000003 6162"),
    (frames.headers(5, b"xy", end_stream=True, max_frame_size=16_384), "000002 01 05 00000005 7879"),
    (
        frames.headers(5, b"abcde", end_stream=True, max_frame_size=2),
        "000002 01 01 00000005 6162 000002 09 00 00000005 6364 000001 09 04 00000005 65",
    ),
    (
        frames.headers(5, b"abcd", end_stream=False, max_frame_size=2),
        "000002 01 00 00000005 6162 000002 09 04 00000005 6364",
    ),
    (frames.rst_stream(7, ErrorCode.CANCEL), "000004 03 00 00000007 00000008"),
    (frames.settings([(frames.ENABLE_PUSH, 0)]), "000006 04 00 00000000 0002 00000000"),
    (frames.SETTINGS_ACK, "000000 04 01 00000000"),
    (frames.ping_ack(b"12345678"), "000008 06 01 00000000 3132333435363738"),
    (frames.goaway(9, ErrorCode.PROTOCOL_ERROR, "x"), "000009 07 00 00000000 00000009 00000001 78"),
    (frames.window_update(0, 65_536), "000004 08 00 00000000 00010000"),
]


@pytest.mark.parametrize(("written", "expected"), WRITTEN)
def test_frames_are_built_as_specified(written: bytes, expected: str) -> None:
    assert written == bytes.fromhex(expected)


def read(reader: FrameReader, *chunks: bytes) -> list[Frame]:
    return [(kind, flags, stream, bytes(load)) for chunk in chunks for kind, flags, stream, load in reader.feed(chunk)]


payloads = st.one_of(st.binary(max_size=20), st.integers(1000, 16_384).map(bytes))
some_frames = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**31 - 1), payloads), max_size=6
)


@given(expected=some_frames, preface=st.booleans(), data=st.data())
def test_frames_do_not_depend_on_chunk_boundaries(expected: list[Frame], preface: bool, data: st.DataObject) -> None:
    wire = (PREFACE if preface else b"") + b"".join(frames.frame(*each) for each in expected)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=20)))
    chunks = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    assert read(FrameReader(preface=preface), *chunks) == expected


def test_frames_are_read_from_single_bytes() -> None:
    wire = PREFACE + frames.frame(frames.DATA, 0, 1, b"abc") + frames.SETTINGS_ACK
    reader = FrameReader(preface=True)
    assert read(reader, *(bytes([byte]) for byte in wire)) == [(0, 0, 1, b"abc"), (4, 1, 0, b"")]


def test_the_reserved_bit_of_a_stream_id_is_ignored() -> None:
    assert read(FrameReader(preface=False), frames.frame_header(frames.PING, 0, 2**31 + 5, 0)) == [(6, 0, 5, b"")]


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n\r\n.........", b"PRI * HTTP/2.0\r\n\r\nXX", b"X"])
def test_an_invalid_preface_is_rejected_at_the_first_wrong_byte(start: bytes) -> None:
    reader = FrameReader(preface=True)
    assert read(reader, start, frames.SETTINGS_ACK) == []
    assert reader.error is not None
    assert reader.error.code is ErrorCode.PROTOCOL_ERROR


def test_an_oversized_frame_is_rejected_by_its_header() -> None:
    reader = FrameReader(preface=False)
    too_large = frames.frame_header(frames.DATA, 0, 1, 16_385)
    assert read(reader, frames.SETTINGS_ACK + too_large, frames.SETTINGS_ACK) == [(4, 1, 0, b"")]
    assert reader.error is not None
    assert reader.error.code is ErrorCode.FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    ("payload", "content"), [(b"\x00", b""), (b"\x00ab", b"ab"), (b"\x02ab\x00\x00", b"ab"), (b"\x03\x00\x00\x00", b"")]
)
def test_padding_is_stripped(payload: bytes, content: bytes) -> None:
    assert frames.strip_padding(payload) == content


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x03ab"])
def test_padding_beyond_the_payload_is_an_error(payload: bytes) -> None:
    with pytest.raises(Http2ConnectionError) as caught:
        frames.strip_padding(payload)
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("kind", "size"), [(frames.PRIORITY, 5), (frames.RST_STREAM, 4), (frames.PING, 8), (frames.WINDOW_UPDATE, 4)]
)
def test_frames_of_fixed_size_are_checked(kind: int, size: int) -> None:
    frames.check_size(kind, bytes(size))
    for wrong in (0, size - 1, size + 1):
        with pytest.raises(Http2ConnectionError) as caught:
            frames.check_size(kind, bytes(wrong))
        assert caught.value.code is ErrorCode.FRAME_SIZE_ERROR


def test_settings_and_goaway_round_trip() -> None:
    values = [(frames.INITIAL_WINDOW_SIZE, 2**31), (0xFFFF, 2**32 - 1)]
    assert list(frames.settings_in(frames.settings(values)[9:])) == values
    assert frames.goaway_in(frames.goaway(7, 11, "why")[9:]) == (7, 11)


@pytest.mark.parametrize("parse", [frames.settings_in, frames.goaway_in])
def test_truncated_settings_and_goaway_are_errors(parse: object) -> None:
    assert callable(parse)
    with pytest.raises(Http2ConnectionError) as caught:
        parse(bytes(7))
    assert caught.value.code is ErrorCode.FRAME_SIZE_ERROR
