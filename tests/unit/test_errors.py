"""The text of errors: the message first, then each detail with its location."""

import pytest

from governor.errors import Detail, GovernorError, Kind, invalid


@pytest.mark.parametrize(
    ("detail", "text"),
    [
        (Detail("wrong"), "wrong"),
        (Detail("wrong", path="spec.x"), "spec.x: wrong"),
        (Detail("wrong", document="Profile/a", path="spec.x"), "Profile/a spec.x: wrong"),
        (Detail("wrong", "f.yaml", 3, "Profile/a", "spec.x"), "f.yaml:3: Profile/a spec.x: wrong"),
        (Detail("wrong", "f.yaml"), "f.yaml: wrong"),
        (Detail("wrong", "f.yaml", 3), "f.yaml:3: wrong"),
        (Detail("wrong", line=3), "wrong"),
    ],
)
def test_a_detail_names_its_location_as_far_as_it_is_known(detail: Detail, text: str) -> None:
    assert str(detail) == text


def test_an_error_prints_its_message_and_each_detail_on_a_line() -> None:
    error = GovernorError(Kind.CONFLICT, "code", "two disagree", [Detail("one", path="a"), Detail("other", path="b")])
    assert str(error) == "two disagree\n  a: one\n  b: other"
    assert (error.kind, error.code, error.message) == (Kind.CONFLICT, "code", "two disagree")


def test_an_error_without_details_is_its_message() -> None:
    assert str(GovernorError(Kind.INTERNAL, "code", "failed")) == "failed"


def test_details_may_be_any_iterable() -> None:
    error = invalid("code", "wrong", (Detail(reason) for reason in "ab"))
    assert error.kind is Kind.INVALID
    assert error.details == (Detail("a"), Detail("b"))


def test_each_kind_is_valid_in_a_url() -> None:
    assert all(kind.value.replace("-", "").isalpha() and kind.value == kind.value.lower() for kind in Kind)
    assert len(set(Kind)) == 12
