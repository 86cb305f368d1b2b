"""Values as chunks: whatever is not exactly what was stored is rejected."""

import random
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.agent.state.chunks import CHUNK_BYTES, INLINE_BYTES, Index, Place, Value, pack, read_index, unpack

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


def test_a_small_value_is_in_the_index_if_another_one_is_in_chunks() -> None:
    small, large = pack(b"small"), [bytes(INLINE_BYTES)]
    assert not Index("writer").takes_inline("newest.json", small), "a deleted index would be no damage"
    index = Index("writer").with_value("newest.json", Value.of(b"old", small))
    assert not index.takes_inline("newest.json", small)
    assert index.takes_inline("trials.json", small)
    assert index.takes_inline("trials.json", large)
    inline = Value.of(b"small", small, inline=True)
    assert not index.with_value("proofs.json", inline).takes_inline("trials.json", large)
    assert unpack([inline.inline], inline) == b"small"
    assert Place("default", "agent").chunk_names(inline) == []
    replaced = index.with_value("newest.json", inline).with_value("trials.json", inline)
    assert not replaced.takes_inline("trials.json", small)


def test_an_index_of_format_1_is_read_and_stored_in_the_present_one() -> None:
    place = Place("default", "agent")
    stored = msgspec.structs.replace(Index("writer", {"newest.json": Value("1", 2, 3, "digest")}), format=1)
    read = read_index(place.index_manifest(stored))
    assert (read.format, read.values) == (Index("writer").format, stored.values)
