"""Ownership of documents by sources."""

import pytest

from governor.domain.documents import DocumentRef
from governor.errors import GovernorError, Kind
from governor.server.changes.ownership import Ownership

ONE, TWO = DocumentRef("Profile", "one"), DocumentRef("Profile", "two")


def test_only_the_owning_source_may_change_a_document() -> None:
    ownership = Ownership()
    ownership.claim("source:a", [ONE])
    ownership.check([ONE, TWO], "source:a")
    ownership.check([TWO], "ann")
    with pytest.raises(GovernorError) as caught:
        ownership.check([TWO, ONE], "ann")
    assert caught.value.kind is Kind.CONFLICT
    assert [detail.document for detail in caught.value.details] == ["Profile/one"]
    assert "source:a" in caught.value.message


def test_a_new_claim_replaces_only_the_claim_of_the_same_source() -> None:
    ownership = Ownership()
    ownership.claim("source:a", [ONE])
    ownership.claim("source:b", [TWO])
    ownership.claim("source:a", [])
    ownership.check([ONE], "ann")
    with pytest.raises(GovernorError):
        ownership.check([TWO], "ann")
