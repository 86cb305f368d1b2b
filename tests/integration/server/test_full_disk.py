"""A full disk: changes are rejected as a whole, reads continue, and freeing space recovers."""

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
from governor.wire.rest import ChangeRequest
from tests.integration.server.bed import ServerBed, component, profile, running, runtime

LARGE = "x" * 200_000


def layer(host: str) -> dict[str, Any]:
    return profile("orders", component("store", redisHost=host))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 4 MiB."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(mount_point)], check=True)
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", str(mount_point)], check=True)


async def fill(bed: ServerBed) -> tuple[int, GovernorError]:
    """Apply large changes until one is rejected; return the number accepted and the error."""
    async with bed.client() as admin:
        for number in range(200):
            try:
                await admin.change(ChangeRequest((layer(f"{number}-{LARGE}"),)))
            except GovernorError as error:
                return number, error
    raise AssertionError("the disk never became full")


async def stored_state(bed: ServerBed) -> tuple[list[int], int]:
    """Return revisions and profile version, which a partially written change would alter."""
    async with bed.client() as admin:
        revisions = [each.number for each in await admin.revisions(limit=500)]
        return revisions, (await admin.document(DocumentRef("Profile", "orders"))).version


async def rejection(bed: ServerBed) -> GovernorError:
    async with bed.client() as admin:
        with pytest.raises(GovernorError) as caught:
            await admin.change(ChangeRequest((layer(f"more-{LARGE}"),)))
    return caught.value


@asynccontextmanager
async def full_disk(bed: ServerBed) -> AsyncIterator[None]:
    """Fill the disk and check the server; the block frees space, after which a change must succeed."""
    await bed.apply(runtime("r1"), layer("first"))
    agent = await bed.enrol("r1")
    accepted, error = await fill(bed)
    assert (error.kind, error.code) == (Kind.EXHAUSTED, "store-full")
    assert "free space" in error.message
    before = await stored_state(bed)
    assert before == (list(range(accepted + 1, 0, -1)), accepted + 1)
    async with agent.watching() as take:
        await take()
        several = await asyncio.gather(*(rejection(bed) for _ in range(5)))
        assert {each.kind for each in several} == {Kind.EXHAUSTED}
        assert await stored_state(bed) == before
        assert bed.services.store.not_alive() == ""
        yield
        # The deliveries of changes that were accepted while they could not be issued come first.
        change = await bed.apply(layer("after"))
        delivery = await take()
        while delivery.revision != change.revision:
            delivery = await take()
    await agent.report(delivery, State.VERIFIED)
    assert delivery.sequence == accepted + 2
    assert (await stored_state(bed))[0] == [before[0][0] + 1, *before[0]]


async def test_a_database_at_its_size_limit_rejects_changes_until_the_limit_is_raised(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:

        def limit(pages: int) -> Any:
            return bed.services.store.write(
                lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count={pages}").scalar()
            )

        now = await bed.services.store.read(lambda connection: connection.exec_driver_sql("PRAGMA page_count").scalar())
        assert await limit((now or 0) + 600) == (now or 0) + 600
        async with full_disk(bed):
            await limit(1_000_000)


async def test_a_full_file_system_rejects_changes_until_space_is_freed(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 1024 * 1024)
    async with running(small_disk / "data") as bed:
        async with full_disk(bed):
            ballast.unlink()
        check = sa.text("PRAGMA integrity_check")
        assert await bed.services.store.read(lambda connection: connection.scalar(check)) == "ok"


async def test_a_server_starts_and_answers_on_a_full_file_system(small_disk: Path) -> None:
    async with running(small_disk / "data") as bed:
        await bed.apply(runtime("r1"), layer("first"))
        await fill(bed)
        before = await stored_state(bed)
    async with running(small_disk / "data") as bed:
        assert await stored_state(bed) == before
