"""Backups of the database, and what agents get and users see after one was restored."""

import asyncio
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from governor.domain.bundles import Delivery, DeliveryPosition
from governor.domain.conditions import Status
from governor.domain.reports import State
from governor.errors import GovernorError, Kind
from governor.process.exit_codes import NEGATIVE, SUCCESS
from governor.server.data_directory import DATABASE
from governor.server.store import schema_version
from governor.server.store.backup import REPLACED, backup, restore
from tests.integration.cli.bed import CommandLine
from tests.integration.server.bed import Agent, ServerBed, component, profile, running, runtime

SECRET = "canary-9b2e"


def layer(number: int | str) -> dict[str, Any]:
    """Return a profile whose component has a number and a sensitive value."""
    return profile("p", component("s", redisHost=str(number), redisPassword=SECRET))


def host(delivery: Delivery) -> str:
    metadata = delivery.resources[0]["spec"]["metadata"]
    return next(str(item["value"]) for item in metadata if item["name"] == "redisHost")


async def is_verified(bed: ServerBed) -> bool:
    async with bed.client() as viewer:
        view = await viewer.runtime("r1")
    return next(each.status is Status.TRUE for each in view.conditions if each.type == "Verified")


# -- an agent that holds more than the server ----------------------------------------------------------------------


def by_command(directory: Path, file: Path) -> None:
    restore(file, directory / DATABASE)


def by_file_copy(directory: Path, file: Path) -> None:
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
        (directory / name).unlink(missing_ok=True)
    shutil.copy(file, directory / DATABASE)


async def forgotten(directory: Path, replace: Callable[[Path, Path], None]) -> tuple[Agent, Delivery, int]:
    """Restore a server to delivery 5 while its agent has verified 8; return the agent, its delivery and the port."""
    file = directory.parent / "backup.db"
    async with running(directory) as bed:
        await bed.apply(runtime("r1"), layer(1))
        for number in range(2, 6):
            await bed.apply(layer(number))
        agent = await bed.enrol("r1")
        await agent.report(await agent.newest(), State.VERIFIED)
        await asyncio.to_thread(backup, directory / DATABASE, file)
        for number in range(6, 9):
            await bed.apply(layer(number))
        held = await agent.newest(after=5)
        await agent.report(held, State.VERIFIED, n=2)
        assert (held.sequence, host(held), await is_verified(bed)) == (8, "8", True)
        port = bed.address.port
    await asyncio.to_thread(replace, directory, file)
    return agent, held, port


@pytest.mark.parametrize("replace", [by_command, by_file_copy])
@pytest.mark.parametrize("has_other_content", [False, True], ids=["", "other content under the same sequences"])
async def test_a_restored_server_issues_its_state_again_above_what_the_agent_holds(
    tmp_path: Path, replace: Callable[[Path, Path], None], has_other_content: bool
) -> None:
    agent, held, port = await forgotten(tmp_path / "data", replace)
    async with running(tmp_path / "data", port=port) as bed:
        agent.bed = bed
        if has_other_content:
            for number in range(6, 9):
                await bed.apply(layer(f"other-{number}"))
        assert not (replace is by_command and await is_verified(bed))
        async with agent.watching(held=held.position) as take:
            issued = await take()
            assert issued.sequence == 9
            assert host(issued) == ("other-8" if has_other_content else "5")
            assert issued.incarnation != held.incarnation
            assert not await is_verified(bed)
            with pytest.raises(GovernorError) as caught:
                await agent.report(held, State.VERIFIED, n=9)
            assert caught.value.code == ("report-foreign" if has_other_content else "delivery-unknown")
            assert not await is_verified(bed)
            await agent.report(issued, State.VERIFIED)
            assert await is_verified(bed)
        # It was issued once, also for an agent that could not store it.
        assert (await agent.newest(held=held.position)).position == issued.position
        async with bed.client() as admin:
            assert (await admin.runtime("r1")).sequence == 9


@pytest.mark.parametrize("replace", [by_command, by_file_copy])
async def test_no_command_shows_a_restored_delivery_as_verified_before_the_agent_confirms_it(
    tmp_path: Path, replace: Callable[[Path, Path], None]
) -> None:
    agent, held, port = await forgotten(tmp_path / "data", replace)
    async with running(tmp_path / "data", port=port) as bed:
        agent.bed, governor = bed, CommandLine(bed, tmp_path)
        async with agent.watching(held=held.position) as take:
            issued = await take()
            listed = await governor.run("get", "runtimes", "-o", "json")
            doctor = await governor.run("doctor", "-o", "json")
            retried = await governor.run("runtime", "retry", "r1", "--no-wait")
            again = await take()
        await agent.report(again, State.VERIFIED)
        confirmed = await governor.run("get", "runtimes")
    assert '"Verified"' in listed.out
    assert '"state":"Pending"' in listed.out.replace(" ", "")
    assert "Verified" not in doctor.out
    assert retried.code == SUCCESS, retried.err
    assert (issued.sequence, again.sequence, again.attempt) == (9, 10, 2)
    assert "Verified" in confirmed.out


async def test_a_restored_delivery_that_the_agent_still_holds_is_pending_until_it_reports_again(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "data") as bed:
        await bed.apply(runtime("r1"), layer(1))
        agent = await bed.enrol("r1")
        held = await agent.newest()
        await agent.report(held, State.VERIFIED)
        port = bed.address.port
        await asyncio.to_thread(backup, tmp_path / "data" / DATABASE, tmp_path / "backup.db")
    restore(tmp_path / "backup.db", tmp_path / "data" / DATABASE)
    async with running(tmp_path / "data", port=port) as bed:
        agent.bed = bed
        assert not await is_verified(bed)
        with pytest.raises(GovernorError) as caught:
            await agent.report(held, State.VERIFIED)
        await agent.open_session(held.position)
        await agent.report(held, State.VERIFIED)
        assert await is_verified(bed)
        async with bed.client() as viewer:
            assert (await viewer.runtime("r1")).sequence == held.sequence
    assert (caught.value.kind, caught.value.code) == (Kind.UNAVAILABLE, "watch-missing")


async def test_a_session_assigned_before_a_restore_does_not_outrank_newer_reports(tmp_path: Path) -> None:
    """Sessions are counted in the store, so a restored one may give out lower numbers than an agent has."""
    async with running(tmp_path / "data") as bed:
        await bed.apply(runtime("r1"), layer(1))
        agent = await bed.enrol("r1")
        held = await agent.newest()
        await asyncio.to_thread(backup, tmp_path / "data" / DATABASE, tmp_path / "backup.db")
    for _ in range(2):
        async with running(tmp_path / "data") as bed:
            agent.bed = bed
            await agent.open_session(held.position)
    old = agent.session
    by_file_copy(tmp_path / "data", tmp_path / "backup.db")
    async with running(tmp_path / "data") as bed:
        agent.bed = bed
        await agent.open_session(held.position)
        assert agent.session < old
        with pytest.raises(GovernorError, match="no watch on this server"):
            await agent.report(held, State.VERIFIED, n=5, session=old)
        await agent.report(held, State.FAILED, n=6)
        assert not await is_verified(bed)


async def test_a_store_that_is_older_than_the_last_restore_gets_another_incarnation(tmp_path: Path) -> None:
    """Otherwise it would issue deliveries in the incarnation that a first restore ended."""
    data, file = tmp_path / "data", tmp_path / "backup.db"
    agent, held, port = await forgotten(data, by_command)
    async with running(data, port=port) as bed:
        agent.bed = bed
        again = await agent.newest(held=held.position)
    by_file_copy(data, file)
    async with running(data, port=port) as bed:
        agent.bed = bed
        issued = await agent.newest(held=again.position)
    assert (held.sequence, again.sequence, issued.sequence) == (8, 9, 10)
    assert len({held.incarnation, again.incarnation, issued.incarnation}) == 3


# -- backup --------------------------------------------------------------------------------------------------------


async def test_an_agent_cannot_exhaust_sequences_or_the_disk_by_what_it_claims_to_hold(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), profile("orders", component("store", redisHost="a")))
        agent = await bed.enrol("r1")
        first = await agent.newest()
        for held in (DeliveryPosition("", 10**15), DeliveryPosition("x", 10**17, "y")):
            with pytest.raises(GovernorError):
                await agent.newest(held=held)
        reissued = await agent.newest(held=DeliveryPosition("x", 5, "y"))
        for number in range(6, 12):
            with pytest.raises(GovernorError):
                await agent.newest(held=DeliveryPosition("x", number, "y"))
        assert (first.sequence, reissued.sequence) == (1, 6)
        assert (await agent.newest()).sequence == 6


async def test_a_backup_during_writes_is_a_consistent_state_without_keys_and_secrets(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "backup.db"
    async with running(data) as bed:
        await bed.apply(runtime("r1"), layer(0))
        governor = CommandLine(bed, tmp_path)

        async def write() -> None:
            for number in range(1, 1000):
                await bed.apply(layer(number))

        writing = asyncio.create_task(write())
        done = await governor.run("db", "backup", str(file), "--data-dir", str(data))
        writing.cancel()
        await asyncio.wait({writing})
        again = await governor.run("db", "backup", str(file), "--data-dir", str(data))
        keys = [(data / name).read_bytes().strip() for name in ("sealing.key", "delivery.key", "admin.token")]
    assert done.code == SUCCESS, done.err
    assert (again.code == SUCCESS, "exists already" in again.err) == (False, True)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == ["backup.db"]
    content = file.read_bytes()
    assert [key for key in (*keys, SECRET.encode()) if key in content] == []
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro&immutable=1", uri=True)) as copy:
        revisions = [number for (number,) in copy.execute("SELECT number FROM revisions ORDER BY number")]
        deliveries = [number for (number,) in copy.execute("SELECT revision FROM deliveries ORDER BY sequence")]
    assert revisions == deliveries == list(range(1, len(revisions) + 1))


async def test_a_stopped_server_is_backed_up_too_and_a_missing_one_is_named(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as bed:
        await bed.apply(runtime("r1"))
    backup(tmp_path / "data" / DATABASE, tmp_path / "one.db")
    for _ in range(2):
        restore(tmp_path / "one.db", tmp_path / "data" / DATABASE)
    assert len(list((tmp_path / "data").glob(f"{DATABASE}{REPLACED}-*"))) == 2
    async with running(tmp_path / "data") as bed, bed.client() as admin:
        assert [each.name for each in await admin.runtimes()] == ["r1"]
    with pytest.raises(GovernorError, match="--data-dir"):
        backup(tmp_path / "none" / DATABASE, tmp_path / "two.db")


async def test_only_a_restore_that_replaces_a_database_names_the_replaced_one(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as bed:
        await bed.apply(runtime("r1"))
    backup(tmp_path / "data" / DATABASE, tmp_path / "one.db")
    new = tmp_path / DATABASE
    restored = [restore(tmp_path / "one.db", new) for _ in range(2)]
    assert [each.replaced for each in restored] == [None, *tmp_path.glob(f"{DATABASE}{REPLACED}-*")]


def test_errors_name_the_backup_as_the_command_shows_it(tmp_path: Path) -> None:
    text(tmp_path / "received.db")
    with pytest.raises(GovernorError, match=r"^stdin cannot be copied as a database"):
        restore(tmp_path / "received.db", tmp_path / DATABASE, "stdin")


async def test_a_backup_can_be_written_to_stdout_and_restored_from_stdin(tmp_path: Path) -> None:
    """As through `kubectl exec`, in an image without a shell."""
    data = tmp_path / "data"
    async with running(data) as bed:
        await bed.apply(runtime("r1"))
        written = await db(data, "backup")
        await bed.apply(runtime("r2"))
    await db(data, "restore", written)
    async with running(data) as bed, bed.client() as admin:
        assert [each.name for each in await admin.runtimes()] == ["r1"]


async def db(data: Path, verb: str, content: bytes = b"") -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "governor.cli.main", "db", verb, "-", "--data-dir", str(data)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(content)
    assert process.returncode == SUCCESS, err
    return out


# -- restore -------------------------------------------------------------------------------------------------------


async def test_a_restore_needs_a_stopped_server(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "backup.db"
    async with running(data) as bed:
        await bed.apply(runtime("r1"))
        governor = CommandLine(bed, tmp_path)
        await governor.run("db", "backup", str(file), "--data-dir", str(data))
        refused = await governor.run("db", "restore", str(file), "--data-dir", str(data))
        await bed.apply(runtime("r2"))
        async with bed.client() as admin:
            assert len(await admin.runtimes()) == 2
    done = await governor.run("db", "restore", str(file), "--data-dir", str(data))
    async with running(data) as bed, bed.client() as admin:
        assert [each.name for each in await admin.runtimes()] == ["r1"]
    assert refused.code not in (SUCCESS, NEGATIVE)
    assert "another server uses the data directory" in refused.err
    assert (done.code, "as incarnation" in done.out) == (SUCCESS, True)
    assert "revoked after the backup are valid again" in done.err
    [kept] = data.glob(f"{DATABASE}{REPLACED}-*")
    assert f"the replaced database is {kept}" in done.err


def damaged(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4096 * 2 : 4096 * 4] = bytes(4096 * 2)
    file.write_bytes(content)


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:10_000])


def text(file: Path) -> None:
    file.write_text("not a database" * 1000)


def foreign(file: Path) -> None:
    file.unlink()
    with closing(sqlite3.connect(file)) as other:
        other.execute("CREATE TABLE something (x)")


def newer(file: Path) -> None:
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("UPDATE alembic_version SET version_num = '9999'")


@pytest.mark.parametrize("spoil", [damaged, truncated, text, foreign, newer, Path.unlink])
async def test_a_bad_backup_is_rejected_and_nothing_is_replaced(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    data, file = tmp_path / "data", tmp_path / "backup.db"
    async with running(data) as bed:
        await bed.apply(runtime("r1"))
        await asyncio.to_thread(backup, data / DATABASE, file)
        await bed.apply(runtime("r2"))
    spoil(file)
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    with pytest.raises(GovernorError) as caught:
        restore(file, data / DATABASE)
    assert str(file) in caught.value.message or spoil is newer
    assert {path.name: path.read_bytes() for path in data.iterdir()} == before
    async with running(data) as bed, bed.client() as admin:
        assert len(await admin.runtimes()) == 2


KILLED_IN = frozenset(
    {"connect", "backup", "execute", "commit", "rename", "replace", "unlink", "link", "fsync", "close"}
)
"""The calls before which a restore is killed: every call that changes a file is one of them."""


async def test_a_restore_killed_at_any_time_leaves_the_old_or_the_new_database(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "backup.db"
    async with running(data) as bed:
        await bed.apply(runtime("r1"))
        await asyncio.to_thread(backup, data / DATABASE, file)
        await bed.apply(runtime("r2"))
    found: list[int] = []
    left = data
    while True:
        place = tmp_path / str(len(found))
        shutil.copytree(data, place)
        ended = killed_restore(file, place / DATABASE, kill_at=len(found))
        found.append(count_runtimes(place / DATABASE))
        if ended:
            break
        left = place
    # The next restore is not hindered by what a killed one left.
    restore(file, left / DATABASE)
    assert count_runtimes(left / DATABASE) == 1
    assert [path.name for path in left.iterdir() if path.name.startswith(".")] == []
    assert len(found) > 20
    assert found == sorted(found, reverse=True)
    assert set(found) == {1, 2}


def killed_restore(file: Path, database: Path, kill_at: int) -> bool:
    """Restore in a child process that is killed before its n-th call of an interesting function."""
    child = os.fork()
    if child == 0:
        calls = iter(range(kill_at + 1))

        def profile_calls(_frame: FrameType, event: str, argument: Any) -> None:
            if event == "c_call" and argument.__name__ in KILLED_IN and next(calls) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(profile_calls)
        restore(file, database)
        sys.setprofile(None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) or os.WTERMSIG(status) == signal.SIGKILL
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


def count_runtimes(database: Path) -> int:
    schema_version.prepare(database)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        statement = "SELECT count(DISTINCT name) FROM document_versions WHERE kind = 'Runtime'"
        (count,) = connection.execute(statement).fetchone()
    return int(count)
