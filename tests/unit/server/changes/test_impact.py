"""When a change needs ``allowDeletions``."""

import pytest

from governor.domain.documents import DocumentRef, ResourceRef
from governor.server.changes.impact import ResourceSets, large_deletions


def resources(count: int) -> frozenset[ResourceRef]:
    return frozenset(ResourceRef("Component", "default", str(number)) for number in range(count))


@pytest.mark.parametrize(
    ("before", "after", "large"),
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
def test_removing_more_than_half_of_a_runtimes_resources_is_large_but_a_single_one_is_not(
    before: int, after: int, large: bool
) -> None:
    resources_of = {"r1": ResourceSets(resources(before), resources(after))}
    assert bool(large_deletions([], resources_of)) == large


def test_new_resources_do_not_offset_removed_ones() -> None:
    renamed = frozenset(ResourceRef("Component", "default", f"new-{number}") for number in range(4))
    assert large_deletions([], {"r1": ResourceSets(resources(4), renamed)})


@pytest.mark.parametrize(("count", "large"), [(1, False), (5, False), (6, True)])
def test_deleting_more_than_five_documents_is_large(count: int, large: bool) -> None:
    assert bool(large_deletions([DocumentRef("Profile", str(number)) for number in range(count)], {})) == large


def test_deleting_a_runtime_is_large_and_names_it() -> None:
    reasons = large_deletions([DocumentRef("Runtime", "r1"), DocumentRef("Profile", "p")], {})
    assert [reason.document for reason in reasons] == ["Runtime/r1"]
