"""Sealing: values round-trip, and a sealed value reveals only equality."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError
from governor.server.store.sealer import KEY_BYTES, Sealer
from governor.values.secret import Sealed

SEALER = Sealer(b"k" * KEY_BYTES)


@given(st.text() | st.integers(-(1 << 63), (1 << 63) - 1) | st.booleans() | st.lists(st.text()))
def test_a_sealed_value_round_trips_with_its_type(value: object) -> None:
    opened = SEALER.open(SEALER.seal(value))
    assert (opened, type(opened)) == (value, type(value))


@given(st.text(), st.text())
def test_macs_are_equal_if_and_only_if_values_are(one: str, other: str) -> None:
    assert (SEALER.seal(one).mac == SEALER.seal(other).mac) == (one == other)


def test_sealing_a_value_twice_gives_different_boxes() -> None:
    boxes = {SEALER.seal("value").box for _ in range(100)}
    assert len(boxes) == 100


def test_a_number_and_its_text_have_different_macs() -> None:
    assert SEALER.seal(1).mac != SEALER.seal("1").mac


def test_another_key_cannot_open_a_value_and_gives_other_macs() -> None:
    other = Sealer(b"o" * KEY_BYTES)
    with pytest.raises(GovernorError) as caught:
        other.open(SEALER.seal("value"))
    assert caught.value.code == "sealed-foreign"
    assert other.seal("value").mac != SEALER.seal("value").mac


def test_an_altered_box_and_a_foreign_mac_are_rejected() -> None:
    sealed, foreign = SEALER.seal("value"), SEALER.seal("other")
    altered = sealed.box[:-6] + ("A" if sealed.box[-6] != "A" else "B") + sealed.box[-5:]
    for wrong in (Sealed(altered, sealed.mac), Sealed(sealed.box, foreign.mac)):
        with pytest.raises(GovernorError) as caught:
            SEALER.open(wrong)
        assert caught.value.code == "sealed-altered"


def test_all_sealed_leaves_of_a_tree_are_opened() -> None:
    tree = {"a": [SEALER.seal("x"), {"b": SEALER.seal(2)}], "c": "plain"}
    assert SEALER.open_tree(tree) == {"a": ["x", {"b": 2}], "c": "plain"}
