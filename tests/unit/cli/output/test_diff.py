from datetime import UTC, datetime

import msgspec
import pytest

from governor.cli.output.diff import change_lines, document_title
from governor.domain.changes import Change, ChangeState, ClassChange, DocumentChange, RuntimeChange
from governor.domain.documents import DocumentRef
from governor.values.treediff import Difference, Operation, diff

REF = DocumentRef("Profile", "orders")


def change(documents: tuple[DocumentChange, ...], runtimes: tuple[RuntimeChange, ...] = ()) -> Change:
    return Change("c", ChangeState.ACCEPTED, "me", "", datetime(2026, 1, 1, tzinfo=UTC), 1, documents, runtimes)


@pytest.mark.parametrize(
    ("old", "new", "versions", "title"),
    [
        ({}, {"kind": "Profile"}, (0, 1), "Profile/orders: created (version 1)"),
        ({"kind": "Profile", "a": 1}, {"kind": "Profile", "a": 2}, (2, 3), "Profile/orders: changed (version 2 -> 3)"),
        ({"kind": "Profile"}, {}, (3, 4), "Profile/orders: deleted (was version 3)"),
    ],
)
def test_the_title_states_the_effect_on_a_document(
    old: dict[str, object], new: dict[str, object], versions: tuple[int, int], title: str
) -> None:
    assert document_title(DocumentChange(REF, *versions, diff(old, new))) == title


def test_a_change_shows_its_documents_and_runtimes() -> None:
    difference = Difference("spec.priority", Operation.CHANGED, 1, 2)
    resource = Difference("Component/default/store", Operation.REMOVED, old="gone")
    shown = change_lines(
        change(
            (DocumentChange(REF, 1, 2, (difference,)),),
            (RuntimeChange("r1", 0, "sha256:x", (resource,)), RuntimeChange("r2", 0, "sha256:y", ())),
        )
    )
    assert shown == [
        "Profile/orders: changed (version 1 -> 2)",
        "  ~ spec.priority: 1 -> 2",
        "runtime r1: resources change",
        '  - Component/default/store: "gone"',
        "runtime r2: new delivery with the same resources",
    ]


def test_runtimes_that_change_alike_are_shown_once_unless_all_are_requested() -> None:
    resource = Difference("Component/default/store", Operation.REMOVED, old="gone")
    runtimes = tuple(RuntimeChange(f"r{number}", 0, "sha256:x", (resource,)) for number in range(5))
    classes = (
        ClassChange("sha256:x", 5, ("r0", "r1", "r2"), (resource,)),
        ClassChange("sha256:y", 2, ("r5", "r6"), ()),
        ClassChange("sha256:z", 1, ("r7",), ()),
    )
    given = msgspec.structs.replace(change((), runtimes), classes=classes)
    assert change_lines(given) == [
        "5 runtimes (r0, r1, r2 and 2 more): resources change",
        '  - Component/default/store: "gone"',
        "2 runtimes (r5, r6): new delivery with the same resources",
        "runtime r7: new delivery with the same resources",
    ]
    every = change_lines(given, all_runtimes=True)
    assert every[::2] == [f"runtime r{number}: resources change" for number in range(5)]


def test_an_empty_change_shows_nothing() -> None:
    assert change_lines(change(())) == []
