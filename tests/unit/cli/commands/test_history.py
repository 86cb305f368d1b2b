from datetime import UTC, datetime, timedelta

from governor.cli.commands.history import history_text
from governor.domain.changes import Revision
from governor.domain.documents import DocumentRef
from governor.wire.rest import DocumentView

NOW = datetime(2026, 1, 2, tzinfo=UTC)
EARLIER = NOW - timedelta(minutes=5)


def revision(number: int, *documents: DocumentRef, message: str = "") -> Revision:
    return Revision(number, "sha256:x", number - 1 or None, "anna", message, EARLIER, documents)


def view(version: int, revision: int, document: dict[str, object] | None) -> DocumentView:
    return DocumentView("Profile", "a", version, revision, document)


def test_the_history_of_a_document_shows_the_differences_of_each_revision() -> None:
    ref = DocumentRef("Profile", "a")
    versions = {
        1: view(1, 1, {"spec": {"priority": 1}}),
        2: view(2, 3, {"spec": {"priority": 2}}),
        3: view(3, 4, {"spec": {"priority": 2}}),
        4: view(4, 5, None),
        5: view(5, 6, {"spec": {}}),
    }
    revisions = [revision(number, ref, message=f"m{number}") for number in (6, 5, 4, 3)]
    revisions.append(revision(1, ref, DocumentRef("Runtime", "r1")))
    assert [line for line in history_text(revisions, versions, NOW).splitlines() if line.startswith("  ")] == [
        "  m6",
        "  Profile/a version 5",
        "  created",
        "  m5",
        "  Profile/a version 4",
        "  deleted",
        "  m4",
        "  Profile/a version 3",
        "  only masked values changed",
        "  m3",
        "  Profile/a version 2",
        "  ~ spec.priority: 1 -> 2",
        "  Profile/a version 1 (and 1 more)",
        "  created",
    ]


def test_the_full_history_lists_the_documents_of_each_revision() -> None:
    text = history_text([revision(2, DocumentRef("Profile", "a"), DocumentRef("Runtime", "r"))], {}, NOW)
    assert text.splitlines() == [
        "revision 2, 5m ago (2026-01-01 23:55:00Z), by anna",
        "  Profile/a",
        "  Runtime/r",
    ]


def test_an_empty_history_is_stated() -> None:
    assert history_text([], {}, NOW) == "there are no revisions yet"
