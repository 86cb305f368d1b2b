"""Values as chunks: whatever is not exactly what was stored is rejected."""

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.agent.state.chunks import CHUNK_BYTES, Index, Place, Value, pack, unpack

LARGE = random.Random(7).randbytes(2 * CHUNK_BYTES)


@given(st.binary(max_size=2000))
def test_a_value_is_unpacked_as_it_was_packed(data: bytes) -> None:
    packed = pack(data)
    assert (len(packed), unpack(packed, Value.of(data, packed))) == (1, data)


def test_a_large_value_has_several_chunks_below_the_limit_of_an_object() -> None:
    packed = pack(LARGE)
    assert [len(each) <= CHUNK_BYTES < 1024 * 1024 for each in packed] == [True] * 3
    assert unpack(packed, Value.of(LARGE, packed)) == LARGE


@pytest.mark.parametrize("order", [(0, 1), (1, 0, 2), (0, 1, 1), (0, 1, 2, 2), ()])
def test_missing_repeated_or_swapped_chunks_are_rejected(order: tuple[int, ...]) -> None:
    packed = pack(LARGE)
    with pytest.raises(ValueError, match="stored"):
        unpack([packed[each] for each in order], Value.of(LARGE, packed))


def test_no_more_is_decompressed_than_was_stored() -> None:
    value = Value.of(b"small", pack(b"small"))
    with pytest.raises(ValueError, match="differs"):
        unpack([zlib.compress(bytes(10_000_000))], value)


def test_each_stored_value_has_names_of_its_own() -> None:
    one, two = (Place("default", "agent").chunk_names(Value.of(b"a", [b"a"])) for _ in range(2))
    assert not set(one) & set(two)


def test_an_index_names_one_value_for_each_name() -> None:
    one, two = Value("1", 2, 3, "digest"), Value("2", 2, 3, "digest")
    index = Index("writer").with_value("newest.json", one).with_value("newest.json", two)
    assert dict(index.values) == {"newest.json": two}
    assert index.with_value("newest.json", None) == Index("writer")
