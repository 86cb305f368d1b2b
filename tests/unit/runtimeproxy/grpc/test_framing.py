"""Framing of the single message in a unary call's body."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.grpc.framing import MESSAGE_LIMIT_BYTES, unwrap, wrap


def compressed(message: bytes) -> bytes:
    return b"\1" + wrap(message)[1:]


@given(st.binary(max_size=64))
def test_a_message_round_trips(message: bytes) -> None:
    assert unwrap(wrap(message)) == message
    assert unwrap(wrap(message), "gzip") == message
    assert unwrap(compressed(gzip.compress(message)), "gzip") == message


@given(st.binary(max_size=64), st.sampled_from(["", "gzip", "zstd"]))
def test_any_bytes_are_a_message_or_a_known_error(body: bytes, encoding: str) -> None:
    try:
        message = unwrap(body, encoding)
    except GovernorError as error:
        assert error.kind in (Kind.INVALID, Kind.UNIMPLEMENTED)  # noqa: PT017
    else:
        assert len(message) == len(body) - 5 or body[0] == 1


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0", wrap(b"ab")[:-1], wrap(b"a") + wrap(b"b"), b"\2\0\0\0\0"])
def test_a_body_that_is_not_one_message_is_rejected(body: bytes) -> None:
    with pytest.raises(GovernorError) as caught:
        unwrap(body)
    assert (caught.value.kind, caught.value.code) == (Kind.INVALID, "grpc-frame")


@pytest.mark.parametrize("encoding", ["", "identity", "deflate", "snappy"])
def test_an_unsupported_encoding_is_named_in_the_error(encoding: str) -> None:
    with pytest.raises(GovernorError, match=repr(encoding)) as caught:
        unwrap(compressed(b"ab"), encoding)
    assert (caught.value.kind, caught.value.code) == (Kind.UNIMPLEMENTED, "grpc-encoding")


@pytest.mark.parametrize("packed", [b"no gzip", gzip.compress(b"cut off" * 99, mtime=0)[:-9], b""])
def test_invalid_gzip_is_rejected(packed: bytes) -> None:
    with pytest.raises(GovernorError) as caught:
        unwrap(compressed(packed), "gzip")
    assert caught.value.kind is Kind.INVALID


def test_a_small_body_cannot_decompress_to_a_huge_message() -> None:
    assert len(unwrap(compressed(gzip.compress(bytes(MESSAGE_LIMIT_BYTES))), "gzip")) == MESSAGE_LIMIT_BYTES
    with pytest.raises(GovernorError) as caught:
        unwrap(compressed(gzip.compress(bytes(MESSAGE_LIMIT_BYTES + 1))), "gzip")
    assert caught.value.kind is Kind.EXHAUSTED
