"""Response bodies: chunk boundaries do not matter, and limits hold."""

import gzip
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.kube.client.body import BodyBuffer, ContentEncodingError, LineSplitter, TooLargeError, decompress


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=20))
def test_lines_do_not_depend_on_chunk_boundaries(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    splitter = LineSplitter()
    found = [line for start, end in itertools.pairwise(edges) for line in splitter.feed(data[start:end])]
    assert [*found, splitter.rest()] == data.split(b"\n")


def test_a_multibyte_character_may_span_chunks() -> None:
    splitter = LineSplitter()
    text = '{"name":"größe 🚢"}'.encode()
    found = [line for byte in text + b"\n" for line in splitter.feed(bytes([byte]))]
    assert found == [text]


def test_a_line_above_the_limit_is_rejected() -> None:
    splitter = LineSplitter(max_bytes=10)
    assert splitter.feed(b"12345") == []
    with pytest.raises(TooLargeError):
        splitter.feed(b"678901")


def test_the_limit_applies_to_each_line() -> None:
    splitter = LineSplitter(max_bytes=10)
    assert sum(len(splitter.feed(b"1234\n567")) for _ in range(100)) == 100


def test_a_body_above_the_limit_is_rejected() -> None:
    body = BodyBuffer(max_bytes=4)
    body.add(b"1234")
    assert body.value() == b"1234"
    with pytest.raises(TooLargeError):
        body.add(b"5")


@given(st.binary(max_size=500))
def test_gzip_round_trips(data: bytes) -> None:
    assert decompress(gzip.compress(data), "gzip", 500) == data
    assert decompress(gzip.compress(data), "GZIP", 500) == data
    assert decompress(data, "identity", 500) == data


def test_a_gzip_bomb_is_not_decompressed() -> None:
    with pytest.raises(TooLargeError):
        decompress(gzip.compress(bytes(10_000_000)), "gzip", 1000)


def test_a_body_of_exactly_the_limit_is_decompressed() -> None:
    assert decompress(gzip.compress(b"x" * 1000), "gzip", 1000) == b"x" * 1000


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (gzip.compress(b"hello there", mtime=0)[:-9], "gzip"),
        (gzip.compress(b"x", mtime=0) + b"more", "gzip"),
        (b"plain", "gzip"),
        (zlib.compress(b"x"), "gzip"),
        (b"x", "br"),
    ],
)
def test_a_body_that_cannot_be_decompressed_is_rejected(body: bytes, encoding: str) -> None:
    with pytest.raises(ContentEncodingError):
        decompress(body, encoding)
