"""Rollback: restores old content, including sealed values, as new versions in a new revision."""

from pathlib import Path
from typing import Any

import pytest

from governor.domain.changes import Change
from governor.domain.documents import DocumentRef
from governor.errors import GovernorError, Kind
from governor.wire.rest import Rollback
from tests.integration.server.bed import ServerBed, component, profile, running, runtime

CANARY = "canary-5be1"
ORDERS = DocumentRef("Profile", "orders")


def layer(host: str, password: str = CANARY) -> dict[str, Any]:
    return profile("orders", component("store", redisHost=host, redisPassword=password))


async def roll_back(bed: ServerBed, revision: int | None = None, *documents: DocumentRef, **options: Any) -> Change:
    return await bed.apply(rollback=Rollback(revision, documents), **options)


async def test_a_rollback_restores_content_and_sealed_values_as_new_versions(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("a"))
        await bed.apply(layer("b", "another-password"))
        agent = await bed.enrol("r1")
        planned = await roll_back(bed, dry_run=True)
        change = await roll_back(bed)
        delivery = await agent.newest()
        async with bed.client() as admin:
            document, revisions = await admin.document(ORDERS), await admin.revisions()
    values = {each["name"]: each["value"] for each in delivery.resources[0]["spec"]["metadata"]}
    assert values == {"redisHost": "a", "redisPassword": CANARY}
    assert (change.revision, change.message) == (3, "rollback to revision 1")
    assert (document.version, document.revision, len(revisions)) == (3, 3, 3)
    assert (planned.revision, planned.documents) == (None, change.documents)
    assert CANARY not in str((planned, change, document))
    assert (delivery.sequence, delivery.attempt) == (3, 1)


async def test_only_the_named_documents_are_rolled_back(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1", step="1"), layer("a"))
        await bed.apply(runtime("r1", step="2"), layer("b"))
        await bed.apply(runtime("r1", step="3"), layer("c"))
        change = await roll_back(bed, 1, ORDERS, message="the host is back")
        async with bed.client() as admin:
            kept = await admin.document(DocumentRef("Runtime", "r1"))
    assert [str(each.document) for each in change.documents] == ["Profile/orders"]
    assert (change.revision, change.message) == (4, "the host is back")
    assert kept.document is not None
    assert kept.document["metadata"]["labels"] == {"step": "3"}


async def test_a_rollback_deletes_later_documents_only_if_deletions_are_allowed(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"))
        await bed.apply(runtime("r2"), layer("a"))
        with pytest.raises(GovernorError) as caught:
            await roll_back(bed, 1)
        async with bed.client() as admin:
            untouched = [each.number for each in await admin.revisions()]
        change = await roll_back(bed, 1, allow_deletions=True)
        async with bed.client() as admin:
            left = [(each.kind, each.name) for each in await admin.documents()]
    assert (caught.value.kind, caught.value.code) == (Kind.PRECONDITION, "deletions-not-allowed")
    assert untouched == [2, 1]
    assert change.revision == 3
    assert left == [("Runtime", "r1")]


async def test_a_rollback_restores_a_deleted_document(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("a"))
        await bed.apply(deletions=(ORDERS,))
        await roll_back(bed)
        async with bed.client() as admin:
            document = await admin.document(ORDERS)
    assert (document.version, document.document is not None) == (3, True)


async def test_a_rollback_to_the_current_revision_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("a"))
        change = await roll_back(bed, 1)
    assert (change.revision, change.documents) == (None, ())


@pytest.mark.parametrize(
    ("request_", "kind", "code"),
    [
        ({"rollback": Rollback(7)}, Kind.NOT_FOUND, "revision-unknown"),
        ({"rollback": Rollback(0)}, Kind.NOT_FOUND, "revision-unknown"),
        ({"rollback": Rollback()}, Kind.PRECONDITION, "nothing-to-roll-back"),
        ({"rollback": Rollback(1, (DocumentRef("Profile", "no"),))}, Kind.NOT_FOUND, "document-unknown"),
        ({"rollback": Rollback(1), "if_match": {"Runtime/r1": 9}}, Kind.PRECONDITION, "version-mismatch"),
        ({"rollback": Rollback(1), "deletions": (ORDERS,)}, Kind.INVALID, "rollback-mixed"),
    ],
)
async def test_an_impossible_rollback_is_rejected(
    tmp_path: Path, request_: dict[str, Any], kind: Kind, code: str
) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"))
        with pytest.raises(GovernorError) as caught:
            await bed.apply(**request_)
    assert (caught.value.kind, caught.value.code) == (kind, code)
