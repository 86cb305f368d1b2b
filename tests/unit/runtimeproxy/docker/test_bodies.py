"""Framing of bodies, however their bytes are split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError
from governor.runtimeproxy.docker.bodies import Body, Chunked, NoBody, Sized, UntilClose


def chunked(parts: list[bytes], trailers: bytes = b"") -> bytes:
    """Return a body in these chunks."""
    chunks = b"".join(b"%x;ext=%d\r\n%s\r\n" % (len(each), len(each), each) for each in parts if each)
    return chunks + b"000\r\n" + trailers + b"\r\n"


def taken(body: Body, pieces: list[bytes]) -> tuple[int, bytes]:
    """Return how much of the pieces belongs to a body, and what it carries."""
    payload, total = bytearray(), 0
    for piece in pieces:
        if body.is_complete:
            break
        total += body.take(piece, payload)
    return total, bytes(payload)


@st.composite
def pieces_of(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Return the bytes cut at any places."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(parts=st.lists(st.binary(max_size=40), max_size=6), trailers=st.sampled_from([b"", b"T: 1\r\n"]), data=st.data())
def test_a_chunked_body_ends_at_its_last_byte_however_it_is_split(
    parts: list[bytes], trailers: bytes, data: st.DataObject
) -> None:
    encoded, body = chunked(parts, trailers), Chunked()

    length, payload = taken(body, data.draw(pieces_of(encoded + b"GET /next HTTP/1.1\r\n")))

    assert body.is_complete
    assert (length, payload) == (len(encoded), b"".join(parts))


@given(parts=st.lists(st.binary(max_size=40), max_size=6), cut=st.integers(0, 400))
def test_a_chunked_body_is_complete_only_with_its_last_byte(parts: list[bytes], cut: int) -> None:
    encoded, body = chunked(parts), Chunked()

    body.take(encoded[:cut])

    assert body.is_complete is (cut >= len(encoded))


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n",
        b"g\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x1\r\n",
        b" 1\r\n",
        b"1\nx\r\n",
        b"1\r\nxx\r\n",
        b"1\r\nx\n",
        b"1\rx\r\n",
        b"1;a\x00\r\n",
        b"f" * 16 + b"\r\n",
        b"1;" + b"x" * 5000,
        b"0\r\n" + b"T: 1\r\n" * 20_000,
        b"0\r\nT: 1\n\r\n",
    ],
)
def test_a_malformed_chunked_body_is_refused(data: bytes) -> None:
    with pytest.raises(GovernorError, match="malformed chunked body"):
        Chunked().take(data)


@given(data=st.binary(max_size=40))
def test_any_chunks_are_refused_or_taken_at_most_once(data: bytes) -> None:
    body = Chunked()
    try:
        length = body.take(data)
    except GovernorError:
        return
    assert length <= len(data)
    assert body.is_complete or length == len(data)


def test_a_sized_body_takes_its_size_and_no_more() -> None:
    body = Sized(5)

    assert taken(body, [b"abc", b"defg"]) == (5, b"abcde")
    assert body.is_complete
    assert NoBody().is_complete


def test_a_body_until_the_close_takes_all() -> None:
    body = UntilClose()

    assert taken(body, [b"abc", b"def"]) == (6, b"abcdef")
    assert not body.is_complete
