"""Requests that open watches are recognized in header blocks that are not decoded."""

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from governor.runtimeproxy.http2.watches import WATCHES, WatchFinder
from tests.unit.runtimeproxy.http2.bed import PLAIN, request_fields

PATHS = [*sorted(WATCHES), PLAIN, b"/", b"/runtime.v1.RuntimeService/GetContainerEventsAndMore"]


@given(
    st.lists(st.tuples(st.sampled_from(PATHS), st.integers(0, 99_999), st.booleans()), max_size=40),
    st.sampled_from([4096, 200, 0]),
)
def test_watches_are_found_however_their_path_is_encoded(
    requests: list[tuple[bytes, int, bool]], table_size: int
) -> None:
    encoder, finder = Encoder(), WatchFinder()
    encoder.header_table_size = table_size
    for path, timeout, huffman in requests:
        fields = request_fields(path, (b"grpc-timeout", b"%du" % timeout))
        assert finder.is_watch(encoder.encode(fields, huffman=huffman)) is (path in WATCHES)


@pytest.mark.parametrize("path", sorted(WATCHES))
def test_a_path_that_is_never_indexed_is_found(path: bytes) -> None:
    block = b"\x14" + bytes([len(path)]) + path
    assert WatchFinder().is_watch(block)


@given(st.binary(max_size=60), st.integers(0, 60))
def test_no_block_raises(junk: bytes, cut: int) -> None:
    finder = WatchFinder()
    finder.is_watch(Encoder().encode(request_fields(min(WATCHES)))[:cut])
    finder.is_watch(junk + min(WATCHES))
    finder.is_watch(junk)
