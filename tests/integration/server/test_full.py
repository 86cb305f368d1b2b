"""A full disk under the server: changes are refused whole, everything else goes on, and space heals it."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from governor.domain.documents import DocumentRef
from governor.domain.reports import State
from governor.errors import GovernorError, Kind
from tests.integration.server.bed import ServerBed, component, profile, running, runtime

LARGE = "x" * 200_000


def layer(host: str) -> dict[str, Any]:
    return profile("orders", component("store", redisHost=host))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 4 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


async def fill(bed: ServerBed) -> tuple[int, GovernorError]:
    """Apply large changes until one is refused; how many were accepted, and the refusal."""
    for number in range(200):
        try:
            await bed.apply(layer(f"{number}-{LARGE}"))
        except GovernorError as error:
            return number, error
    raise AssertionError("the disk never ran full")


async def seen(bed: ServerBed) -> tuple[list[int], int, int]:
    """The revisions, the version of the profile, and the newest sequence: what a half-written change would disturb."""
    async with bed.client() as admin:
        revisions = [each.number for each in await admin.revisions(limit=500)]
        document = await admin.document(DocumentRef("Profile", "orders"))
        return revisions, document.version, (await admin.runtime("r1")).sequence


async def refused(bed: ServerBed) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        await bed.apply(layer(f"more-{LARGE}"))
    return caught.value


@asynccontextmanager
async def filled(bed: ServerBed) -> AsyncIterator[None]:
    """Everything that must hold while the disk is full; the block makes space again, and the next change is taken."""
    await bed.apply(runtime("r1"), layer("first"))
    agent = await bed.enrol("r1")
    accepted, error = await fill(bed)
    assert (error.kind, error.code) == (Kind.EXHAUSTED, "store-full")
    assert "free space" in error.message
    before = await seen(bed)
    assert before == (list(range(accepted + 1, 0, -1)), accepted + 1, accepted + 1)
    async with agent.watching(after=before[2]) as take:
        following = take()
        several = await asyncio.gather(*(refused(bed) for _ in range(5)))
        assert {each.kind for each in several} == {Kind.EXHAUSTED}
        assert await seen(bed) == before
        assert bed.services.store.not_alive() == ""
        yield
        await bed.apply(layer("after"))
        delivery = await following
    await agent.report(delivery, State.VERIFIED)
    assert delivery.sequence == before[2] + 1
    assert (await seen(bed))[0] == [before[0][0] + 1, *before[0]]


async def test_a_database_at_its_largest_size_refuses_changes_until_it_may_grow(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:

        def limit(pages: int) -> Any:
            return bed.services.store.write(
                lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count={pages}").scalar()
            )

        now = await bed.services.store.read(lambda connection: connection.exec_driver_sql("PRAGMA page_count").scalar())
        assert await limit((now or 0) + 600) == (now or 0) + 600
        async with filled(bed):
            await limit(1_000_000)


async def test_a_full_file_system_refuses_changes_until_there_is_space(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 1024 * 1024)
    async with running(small_disk / "data") as bed:
        async with filled(bed):
            ballast.unlink()
        check = sa.text("PRAGMA integrity_check")
        assert await bed.services.store.read(lambda connection: connection.scalar(check)) == "ok"


async def test_a_server_starts_and_answers_on_a_full_file_system(small_disk: Path) -> None:
    async with running(small_disk / "data") as bed:
        await bed.apply(runtime("r1"), layer("first"))
        await fill(bed)
        before = await seen(bed)
    async with running(small_disk / "data") as bed:
        assert await seen(bed) == before
