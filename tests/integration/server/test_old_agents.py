"""Agents of version 0.1: they resume a watch by sequence only, and do not repeat a report on a new watch."""

import shutil
from pathlib import Path

import pytest

from governor.client import api
from governor.domain.bundles import Delivery
from governor.domain.reports import State
from governor.errors import GovernorError
from governor.server.data_directory import DATABASE
from governor.server.store.incarnation import current_incarnation
from governor.wire.reports import to_format_1
from testbed.waiting import until
from tests.integration.server.bed import Agent, ServerBed, component, profile, report_on, running, runtime


@pytest.fixture(autouse=True)
def _announce_no_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make clients send the requests of version 0.1."""
    monkeypatch.setattr(api, "_FORMATS", {})


def layer(host: str) -> dict[str, object]:
    return profile("p", component("s", redisHost=host))


def host(delivery: Delivery) -> str:
    return str(delivery.resources[0]["spec"]["metadata"][0]["value"])


async def confirm(agent: Agent, delivery: Delivery, n: int = 1) -> None:
    """Report a delivery as verified."""
    async with agent.client() as client:
        await client.report(to_format_1(report_on(delivery, State.VERIFIED, n), boot=""))


async def reason(bed: ServerBed) -> str:
    async with bed.client() as viewer:
        view = await viewer.runtime("r1")
    return next(each.reason for each in view.conditions if each.type == "Verified")


async def incarnation(bed: ServerBed) -> str:
    return await bed.services.store.read(current_incarnation)


async def has_newer_session(agent: Agent, session: int) -> bool:
    return agent.session > session


def copy_database(source: Path, target: Path) -> None:
    """Copy the database of a stopped server; nothing else remains in its place."""
    for suffix in ("-wal", "-shm"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    shutil.copy(source, target)


async def test_what_only_has_the_same_sequence_is_not_verified_and_is_replaced(tmp_path: Path) -> None:
    """The store says that 1 is "one"; the agent holds another 1, of a history that a file copy replaced."""
    database, one = tmp_path / "data" / DATABASE, tmp_path / "one.db"
    async with running(tmp_path / "data") as bed:
        await bed.apply(runtime("r1"))
        agent = await bed.enrol("r1")
    shutil.copy(database, tmp_path / "empty.db")
    for name in ("one", "other"):
        async with running(tmp_path / "data") as bed:
            agent.bed = bed
            await bed.apply(layer(name))
            held = await agent.newest()
            await confirm(agent, held)
            assert await reason(bed) == "Verified"
        shutil.copy(database, tmp_path / f"{name}.db")
        copy_database(tmp_path / "empty.db", database)
    copy_database(one, database)
    async with running(tmp_path / "data") as bed:
        agent.bed = bed
        async with agent.watching(after=held.sequence) as take:
            issued = await take()
            assert (issued.sequence, host(held), host(issued)) == (2, "other", "one")
            assert await reason(bed) == "Pending"
            await confirm(agent, issued)
            assert await reason(bed) == "Verified"


async def test_a_restart_of_the_server_needs_one_confirmation_and_a_reconnect_none(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("one"))
        agent = await bed.enrol("r1")
        await confirm(agent, await agent.newest())
        before = await incarnation(bed)
    async with running(tmp_path) as bed:
        agent.bed = bed
        async with agent.watching(after=1) as take:
            issued = await take()
            assert (issued.sequence, await reason(bed)) == (2, "Pending")
            await confirm(agent, issued)
            assert await reason(bed) == "Verified"
        async with agent.watching(after=2) as take:
            following, session = take(), agent.session
            await until(lambda: has_newer_session(agent, session))
            assert await reason(bed) == "Verified"
            await bed.apply(layer("two"))
            assert ((await following).sequence, await incarnation(bed)) == (3, before)


async def test_a_sequence_that_was_never_issued_renews_the_incarnation_at_the_connect(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("one"))
        agent = await bed.enrol("r1")
        await confirm(agent, await agent.newest())
        before = await incarnation(bed)
        async with agent.watching(after=7) as take:
            issued = await take()
            assert (issued.sequence, await reason(bed)) == (8, "Pending")
            assert await incarnation(bed) != before


async def test_a_report_on_other_content_renews_the_incarnation(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("one"))
        agent = await bed.enrol("r1")
        held = await agent.newest()
        before = await incarnation(bed)
        async with agent.client() as client:
            foreign = to_format_1(report_on(held, State.VERIFIED, digest="other"), boot="")
            with pytest.raises(GovernorError, match="the report is for attempt"):
                await client.report(foreign)
        assert ((await agent.newest(after=1)).sequence, await incarnation(bed) != before) == (2, True)
