"""Retention of superseded deliveries, by policy and by command; limits and their errors."""

import asyncio
import io
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from governor.domain.bundles import DeliveryPosition
from governor.domain.reports import State
from governor.errors import GovernorError, Kind
from governor.process.clock import VirtualClock
from governor.server.api.endpoints import MAX_BODY_BYTES
from governor.server.database_commands import db
from governor.server.maintenance import PendingCount, Pruner
from governor.server.store import retention
from governor.server.store.incarnation import current_incarnation
from governor.wire.rest import PREFIX
from testbed.waiting import until
from tests.integration.server.bed import ServerBed, component, profile, running, runtime


def layer(host: str) -> dict[str, Any]:
    return profile("shared", component("store", redisHost=host))


def limited_by(bed: ServerBed, limit: str) -> list[float]:
    """Return the number of requests that a limit rejected."""
    return [value for _, labels, value in bed.services.metrics.rejected.samples() if labels == {"limit": limit}]


async def rows(bed: ServerBed, statement: str) -> list[Any]:
    return await bed.services.store.read(lambda connection: list(connection.scalars(sa.text(statement))))


async def test_only_the_newest_deliveries_and_the_acknowledged_one_are_kept(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), runtime("r2"), layer("0"))
        agent = await bed.enrol("r1")
        for number in range(1, 10):
            if number == 3:
                await agent.report(await agent.newest(), State.VERIFIED)
            await bed.apply(layer(str(number)))
        removed = await Pruner(bed.services.store, bed.services.clock, keep=4).prune()
        kept = await rows(bed, "SELECT runtime || sequence FROM deliveries ORDER BY 1")
        bundles = await rows(bed, "SELECT count(*) FROM bundles")
        reports = await rows(bed, "SELECT sequence FROM reports")
        again = await Pruner(bed.services.store, bed.services.clock, keep=4).prune()
        newest = await agent.newest()
        async with bed.client() as viewer:
            views = await viewer.runtimes(full=True)
    assert kept == ["r110", "r13", "r17", "r18", "r19", "r210", "r27", "r28", "r29"]
    assert (removed, again, bundles, reports) == (11, 0, [5], [3])
    assert newest.sequence == 10
    # The resources since the verified delivery are known without the pruned ones.
    assert newest.removals == ()
    assert [each.summary.state for each in views] == ["Pending", "Pending"]


async def test_pruning_goes_on_after_runtimes_of_which_everything_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "RUNTIMES_AT_ONCE", 1)
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), runtime("r2"), layer("0"))
        agent = await bed.enrol("r1")
        await agent.report(await agent.newest(), State.VERIFIED)
        await bed.apply(layer("1"))
        await Pruner(bed.services.store, bed.services.clock, keep=1).prune()
        kept = await rows(bed, "SELECT runtime || sequence FROM deliveries ORDER BY 1")
    assert kept == ["r11", "r12", "r22"]


async def test_an_agent_that_holds_a_pruned_delivery_gets_the_newest_one_in_the_same_incarnation(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("0"))
        agent = await bed.enrol("r1")
        held = (await agent.newest()).position
        for number in range(1, 5):
            await bed.apply(layer(str(number)))
        before = await bed.services.store.read(current_incarnation)
        await Pruner(bed.services.store, bed.services.clock, keep=1).prune()
        newest = await agent.newest(held=held)
        after = await bed.services.store.read(current_incarnation)
    assert (newest.sequence, before) == (5, after)


async def test_what_was_never_issued_is_still_noticed_after_pruning(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("0"))
        agent = await bed.enrol("r1")
        for number in range(1, 5):
            await bed.apply(layer(str(number)))
        await Pruner(bed.services.store, bed.services.clock, keep=1).prune()
        newest = await agent.newest(held=DeliveryPosition("other", 7, "unknown"))
    assert newest.sequence == 8


async def test_a_digest_that_was_rejected_keeps_its_attempt_after_pruning(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("bad"))
        agent = await bed.enrol("r1")
        await agent.report(await agent.newest(), State.FAILED)
        async with bed.client() as admin:
            await admin.retry("r1")
        for number in range(5):
            await bed.apply(layer(str(number)))
        await Pruner(bed.services.store, bed.services.clock, keep=1).prune()
        await bed.apply(layer("bad"))
        again = await agent.newest()
    assert again.attempt == 2


async def test_the_server_prunes_by_itself(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("0"))
        await bed.apply(layer("1"))
        pruner = Pruner(bed.services.store, clock, keep=1)
        task = asyncio.create_task(pruner.run())
        await clock.advance(3600)

        async def is_pruned() -> bool:
            return await rows(bed, "SELECT count(*) FROM deliveries") == [1]

        await until(is_pruned)
        task.cancel()
        await asyncio.wait({task})


async def test_the_command_prunes_a_database_in_use(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("0"))
        for number in range(1, 6):
            await bed.apply(layer(str(number)))
        result = CliRunner().invoke(db, ["prune", "--keep", "2", "--data-dir", str(tmp_path)])
        await bed.apply(layer("after"))
        kept = await rows(bed, "SELECT sequence FROM deliveries ORDER BY 1")
    assert (result.exit_code, kept) == (0, [5, 6, 7])
    assert "4 superseded deliveries removed" in result.output
    # The marks of its commits belong to the write-ahead log.
    async with running(tmp_path) as bed:
        assert await rows(bed, "SELECT count(*) FROM deliveries") == [3]


def test_the_command_rejects_a_missing_database(tmp_path: Path) -> None:
    result = CliRunner().invoke(db, ["prune", "--data-dir", str(tmp_path)])
    assert isinstance(result.exception, GovernorError)
    assert result.exception.kind is Kind.NOT_FOUND


def test_the_command_rejects_a_database_of_another_version(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "governor.db")) as database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version VALUES ('0005')")
        database.commit()
    result = CliRunner().invoke(db, ["prune", "--data-dir", str(tmp_path)])
    assert isinstance(result.exception, GovernorError)
    assert result.exception.code == "store-version"


async def test_pending_deliveries_are_counted_by_age(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), runtime("r2"), layer("0"))
        agent = await bed.enrol("r1")
        await agent.report(await agent.newest(), State.VERIFIED)
        clock = VirtualClock(bed.services.clock.now())
        counts = PendingCount(bed.services.store, clock, bed.services.metrics)
        seen = []
        for seconds in (0.0, 70.0, 600.0):
            await clock.advance(seconds)
            await counts.count()
            seen.append({labels["age"]: value for _, labels, value in bed.services.metrics.pending.samples() if value})
    assert seen == [{"0s": 1.0}, {"1m": 1.0}, {"10m": 1.0}]


async def test_too_many_watches_are_rejected_with_the_limit_and_counted(tmp_path: Path) -> None:
    async with running(tmp_path, max_watches=1) as bed:
        await bed.apply(runtime("r1"), runtime("r2"), layer("0"))
        one, two = await bed.enrol("r1"), await bed.enrol("r2")
        async with one.watching() as take:
            await take()
            with pytest.raises(GovernorError) as caught:
                await two.newest()
            # The agent that is connected may reconnect.
            assert (await one.newest()).sequence == 1
        limited = limited_by(bed, "watches")
    assert (caught.value.kind, caught.value.code) == (Kind.UNAVAILABLE, "too-many-watches")
    assert "max-watches" in caught.value.message
    assert limited == [1.0]


async def test_too_many_enrolments_are_rejected_and_counted(tmp_path: Path) -> None:
    async with running(tmp_path, enrolments_per_minute=1) as bed:
        await bed.apply(runtime("r1"))
        bed.services.enrolment_limiter._full_s = bed.services.clock.monotonic() + 10**6
        with pytest.raises(GovernorError) as caught:
            await bed.enrol("r1")
        limited = limited_by(bed, "enrolments")
    assert caught.value.code == "too-many"
    assert limited == [1.0]


async def test_a_body_that_is_too_large_is_rejected_and_counted(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        headers = {"Authorization": f"Bearer {bed.admin_token.reveal()}", "Content-Type": "application/json"}
        body = io.BytesIO(b"x" * (MAX_BODY_BYTES + 1))
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{bed.url}{PREFIX}/changes", data=body) as response,
        ):
            problem = await response.json()
        limited = limited_by(bed, "bodies")
    assert (response.status, problem["type"], limited) == (400, "body-large", [1.0])
