"""Stored proofs of sidecars."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from governor.agent.platforms.kubernetes.proof.proofs import ProofBook
from governor.agent.state.file_blobs import FileBlobs
from governor.agent.verification.verdicts import Proof
from governor.domain.documents import ResourceRef
from governor.domain.reports import Evidence
from governor.errors import GovernorError
from governor.kube.objects import ObjectRef

STORE = ResourceRef("Component", "shop", "store")
LIMITS = ResourceRef("Resiliency", "shop", "limits")
PROOF = Proof("sha256:1", Evidence("pod orders-1", datetime(2026, 11, 18, tzinfo=UTC), "listed"))


async def restored(directory: Path) -> ProofBook:
    book = ProofBook(FileBlobs(directory))
    await book.restore()
    return book


async def test_proofs_survive_a_restart_of_the_agent_but_not_the_end_of_their_instance(tmp_path: Path) -> None:
    book = await restored(tmp_path)
    book.add("a/1", STORE, PROOF)
    book.add("b/1", STORE, PROOF)
    await book.save({"a/1"})

    assert (await restored(tmp_path)).by_instance() == {"a/1": {STORE: PROOF}}


async def test_what_was_written_or_drifted_is_to_be_proven_anew(tmp_path: Path) -> None:
    book = await restored(tmp_path)
    book.add("a/1", STORE, PROOF)
    book.add("a/1", LIMITS, PROOF)
    book.drop([STORE])
    await book.save({"a/1"})

    assert (await restored(tmp_path)).of("a/1") == {LIMITS: PROOF}


async def test_an_unchanged_book_is_not_written_again(tmp_path: Path) -> None:
    book = await restored(tmp_path)
    book.add("a/1", STORE, PROOF)
    await book.save({"a/1"})
    (stored,) = tmp_path.iterdir()
    stored.unlink()
    book.add("a/1", STORE, PROOF)
    await book.save({"a/1"})

    assert list(tmp_path.iterdir()) == []


async def test_an_unreadable_book_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "proofs.json").write_text("{")

    with pytest.raises(GovernorError, match="not readable by this version of the agent; remove it"):
        await restored(tmp_path)


async def test_what_must_be_unloaded_is_remembered_until_everything_is_verified(tmp_path: Path) -> None:
    wide, narrow = {"kind": "Component"}, {"kind": "Component", "scopes": ["a"]}
    book = await restored(tmp_path)
    book.begin_write((), {STORE: wide})
    book.begin_write((), {STORE: narrow})
    book.begin_write((), {STORE: narrow})
    await book.save(())
    again = await restored(tmp_path)
    assert again.former == {STORE: (narrow, wide)}

    again.settle(())
    await again.save(())

    assert (await restored(tmp_path)).former == {}


class TestVersions:
    async def test_they_are_those_of_the_agents_own_writes(self, tmp_path: Path) -> None:
        book = await restored(tmp_path)
        book.end_write({STORE: "a/1", LIMITS: "b/1"})
        book.end_write({STORE: "a/2", LIMITS: "b/1"})
        assert book.versions == {STORE: "a/1", LIMITS: "b/1"}, "another client has written since"

        book.begin_write({STORE}, {})
        assert book.versions == {LIMITS: "b/1"}
        book.end_write({STORE: "a/3", LIMITS: "b/1"})
        await book.save(())
        assert (await restored(tmp_path)).versions == {STORE: "a/3", LIMITS: "b/1"}

    async def test_an_agent_that_is_killed_during_a_write_takes_the_version_that_it_finds(self, tmp_path: Path) -> None:
        killed = await restored(tmp_path)
        killed.end_write({STORE: "a/1"})
        killed.begin_write({STORE}, {})
        await killed.save(())
        book = await restored(tmp_path)
        book.end_write({STORE: "a/2"})
        assert book.versions == {STORE: "a/2"}

    async def test_a_removed_resource_keeps_its_version_until_everything_is_verified(self, tmp_path: Path) -> None:
        book = await restored(tmp_path)
        book.end_write({STORE: "a/1", LIMITS: "b/1"})
        book.begin_write((), {STORE: {"kind": "Component"}})
        book.end_write({LIMITS: "b/1"})
        assert book.versions == {STORE: "a/1", LIMITS: "b/1"}
        book.settle(())
        book.end_write({LIMITS: "b/1"})
        assert book.versions == {LIMITS: "b/1"}

    async def test_proofs_end_with_the_version_that_they_are_of(self, tmp_path: Path) -> None:
        book = await restored(tmp_path)
        book.end_write({STORE: "a/1", LIMITS: "b/1"})
        for ref in (STORE, LIMITS):
            book.add("a/1", ref, PROOF)
        await book.save({"a/1"})
        for each in (book, await restored(tmp_path)):
            each.compare({STORE: "a/1", LIMITS: ""}, ())
            assert each.of("a/1") == {STORE: PROOF, LIMITS: PROOF}
            each.compare({STORE: "a/2", LIMITS: ""}, ())
            assert each.of("a/1") == {LIMITS: PROOF}
            each.compare({LIMITS: "c/1"}, ())
            assert each.of("a/1") == {}

    async def test_a_write_that_changes_no_version_ends_no_proof(self, tmp_path: Path) -> None:
        book = await restored(tmp_path)
        book.end_write({STORE: "a/1"})
        book.add("a/1", STORE, PROOF)
        book.begin_write({STORE}, {})
        book.end_write({STORE: "a/1"}, {STORE})
        assert (book.of("a/1"), book.versions) == ({STORE: PROOF}, {STORE: "a/1"})
        book.end_write({STORE: "a/2"}, {STORE})
        assert (book.of("a/1"), book.versions) == ({}, {STORE: "a/2"})


class TestDisturbed:
    """Resources that another client has changed, which a sidecar may have failed for."""

    async def book(self, tmp_path: Path) -> ProofBook:
        book = await restored(tmp_path)
        book.end_write({STORE: "a/1", LIMITS: "b/1"})
        return book

    async def test_what_another_client_writes_or_deletes_is_disturbed_until_all_is_verified(
        self, tmp_path: Path
    ) -> None:
        book = await self.book(tmp_path)
        assert book.compare({STORE: "a/1", LIMITS: "b/1"}, (STORE, LIMITS)) == frozenset()
        assert book.compare({STORE: "a/3", LIMITS: "b/1"}, (STORE, LIMITS)) == {STORE}
        assert book.compare({STORE: "a/3"}, (STORE, LIMITS)) == {LIMITS}
        book.end_write({STORE: "a/3", LIMITS: "c/1"}, {LIMITS})
        assert book.compare({STORE: "a/3", LIMITS: "c/1"}, (STORE, LIMITS)) == frozenset()
        await book.save(())
        book = await restored(tmp_path)
        assert book.disturbed == {STORE, LIMITS}
        book.settle(())
        await book.save(())
        assert (book.disturbed, (await restored(tmp_path)).disturbed) == (frozenset(), frozenset())

    async def test_the_agents_own_writes_and_removals_disturb_nothing(self, tmp_path: Path) -> None:
        book = await self.book(tmp_path)
        book.begin_write({STORE}, {})
        await book.save(())
        for each in (book, await restored(tmp_path)):
            # It was killed after the write.
            assert each.compare({STORE: "a/2", LIMITS: "b/1"}, (STORE, LIMITS)) == frozenset()
            assert each.compare({STORE: "a/2"}, (STORE,)) == frozenset()
            assert each.disturbed == frozenset()

    async def test_what_is_adopted_is_not_disturbed(self, tmp_path: Path) -> None:
        book = await restored(tmp_path)
        book.adopt({STORE: "u/7"}, 1, 1)
        assert book.compare({STORE: "u/7"}, (STORE,)) == frozenset()


async def test_the_secrets_of_the_last_verified_delivery_are_remembered(tmp_path: Path) -> None:
    old, new = ObjectRef("", "Secret", "shop", "old"), ObjectRef("", "Secret", "shop", "new")
    book = await restored(tmp_path)
    assert book.settle([old]) == frozenset()
    await book.save(())
    again = await restored(tmp_path)
    assert again.secrets == {old}
    assert again.settle([new]) == {old}
    assert again.settle([new]) == frozenset()


async def test_an_adoption_lasts_over_restarts_until_the_object_is_written_or_a_delivery_is_retried(
    tmp_path: Path,
) -> None:
    book = await restored(tmp_path)
    book.adopt({STORE: "u/1", LIMITS: "u/4"}, 7, 2)
    book.add("a/1", STORE, PROOF)
    await book.save({"a/1"})

    book = await restored(tmp_path)
    book.compare({STORE: "u/1", LIMITS: ""}, ())
    book.end_adoptions(7, 2)
    book.end_adoptions(8, 1)
    assert book.adopted == {STORE, LIMITS}
    assert book.of("a/1") == {STORE: PROOF}
    book.compare({STORE: "u/2"}, ())
    assert book.adopted == {LIMITS}
    book.end_adoptions(9, 2)
    assert book.adopted == frozenset()
    book.adopt({STORE: "u/2"}, 10, 1)
    book.begin_write({STORE}, {})
    assert book.adopted == frozenset()
