"""Negotiation of formats."""

import pytest

from governor.errors import GovernorError, Kind
from governor.wire.formats import DELIVERY_FORMATS, announce, negotiate


@pytest.mark.parametrize(
    ("theirs", "ours", "chosen"),
    [(None, (1, 2), 1), ("1", (1, 2), 1), ("1, 2", (1, 2), 2), ("2,3,9", (1, 2), 2), ("1, 2, 3", (1,), 1)],
)
def test_the_newest_common_format_is_used(theirs: str | None, ours: tuple[int, ...], chosen: int) -> None:
    headers = {} if theirs is None else {DELIVERY_FORMATS: theirs}
    assert negotiate(headers, DELIVERY_FORMATS, ours) == chosen


def test_an_announcement_is_read_back() -> None:
    assert negotiate({DELIVERY_FORMATS: announce((1, 2))}, DELIVERY_FORMATS, (1, 2)) == 2


@pytest.mark.parametrize(("theirs", "ours", "older"), [("3, 4", (1, 2), "server"), (None, (2, 3), "agent")])
def test_without_a_common_format_the_error_names_the_older_program(
    theirs: str | None, ours: tuple[int, ...], older: str
) -> None:
    headers = {} if theirs is None else {DELIVERY_FORMATS: theirs}
    with pytest.raises(GovernorError, match=f"upgrade the {older}") as caught:
        negotiate(headers, DELIVERY_FORMATS, ours)
    assert (caught.value.kind, caught.value.code) == (Kind.UNIMPLEMENTED, "format-unsupported")


@pytest.mark.parametrize("text", ["", "two", "1,,2", "1;2", "1.5"])
def test_an_unreadable_announcement_is_invalid(text: str) -> None:
    with pytest.raises(GovernorError, match=DELIVERY_FORMATS) as caught:
        negotiate({DELIVERY_FORMATS: text}, DELIVERY_FORMATS, (1, 2))
    assert caught.value.kind is Kind.INVALID
