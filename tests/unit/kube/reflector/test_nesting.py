"""Cutting deep parts out of JSON text agrees with the same on decoded values."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.kube.reflector.nesting import cut_below

CUT = "cut"

texts = st.text() | st.text(alphabet='{}[]"\\/\b\n,:')
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(texts, children, max_size=4),
    max_leaves=30,
)
depths = st.integers(0, 5)


def expected(value: Any, depth: int) -> Any:
    """Return a decoded value with each part that is nested too deeply replaced."""
    match value:
        case dict() | list() if depth == 0:
            return CUT
        case dict():
            return {key: expected(each, depth - 1) for key, each in value.items()}
        case list():
            return [expected(each, depth - 1) for each in value]
    return value


@given(values, depths, st.booleans(), st.sampled_from([None, 1]))
def test_it_cuts_the_same_as_from_the_decoded_value(value: Any, depth: int, ascii_only: bool, indent: int) -> None:
    document = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", errors="surrogatepass")
    cut = cut_below(document, depth)
    filled = cut.fill([b'"cut"'] * len(cut.parts))
    assert json.loads(filled) == expected(value, depth)
    assert cut.fill(cut.parts) == document
    assert all(isinstance(json.loads(part), dict | list) for part in cut.parts)


def is_json(document: bytes) -> bool:
    try:
        json.loads(document)
    except ValueError:
        return False
    return True


@given(st.text(alphabet='{}[]"\\a1,:').map(str.encode), depths)
def test_any_text_is_cut_or_rejected_and_never_lost(document: bytes, depth: int) -> None:
    try:
        cut = cut_below(document, depth)
    except msgspec.DecodeError:
        assert not is_json(document)
    else:
        assert cut.fill(cut.parts) == document


@pytest.mark.parametrize("levels", [10_000, 300_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"]":', b"}]")])
def test_a_document_of_any_depth_is_cut(opening: bytes, closing: bytes, levels: int) -> None:
    deep = opening * levels + b"1" + closing * levels
    assert cut_below(b'{"a":' + deep + b',"b":[]}', 1) == ([b'{"a":', b',"b":', b"}"], [deep, b"[]"])


@pytest.mark.parametrize(
    "document",
    [b"[", b"]", b"[}", b'{"a":[}]', b"[[[", b'["', b'"' + b'\\"' * 100_000, b"[" * 300_000],
)
def test_an_unbalanced_document_is_rejected(document: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        cut_below(document, 1)


def test_only_the_numbers_of_parts_are_valid() -> None:
    cut = cut_below(b"[{},[]]", 1)
    assert cut.number() == b"[0,1]"
    assert [cut.part(number) for number in (0, 1)] == [b"{}", b"[]"]
    for number in (-1, 2):
        with pytest.raises(msgspec.ValidationError):
            cut.part(number)
