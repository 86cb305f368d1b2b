"""What a change does to classes of runtimes, and when it needs ``allowDeletions``."""

import pytest

from governor.domain.documents import DocumentRef
from governor.server.changes.impact import MAX_LISTED, AffectedClass, class_change, large_deletions, runtime_changes
from governor.server.store.bundles import Content


def resources(*names: str) -> Content:
    return Content.of({"kind": "Component", "metadata": {"name": name, "namespace": "default"}} for name in names)


def numbered(count: int) -> Content:
    return resources(*map(str, range(count)))


def affected(before: Content | None, after: Content, *names: str) -> AffectedClass:
    return AffectedClass(before, after, "d1", names or ("r1",))


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
    assert bool(large_deletions([], [affected(numbered(before), numbered(after))])) == large


def test_new_resources_do_not_offset_removed_ones() -> None:
    renamed = resources(*(f"new-{number}" for number in range(4)))
    assert large_deletions([], [affected(numbered(4), renamed)])


def test_a_class_that_loses_most_is_one_reason_with_its_count_and_examples() -> None:
    names = tuple(f"r{number}" for number in range(100))
    (reason,) = large_deletions([], [affected(numbered(4), numbered(1), *names)])
    assert reason.reason == "removes 3 of 4 resources from 100 runtimes, for example 'r0', 'r1', 'r2'"


@pytest.mark.parametrize(("count", "large"), [(1, False), (5, False), (6, True)])
def test_deleting_more_than_five_documents_is_large(count: int, large: bool) -> None:
    assert bool(large_deletions([DocumentRef("Profile", str(number)) for number in range(count)], [])) == large


def test_deleting_a_runtime_is_large_and_names_it() -> None:
    reasons = large_deletions([DocumentRef("Runtime", "r1"), DocumentRef("Profile", "p")], [])
    assert [reason.document for reason in reasons] == ["Runtime/r1"]


def test_a_class_has_one_difference_a_count_and_examples() -> None:
    found = class_change(affected(resources("a"), resources("b"), *(f"r{number}" for number in range(9))))
    assert (found.count, found.examples) == (9, ("r0", "r1", "r2"))
    assert [each.path for each in found.differences] == ["Component/default/a", "Component/default/b"]


def test_runtimes_are_listed_up_to_a_limit_or_all() -> None:
    classes = [affected(None, resources("a"), *(f"r{number:03d}" for number in range(100)))]
    changes = [class_change(each) for each in classes]
    limited, every = (runtime_changes(classes, changes, limit) for limit in (MAX_LISTED, None))
    assert ([each.runtime for each in limited], len(every)) == ([each.runtime for each in every[:MAX_LISTED]], 100)
