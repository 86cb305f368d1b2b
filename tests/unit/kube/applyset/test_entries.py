"""Inventories as text: they come back as they were, in pieces that fit."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.kube.applyset.entries import PIECE_BYTES, Entry, entries_of, pack, unpack
from governor.kube.applyset.names import is_name, is_namespace
from governor.kube.objects import ObjectRef
from tests.unit.values.strategies import brief

names = st.one_of(
    st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,30}[a-z0-9])?", fullmatch=True),
    st.text(min_size=1, max_size=20).filter(is_name),
    st.sampled_from(["system:node:x", "v1.example.com", "ü"]),
)
spaces = st.one_of(st.just(""), st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True))
refs = st.builds(ObjectRef, st.sampled_from(["", "apps", "dapr.io"]), st.sampled_from(["A", "B"]), spaces, names)
digests = st.one_of(st.just(""), st.binary(min_size=32, max_size=32).map(lambda raw: f"sha256:{raw.hex()}"))
inventories = st.lists(st.builds(Entry, refs, st.one_of(st.just(""), st.uuids().map(str)), digests)).map(entries_of)


@brief
@given(inventories, st.integers(min_value=1, max_value=2000))
def test_entries_come_back_as_they_were(entries: dict[ObjectRef, Entry], piece_bytes: int) -> None:
    pieces = pack(entries, piece_bytes)
    assert unpack(pieces) == entries
    assert pieces


@brief
@given(inventories, st.integers(min_value=400, max_value=2000))
def test_no_piece_is_larger_than_it_may_be(entries: dict[ObjectRef, Entry], piece_bytes: int) -> None:
    assert max(len(piece.encode()) for piece in pack(entries, piece_bytes)) <= piece_bytes


@brief
@given(inventories)
def test_equal_entries_give_equal_texts(entries: dict[ObjectRef, Entry]) -> None:
    assert pack(dict(reversed(entries.items()))) == pack(entries)


def test_ten_thousand_objects_are_a_few_pieces() -> None:
    entries = entries_of(
        Entry(
            ObjectRef("apps", "Deployment", f"namespace-{number % 50}", f"an-object-with-a-usual-name-{number}"),
            "01234567-0123-0123-0123-0123456789ab",
            f"sha256:{number:064x}",
        )
        for number in range(10_000)
    )
    pieces = pack(entries)
    assert 2 <= len(pieces) <= 4
    assert max(map(len, pieces)) <= PIECE_BYTES
    assert unpack(pieces) == entries


@pytest.mark.parametrize(
    "piece",
    [
        "",
        "{}",
        "[1]",
        '[["", "ConfigMap", "a"]]',
        '[["", "ConfigMap", "a", [["b", "c"]]]]',
        '[["", "ConfigMap", "a", [["b", "", "not base64!"]]]]',
        '[["", "ConfigMap", "a", [["..", "", ""]]]]',
        '[["", "ConfigMap", "..", [["b", "", ""]]]]',
        '[["", "", "a", [["b", "", ""]]]]',
        '[["", "ConfigMap", "a", [["b", "", ""], ["b", "", ""]]]]',
    ],
)
def test_anything_else_is_refused(piece: str) -> None:
    with pytest.raises(GovernorError) as caught:
        unpack([piece])
    assert (caught.value.kind, caught.value.code) == (Kind.PRECONDITION, "inventory-damaged")


@brief
@given(st.recursive(st.one_of(st.none(), st.text(), st.integers()), st.lists, max_leaves=20))
def test_no_text_makes_it_fail_in_another_way(tree: Any) -> None:
    code = ""
    try:
        unpack([json.dumps(tree)])
    except GovernorError as error:
        code = error.code
    assert code in ("", "inventory-damaged")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2fb", "a\0b", "a" * 254])
def test_what_cannot_be_part_of_a_path_is_no_name(name: str) -> None:
    assert not is_name(name)
    assert not is_namespace(name)


@pytest.mark.parametrize("name", ["a", "a-1", "a" * 63])
def test_a_dns_label_is_a_namespace(name: str) -> None:
    assert is_namespace(name)
    assert is_name(name)
