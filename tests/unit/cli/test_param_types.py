import click
import pytest

from governor.cli.param_types import DocumentName, Duration
from governor.domain.documents import DocumentRef


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43200), ("30d", 2592000)])
def test_a_duration_is_a_number_and_its_unit(text: str, seconds: int) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "90", "0s", "-1m", "1.5h", "1w", "m", "99999999d"])
def test_an_invalid_duration_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="15m"):
        Duration().convert(text, None, None)


@pytest.mark.parametrize("text", ["Profile/orders", "profile/orders", "PROFILE/orders"])
def test_a_document_is_named_by_kind_and_name(text: str) -> None:
    assert DocumentName().convert(text, None, None) == DocumentRef("Profile", "orders")


@pytest.mark.parametrize("text", ["orders", "Profile/", "/orders", "Pod/orders", "Profile/a/b"])
def test_an_invalid_document_name_is_rejected_with_the_known_kinds(text: str) -> None:
    with pytest.raises(click.BadParameter, match="Profile"):
        DocumentName().convert(text, None, None)
