"""Bytes in pieces: whatever the pieces, the lines and bodies are the same, and never more than the limit."""

import gzip
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.kube.client.body import BodyBuffer, ContentEncodingError, LineSplitter, TooLargeError, decompress


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=20))
def test_lines_do_not_depend_on_where_the_pieces_end(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    lines = LineSplitter()
    found = [line for start, end in itertools.pairwise(edges) for line in lines.feed(data[start:end])]
    assert [*found, lines.rest()] == data.split(b"\n")


def test_a_character_of_several_bytes_survives_being_cut() -> None:
    lines = LineSplitter()
    text = '{"name":"größe 🚢"}'.encode()
    found = [line for byte in text + b"\n" for line in lines.feed(bytes([byte]))]
    assert found == [text]


def test_a_line_that_never_ends_is_refused() -> None:
    lines = LineSplitter(max_bytes=10)
    assert lines.feed(b"12345") == []
    with pytest.raises(TooLargeError):
        lines.feed(b"678901")


def test_many_short_lines_are_not_a_long_one() -> None:
    lines = LineSplitter(max_bytes=10)
    assert sum(len(lines.feed(b"1234\n567")) for _ in range(100)) == 100


def test_a_body_that_grows_too_large_is_refused() -> None:
    body = BodyBuffer(max_bytes=4)
    body.add(b"1234")
    assert body.value() == b"1234"
    with pytest.raises(TooLargeError):
        body.add(b"5")


@given(st.binary(max_size=500))
def test_packing_is_undone(data: bytes) -> None:
    assert decompress(gzip.compress(data), "gzip", 500) == data
    assert decompress(data, "identity", 500) == data


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(TooLargeError):
        decompress(gzip.compress(bytes(10_000_000)), "gzip", 1000)


def test_a_body_of_just_the_limit_is_unpacked() -> None:
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
def test_what_cannot_be_unpacked_is_refused(body: bytes, encoding: str) -> None:
    with pytest.raises(ContentEncodingError):
        decompress(body, encoding)
