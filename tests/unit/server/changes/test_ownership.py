"""Which documents are read-only for whom."""

import pytest

from governor.domain.documents import DocumentRef
from governor.errors import GovernorError, Kind
from governor.server.changes.ownership import Ownership

ONE, TWO = DocumentRef("Profile", "one"), DocumentRef("Profile", "two")


def test_a_document_of_a_source_is_changed_by_it_alone() -> None:
    ownership = Ownership()
    ownership.claim("source:a", [ONE])
    ownership.check([ONE, TWO], "source:a")
    ownership.check([TWO], "ann")
    with pytest.raises(GovernorError) as caught:
        ownership.check([TWO, ONE], "ann")
    assert caught.value.kind is Kind.CONFLICT
    assert [detail.document for detail in caught.value.details] == ["Profile/one"]
    assert "source:a" in caught.value.message


def test_a_new_claim_replaces_the_old_one_of_the_same_source_only() -> None:
    ownership = Ownership()
    ownership.claim("source:a", [ONE])
    ownership.claim("source:b", [TWO])
    ownership.claim("source:a", [])
    ownership.check([ONE], "ann")
    with pytest.raises(GovernorError):
        ownership.check([TWO], "ann")
