"""Batches of drafts: in order, no member twice, no runtime twice in one batch."""

from datetime import UTC, datetime

import msgspec
import pytest

from governor.domain.documents import ApplyPolicy
from governor.server.changes.issuer import next_batch
from governor.server.store.bundles import Draft

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def draft(number: int, *names: str, issued: int = 0) -> Draft:
    return Draft(number, "d", ApplyPolicy(), {}, (), None, NOW, tuple((name, 1) for name in names), issued, number)


def issue_all(drafts: list[Draft], size: int) -> list[list[tuple[int, str]]]:
    """Issue batches until no draft is left; return the draft and runtime of each delivery by batch."""
    batches = []
    while drafts:
        batch = next_batch(drafts, size)
        batches.append([(each.id, name) for each, (name, _) in batch.members])
        assert batch.members or batch.complete, "no progress"
        drafts = [
            msgspec.structs.replace(each, issued=batch.issued.get(each.id, each.issued))
            for each in drafts
            if each.id not in batch.complete
        ]
        assert batch.is_last == (not drafts)
    return batches


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_every_member_is_issued_once_and_each_runtime_in_the_order_of_its_drafts(size: int) -> None:
    drafts = [draft(1, "a", "b", "c"), draft(2, "d"), draft(3, "b", "a"), draft(4, "b")]
    batches = issue_all(drafts, size)
    issued = [each for batch in batches for each in batch]
    assert sorted(issued) == sorted((each.id, name) for each in drafts for name, _ in each.members)
    assert [number for number, name in issued if name == "b"] == [1, 3, 4]
    for batch in batches:
        assert len(batch) <= size
        assert len({name for _, name in batch}) == len(batch)


def test_a_draft_continues_where_its_last_batch_ended() -> None:
    batch = next_batch([draft(1, "a", "b", "c", "d", issued=1)], 2)
    assert ([name for _, (name, _) in batch.members], batch.issued, batch.complete) == (["b", "c"], {1: 3}, [])
