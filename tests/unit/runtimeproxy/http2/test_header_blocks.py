"""Header blocks: decoded and encoded against the hpack library, and validated."""

import pytest
from hpack import Decoder, Encoder, HeaderTuple, NeverIndexedHeaderTuple
from hypothesis import given
from hypothesis import strategies as st

from governor.runtimeproxy.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError
from governor.runtimeproxy.http2.header_blocks import (
    Fields,
    FieldValidator,
    HeaderDecoder,
    HeaderEncoder,
    encode_literal,
)
from tests.unit.runtimeproxy.http2.bed import ANSWER, OK, request_fields

few = st.lists(st.sampled_from([(b"a", b"1"), (b"b", b"2"), (b":status", b"200"), (b"c", bytes(1500))]), max_size=4)


@given(lists=st.lists(few, max_size=12))
def test_a_cached_block_is_decoded_again_after_the_table_changed(lists: list[Fields]) -> None:
    encoder, reader = Encoder(), HeaderDecoder(1 << 20)
    for each in lists:
        assert reader.decode(encoder.encode(each)) == each


def test_a_block_is_decoded_with_the_current_table() -> None:
    reader = HeaderDecoder(1000)
    assert reader.decode(b"\x40\x01a\x011") == reader.decode(b"\xbe") == reader.decode(b"\xbe") == [(b"a", b"1")]
    assert reader.decode(b"\x40\x01b\x012") == reader.decode(b"\xbe") == [(b"b", b"2")]
    assert reader.decode(b"\x20\x88") == [(b":status", b"200")]
    with pytest.raises(Http2ConnectionError):
        reader.decode(b"\xbe")


def test_entries_beyond_the_one_byte_indexes_are_decoded() -> None:
    encoder, reader = Encoder(), HeaderDecoder(1 << 20)
    # A request's deadline is a new entry each time, so the other entries get ever larger indexes.
    requests = [[(b":method", b"POST"), (b"te", b"trailers"), (b"grpc-timeout", b"%du" % each)] for each in range(79)]
    for each in requests:
        assert reader.decode(encoder.encode(each)) == each
    block = encoder.encode(requests[0])
    assert block == b"\x83\xff\x0e\xff\x0d"
    assert reader.decode(block) == requests[0]


@pytest.mark.parametrize("block", [b"\xff", b"\xff\x80", b"\xff\x00", b"\xff\xff\xff\xff\xff\x0f", b"\x80", b"\xfe"])
def test_an_index_that_is_cut_off_or_unknown_is_a_compression_error(block: bytes) -> None:
    with pytest.raises(Http2ConnectionError) as raised:
        HeaderDecoder(1000).decode(block)
    assert raised.value.code is ErrorCode.COMPRESSION_ERROR


def test_a_list_of_large_entries_beyond_the_limit_is_rejected() -> None:
    reader = HeaderDecoder(10_000)
    assert reader.decode(Encoder().encode([(b"a", bytes(3000))])) == [(b"a", bytes(3000))]
    with pytest.raises(Http2ConnectionError) as raised:
        reader.decode(b"\xbe" * 4)
    assert raised.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_cached_fields_are_encoded_alike_except_in_a_connections_first_block() -> None:
    reader, decoder = HeaderDecoder(1000), Decoder()
    first, second = HeaderEncoder(), HeaderEncoder()
    fields = [reader.decode(b"\x88\x83") for _ in range(3)]
    assert fields[1] is fields[2]
    for writer in (first, second, first):
        assert list(decoder.decode(writer.encode(fields[1]), raw=True)) == [(b":status", b"200"), (b":method", b"POST")]
    assert second.encode(fields[1]) == b"\x88\x83"
    assert HeaderEncoder().encode(fields[1]) == b"\x20\x88\x83"


def test_fields_valid_in_a_response_are_checked_again_as_trailers() -> None:
    reader, validator = HeaderDecoder(1000), FieldValidator()
    reader.decode(b"\x88")
    known = reader.decode(b"\x88")
    assert validator.check_response(known) == validator.check_response(known) == b"200"
    for check in (validator.check_trailers, validator.check_request, validator.check_trailers):
        with pytest.raises(Http2StreamError):
            check(known)
    assert validator.check_response(known) == b"200"


names = st.one_of(
    st.sampled_from([b":path", b":status", b"content-type", b"grpc-timeout", b"cookie"]), st.binary(max_size=200)
)
values = st.one_of(st.sampled_from([b"200", b"/", b"application/grpc", b""]), st.binary(max_size=300))
fields = st.lists(st.tuples(names, values, st.booleans()), max_size=8)


def marked(drawn: list[tuple[bytes, bytes, bool]]) -> Fields:
    return [NeverIndexedHeaderTuple(name, value) if never else HeaderTuple(name, value) for name, value, never in drawn]


@given(lists=st.lists(fields, max_size=5), huffman=st.booleans(), table_size=st.sampled_from([None, 0, 60, 4096]))
def test_blocks_are_decoded_with_the_table_left_by_earlier_ones(
    lists: list[list[tuple[bytes, bytes, bool]]], huffman: bool, table_size: int | None
) -> None:
    encoder, reader = Encoder(), HeaderDecoder(1 << 20)
    for number, drawn in enumerate(lists):
        if number == 2 and table_size is not None:
            encoder.header_table_size = table_size
        expected = marked(drawn)
        assert reader.decode(encoder.encode(expected, huffman=huffman)) == expected


@given(lists=st.lists(fields, max_size=5), table_size=st.sampled_from([0, 60, 4096]))
def test_encoded_blocks_can_be_decoded_in_any_order_with_any_table_size(
    lists: list[list[tuple[bytes, bytes, bool]]], table_size: int
) -> None:
    writer, decoder = HeaderEncoder(), Decoder(1 << 20)
    decoder.max_allowed_table_size = table_size
    expected = [marked(drawn) for drawn in lists]
    first = writer.encode([])
    assert list(decoder.decode(first, raw=True)) == []
    blocks = [writer.encode(each) for each in expected]
    for block, each in reversed(list(zip(blocks, expected, strict=True))):
        decoded = list(decoder.decode(block, raw=True))
        assert decoded == each
        assert [type(field) for field in decoded if isinstance(field, NeverIndexedHeaderTuple)] == [
            type(field) for field in each if isinstance(field, NeverIndexedHeaderTuple)
        ]


def test_a_never_indexed_field_stays_so_after_the_same_field_was_encoded_plainly() -> None:
    writer, decoder = HeaderEncoder(), Decoder()
    secret = NeverIndexedHeaderTuple(b"authorization", b"bearer x")
    decoded = []
    for field in ((b"authorization", b"bearer x"), secret, (b"authorization", b"bearer x")):
        (got,) = decoder.decode(writer.encode([field]), raw=True)
        decoded.append(isinstance(got, NeverIndexedHeaderTuple))
    assert decoded == [False, True, False]


def test_caches_are_bounded() -> None:
    writer = HeaderEncoder()
    for number in range(5000):
        writer.encode([(b"grpc-timeout", b"%dm" % number), (b"big", bytes(1000))])
    assert len(writer._cache) <= 512
    validator = FieldValidator()
    for number in range(5000):
        validator.check_trailers([(b"grpc-timeout", b"%dm" % number)])
    assert len(validator._valid) <= 512


def test_static_table_entries_are_encoded_in_one_byte() -> None:
    assert encode_literal((b":status", b"200")) == b"\x88"
    assert encode_literal((b":method", b"POST")) == b"\x83"


@pytest.mark.parametrize(
    "block",
    [b"\x80", b"\xbe", b"\xff\xff\xff\xff\xff\xff\xff", b"\x40", b"\x00\x05ab", b"\x88\x20", b"\x88\x88\x3f\xe1\x1f"],
)
def test_an_undecodable_block_is_a_connection_error(block: bytes) -> None:
    with pytest.raises(Http2ConnectionError) as caught:
        HeaderDecoder(1000).decode(block)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


@pytest.mark.parametrize(
    "block", [b"\x88" * 30, b"\x88" * 24 + b"\x00\x01a\x01b", Encoder().encode([(b"a", bytes(1000))])]
)
def test_an_oversized_header_list_is_a_connection_error(block: bytes) -> None:
    with pytest.raises(Http2ConnectionError) as caught:
        HeaderDecoder(1000).decode(block)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_a_small_block_that_repeats_a_large_field_is_a_connection_error() -> None:
    encoder, reader = Encoder(), HeaderDecoder(100_000)
    reader.decode(encoder.encode([(b"bomb", bytes(3000))]))
    with pytest.raises(Http2ConnectionError) as caught:
        reader.decode(b"\xbe" * 100)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_valid_fields_return_path_length_and_status() -> None:
    validator = FieldValidator()
    assert validator.check_request(request_fields(b"/a/B", (b"x-odd", b" kept \xff "))) == (b"/a/B", None)
    assert validator.check_request(request_fields(b"/a/B", (b"content-length", b"12"))) == (b"/a/B", 12)
    assert validator.check_response(ANSWER) == b"200"
    validator.check_trailers(OK)


@pytest.mark.parametrize(
    "wrong",
    [
        [(b":method", b"CONNECT"), (b":authority", b"x")],
        [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"")],
        request_fields(b"/a/B")[1:],
        [*request_fields(b"/a/B"), (b":path", b"/c/D")],
        [(b":path", b"/c/D"), *request_fields(b"/a/B")],
        [(b":status", b"200"), *request_fields(b"/a/B")],
        [*request_fields(b"/a/B"), (b"Upper", b"x")],
        [*request_fields(b"/a/B"), (b"", b"x")],
        [*request_fields(b"/a/B"), (b"with space", b"x")],
        [*request_fields(b"/a/B"), (b"x", b"a\nb")],
        [*request_fields(b"/a/B"), (b"x", b"a\x00b")],
        [*request_fields(b"/a/B"), (b"connection", b"close")],
        [*request_fields(b"/a/B"), (b"transfer-encoding", b"chunked")],
    ],
)
def test_a_malformed_request_is_a_stream_error(wrong: Fields) -> None:
    validator = FieldValidator()
    for _ in range(2):
        with pytest.raises(Http2StreamError) as caught:
            validator.check_request(wrong)
        assert caught.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("wrong", [[], OK, [(b":status", b"20")], [(b":status", b"abc")], [*ANSWER, *ANSWER]])
def test_a_malformed_response_is_a_stream_error(wrong: Fields) -> None:
    with pytest.raises(Http2StreamError):
        FieldValidator().check_response(wrong)


def test_pseudo_header_fields_in_trailers_are_a_stream_error() -> None:
    with pytest.raises(Http2StreamError):
        FieldValidator().check_trailers(ANSWER)
