"""The one rule of what removes much."""

import pytest

from governor.domain.documents import DocumentRef, ResourceRef
from governor.server.changes.consent import Loss, needs_consent


def resources(count: int) -> frozenset[ResourceRef]:
    return frozenset(ResourceRef("Component", "default", str(number)) for number in range(count))


@pytest.mark.parametrize(
    ("before", "after", "much"),
    [
        (0, 0, False),
        (1, 0, False),
        (2, 1, False),
        (2, 0, True),
        (3, 2, False),
        (3, 1, True),
        (4, 2, False),
        (4, 1, True),
        (10, 5, False),
        (10, 4, True),
        (4, 9, False),
    ],
)
def test_more_than_half_of_a_runtimes_resources_is_much_but_one_never_is(before: int, after: int, much: bool) -> None:
    losses = {"r1": Loss(resources(before), resources(after))}
    assert bool(needs_consent([], losses)) == much


def test_new_resources_do_not_make_up_for_lost_ones() -> None:
    renamed = frozenset(ResourceRef("Component", "default", f"new-{number}") for number in range(4))
    assert needs_consent([], {"r1": Loss(resources(4), renamed)})


@pytest.mark.parametrize(("count", "much"), [(1, False), (5, False), (6, True)])
def test_more_than_five_documents_are_much(count: int, much: bool) -> None:
    assert bool(needs_consent([DocumentRef("Profile", str(number)) for number in range(count)], {})) == much


def test_a_runtime_is_much_and_named() -> None:
    reasons = needs_consent([DocumentRef("Runtime", "r1"), DocumentRef("Profile", "p")], {})
    assert [reason.document for reason in reasons] == ["Runtime/r1"]
