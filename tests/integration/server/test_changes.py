"""Changes through the real API: what is stored, delivered and returned."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from governor import yamltext
from governor.domain.changes import ChangeState
from governor.domain.documents import DocumentRef, ResourceRef, Strategy
from governor.domain.reports import State
from governor.errors import GovernorError, Kind
from governor.wire.rest import PREFIX, ChangeRequest
from tests.integration.server.bed import component, profile, running, runtime

ORDERS = DocumentRef("Profile", "orders")


async def test_a_change_becomes_a_revision_and_a_delivery_and_is_verified_by_the_report(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        change = await bed.apply(runtime("r1"), profile("orders", component("store", redisHost="a:1")), message="first")
        agent = await bed.enrol("r1")
        delivery = await agent.newest()
        async with bed.client() as viewer:
            before = await viewer.runtime("r1")
            await agent.report(delivery, State.VERIFIED)
            after = await viewer.runtime("r1")
            progress = [each async for each in viewer.progress(1)]
            revisions = await viewer.revisions()
    assert (change.state, change.revision, change.message) == (ChangeState.ACCEPTED, 1, "first")
    assert [(each.count, each.examples) for each in change.classes] == [(1, ("r1",))]
    assert (delivery.sequence, delivery.attempt, delivery.revision) == (1, 1, 1)
    assert delivery.digest == change.runtimes[0].digest
    assert (before.summary.state, after.summary.state) == ("Pending", "Verified,NotWatching")
    assert [each.status for each in after.conditions if each.type == "Verified"] == ["True"]
    assert progress[-1].complete
    assert progress[-1].runtimes[0].seconds > 0
    assert [(each.number, each.parent, each.author) for each in revisions] == [(1, None, "admin")]


async def test_a_change_without_differences_creates_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        documents = (runtime("r1"), profile("orders", component("store", redisHost="a:1", redisPassword="pw")))
        await bed.apply(*documents)
        again = await bed.apply(*documents)
        async with bed.client() as admin:
            revisions, seen = await admin.revisions(), await admin.runtime("r1")
    assert (again.state, again.revision, again.documents, again.runtimes) == (ChangeState.ACCEPTED, None, (), ())
    assert (len(revisions), seen.sequence) == (1, 1)


async def test_a_dry_run_returns_the_same_and_stores_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        documents = (runtime("r1"), profile("orders", component("store", redisHost="a:1")))
        planned = await bed.apply(*documents, dry_run=True)
        async with bed.client() as admin:
            documents_after, revisions = await admin.documents(), await admin.revisions()
        real = await bed.apply(*documents)
    assert (planned.id, planned.revision, planned.runtimes[0].sequence) == ("", None, 0)
    assert (documents_after, revisions) == ((), ())
    assert planned.documents == real.documents
    assert planned.runtimes[0].differences == real.runtimes[0].differences


async def test_only_runtimes_whose_content_changes_get_a_delivery(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        shared = profile("shared", component("store", redisHost="a:1"))
        eu = profile("eu", component("store", redisHost="eu:1"), selector={"matchLabels": {"region": "eu"}})
        await bed.apply(runtime("r1", region="eu"), runtime("r2", region="us"), shared, eu)
        moved = profile("eu", component("store", redisHost="eu:2"), selector={"matchLabels": {"region": "eu"}})
        change = await bed.apply(moved)
    assert [each.runtime for each in change.runtimes] == ["r1"]
    assert [each.path for each in change.runtimes[0].differences] == [
        "Component/default/store.spec.metadata[redisHost].value"
    ]


async def test_a_changed_apply_policy_alone_raises_the_attempt(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        store = component("store", redisHost="a:1")
        await bed.apply(runtime("r1"), profile("orders", store))
        await bed.apply(profile("orders", store, apply={"strategy": "rolling"}))
        agent = await bed.enrol("r1")
        raised = await agent.newest(after=1)
        await bed.apply(profile("orders", component("store", redisHost="b:1"), apply={"strategy": "rolling"}))
        fresh = await agent.newest(after=2)
    assert (raised.sequence, raised.attempt, raised.apply.strategy) == (2, 2, Strategy.ROLLING)
    assert (fresh.sequence, fresh.attempt) == (3, 1)


async def test_removals_reach_back_to_the_last_verified_delivery(tmp_path: Path) -> None:
    def layer(*names: str) -> dict[str, object]:
        return profile("orders", *(component(name, redisHost="a:1") for name in names))

    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("a", "b"))
        agent = await bed.enrol("r1")
        await agent.report(await agent.newest(), State.VERIFIED)
        await bed.apply(layer("a", "c"))
        await agent.report(await agent.newest(after=1), State.FAILED)
        await bed.apply(layer("a", "d"))
        unverified = await agent.newest(after=2)
        await agent.report(unverified, State.VERIFIED)
        await bed.apply(layer("a"))
        verified = await agent.newest(after=3)
    assert unverified.removals == (ResourceRef("Component", "default", "b"), ResourceRef("Component", "default", "c"))
    assert verified.removals == (ResourceRef("Component", "default", "d"),)


async def test_a_deleted_profile_leaves_an_empty_delivery_with_removals(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), profile("orders", component("store", redisHost="a:1")))
        change = await bed.apply(deletions=(ORDERS,))
        agent = await bed.enrol("r1")
        delivery = await agent.newest()
        async with bed.client() as admin:
            gone = await admin.document(ORDERS, version=2)
            with pytest.raises(GovernorError, match="no document") as caught:
                await admin.document(ORDERS)
    assert [(each.old_version, each.new_version) for each in change.documents] == [(1, 2)]
    assert (delivery.resources, delivery.removals) == ((), (ResourceRef("Component", "default", "store"),))
    assert gone.document is None
    assert caught.value.kind is Kind.NOT_FOUND


async def test_if_match_rejects_a_stale_version_and_accepts_the_current_one(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1", region="eu"))
        accepted = await bed.apply(runtime("r1", region="us"), if_match={"Runtime/r1": 1})
        with pytest.raises(GovernorError, match="has changed since it was read") as caught:
            await bed.apply(runtime("r1", region="as"), if_match={"Runtime/r1": 1})
        with pytest.raises(GovernorError, match="expected no such document, found version 2"):
            await bed.apply(runtime("r1", region="as"), if_match={"Runtime/r1": 0})
        async with bed.client() as admin:
            kept = await admin.document(DocumentRef("Runtime", "r1"))
    assert accepted.revision == 2
    assert caught.value.kind is Kind.PRECONDITION
    assert (kept.version, kept.document and kept.document["metadata"]["labels"]) == (2, {"region": "us"})


async def test_concurrent_writers_get_separate_revisions(tmp_path: Path) -> None:
    async with running(tmp_path) as bed, bed.client() as one, bed.client() as two:
        requests = [
            client.change(ChangeRequest(documents=(runtime(f"{name}{number}"),)))
            for number in range(10)
            for client, name in ((one, "a"), (two, "b"))
        ]
        changes = await asyncio.gather(*requests)
        revisions = await one.revisions(limit=100)
        commits = bed.services.metrics.commit_size.samples()
    assert sorted(change.revision or 0 for change in changes) == list(range(1, 21))
    assert [each.parent for each in reversed(revisions)] == [None, *range(1, 20)]
    samples = {suffix: value for suffix, _, value in commits}
    assert samples["_count"] < samples["_sum"]


async def test_only_one_of_several_writers_with_the_same_if_match_succeeds(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"))
        attempts = [bed.apply(runtime("r1", by=str(number)), if_match={"Runtime/r1": 1}) for number in range(5)]
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    rejected = [outcome for outcome in outcomes if isinstance(outcome, GovernorError)]
    assert len(rejected) == 4
    assert {error.code for error in rejected} == {"version-mismatch"}


async def test_large_deletions_must_be_allowed(tmp_path: Path) -> None:
    many = [component(name, redisHost="a:1") for name in "abcd"]
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), profile("orders", *many))
        with pytest.raises(GovernorError, match="allow-deletions") as caught:
            await bed.apply(profile("orders", many[0]))
        with pytest.raises(GovernorError, match="allow-deletions"):
            await bed.apply(deletions=(DocumentRef("Runtime", "r1"),))
        half = await bed.apply(profile("orders", *many[:2]))
        allowed = await bed.apply(deletions=(DocumentRef("Runtime", "r1"), ORDERS), allow_deletions=True)
    assert caught.value.kind is Kind.PRECONDITION
    assert [detail.reason for detail in caught.value.details] == ["removes 3 of 4 resources from runtime 'r1'"]
    assert (half.revision, allowed.revision) == (2, 3)


async def test_a_re_created_runtime_must_enrol_again_and_gets_a_new_delivery(tmp_path: Path) -> None:
    documents = (runtime("r1"), profile("orders", component("store", redisHost="a:1")))
    async with running(tmp_path) as bed:
        await bed.apply(*documents)
        old = await bed.enrol("r1")
        await old.report(await old.newest(), State.VERIFIED)
        await bed.apply(deletions=(DocumentRef("Runtime", "r1"),), allow_deletions=True)
        with pytest.raises(GovernorError, match="not signed by the key of an enrolled runtime"):
            await old.newest()
        await bed.apply(runtime("r1"))
        async with bed.client() as admin:
            seen = await admin.runtime("r1")
    assert (seen.sequence, seen.summary.state) == (2, "Pending")


async def test_revisions_can_be_filtered_by_document_and_paged(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        for number in range(4):
            await bed.apply(runtime("r1", step=str(number)))
        await bed.apply(runtime("r2"))
        async with bed.client() as admin:
            of_r1 = await admin.revisions(document=DocumentRef("Runtime", "r1"))
            page = await admin.revisions(limit=2, before=4)
            first = await admin.document(DocumentRef("Runtime", "r1"), version=1)
    assert [each.number for each in of_r1] == [4, 3, 2, 1]
    assert [each.number for each in page] == [3, 2]
    assert first.document is not None
    assert first.document["metadata"]["labels"] == {"step": "0"}
    assert of_r1[0].documents == (DocumentRef("Runtime", "r1"),)


async def test_a_profile_that_selects_no_runtime_causes_a_warning(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        change = await bed.apply(profile("eu", selector={"matchLabels": {"region": "eu"}}))
    assert change.warnings == ("profile 'eu' selects no runtime",)


async def test_a_runtime_named_by_a_profile_cannot_be_deleted_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r2"), profile("own", selector={"runtime": "r2"}))
        with pytest.raises(GovernorError, match="names a runtime that does not exist"):
            await bed.apply(deletions=(DocumentRef("Runtime", "r2"),), allow_deletions=True)
        async with bed.client() as admin:
            assert [each.number for each in await admin.revisions()] == [1]


@pytest.mark.parametrize("dry_run", [False, True])
async def test_ownership_is_checked_before_compiling(tmp_path: Path, dry_run: bool) -> None:
    incomplete = component("store", redisHost="a:1")
    del incomplete["spec"]["type"]
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), profile("orders"))
        with pytest.raises(GovernorError) as uncompilable:
            await bed.apply(profile("orders", incomplete), dry_run=dry_run)
        bed.services.ownership.claim("source:test", [ORDERS])
        with pytest.raises(GovernorError) as owned:
            await bed.apply(profile("orders", incomplete), dry_run=dry_run)
    assert uncompilable.value.code == "resource-invalid"
    assert (owned.value.kind, owned.value.code) == (Kind.CONFLICT, "document-owned")
    assert "source:test" in owned.value.message


async def test_yaml_text_is_accepted(tmp_path: Path) -> None:
    text = yamltext.dump(runtime("r1")) + "---\n" + yamltext.dump(profile("own", selector={"runtime": "r1"}))
    async with running(tmp_path) as bed:
        headers = {"Authorization": f"Bearer {bed.admin_token.reveal()}", "Content-Type": "application/yaml"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(
                f"{bed.url}{PREFIX}/changes", data=text, params={"message": "by hand", "allRuntimes": "true"}
            ) as response,
        ):
            change = await response.json()
    assert (response.status, change["revision"], change["message"]) == (200, 1, "by hand")
    assert [each["document"]["name"] for each in change["documents"]] == ["own", "r1"]
