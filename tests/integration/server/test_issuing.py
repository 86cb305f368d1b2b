"""Accepting a change and issuing its deliveries are separate acts: nothing is lost between them, nothing is doubled."""

import sqlite3
import sys
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from demo.programs import GovernorServer
from governor.errors import GovernorError
from governor.server.changes import issuer
from governor.server.store.bundles import all_drafts
from governor.wire.rest import ChangeRequest
from testbed.pytest_plugin import StartServer
from testbed.waiting import until
from tests.integration.server.bed import ServerBed, component, profile, running, runtime

RUNTIMES = [f"r{number:02d}" for number in range(25)]
FAULTY = """
import os, signal, sys
from governor.cli.main import main
from governor.server.changes import issuer
from governor.server.watch import fanout

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

issuer.BATCH = 10
{point} = die
sys.exit(main())
"""
"""A server that is killed when it reaches a function on the way from accepting a change to sending its deliveries."""


def layer(host: str) -> dict[str, Any]:
    return profile("shared", component("store", redisHost=host))


class FaultyServer(GovernorServer):
    """A server that is killed when it reaches the function ``point``, unless that is empty."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.point = ""

    def command(self) -> list[str]:
        """Return the command line."""
        command = super().command()
        if not self.point:
            return command
        return [sys.executable, "-c", FAULTY.format(point=self.point), *command[command.index("server") :]]


@pytest.mark.parametrize(
    "point",
    ["issuer.find_states", "issuer.put_states", "fanout.Fanout.send"],
    ids=["between accept and issue", "in the middle of a batch", "between commit and wake"],
)
async def test_a_killed_server_issues_every_delivery_once(
    start_server: StartServer, tmp_path: Path, point: str
) -> None:
    server = FaultyServer(tmp_path)
    await start_server(server)
    async with server.client() as admin:
        await admin.change(ChangeRequest((*map(runtime, RUNTIMES), layer("a"))))
        await until(lambda: is_issued(server, 1))
    await server.stop()
    server.point = point
    await server.start()
    async with server.client() as admin:
        # The server may be killed before it responds.
        with suppress(GovernorError):
            await admin.change(ChangeRequest((layer("b"),)))
    await server.ended()
    await server.kill()
    server.point = ""
    await server.start()
    await until(lambda: is_issued(server, 2))
    async with server.client() as admin:
        views = await admin.runtimes()
        progress = await anext(admin.progress(2))
    await server.stop()
    with closing(sqlite3.connect(server.data_dir / "governor.db")) as database:
        issued = database.execute("SELECT runtime, sequence, revision FROM deliveries").fetchall()
        drafts = database.execute("SELECT count(*) FROM drafts").fetchone()
    assert Counter(issued) == Counter((name, number, number) for name in RUNTIMES for number in (1, 2))
    assert {(each.sequence, each.revision) for each in views} == {(2, 2)}
    assert [each.runtime for each in progress.runtimes] == RUNTIMES
    assert drafts == (0,)


async def is_issued(server: GovernorServer, revision: int) -> bool:
    async with server.client() as admin:
        return all(each.revision == revision for each in await admin.runtimes())


async def test_a_change_is_accepted_and_pending_while_nothing_is_issued(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("a"))
        await block_issuing(bed)
        async with bed.client() as admin:
            change = await admin.change(ChangeRequest((layer("b"),)))
            view = await admin.runtime("r1")
            progress = await anext(admin.progress(change.revision or 0))
            back = await admin.change(ChangeRequest((layer("a"),)))
        assert (view.sequence, view.revision, view.summary.state) == (1, 1, "Pending")
        assert (progress.complete, [(each.runtime, each.sequence) for each in progress.runtimes]) == (
            False,
            [("r1", 0)],
        )
        # What is accepted counts, not what is issued: going back is a change too.
        assert [each.count for each in back.classes] == [1]
        await unblock_issuing(bed)
        await bed.issued()
        async with bed.client() as admin:
            view = await admin.runtime("r1")
    assert (view.sequence, view.revision) == (3, 3)


async def block_issuing(bed: ServerBed) -> None:
    """Let every insertion of a delivery fail as on a full disk; accepting a change inserts none."""
    statement = "CREATE TRIGGER full BEFORE INSERT ON deliveries BEGIN SELECT raise(ABORT, 'full'); END"
    await bed.services.store.write(lambda connection: connection.exec_driver_sql(statement))


async def unblock_issuing(bed: ServerBed) -> None:
    await bed.services.store.write(lambda connection: connection.exec_driver_sql("DROP TRIGGER full"))


async def test_a_disk_that_is_full_while_issuing_delays_the_deliveries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer, "BATCH", 10)
    async with running(tmp_path) as bed:
        await bed.apply(*map(runtime, RUNTIMES))
        await block_issuing(bed)
        async with bed.client() as admin:
            change = await admin.change(ChangeRequest((layer("a"),)))
            # Other writes continue.
            await admin.change(ChangeRequest((runtime("other"),)))
            oldest, *_ = await bed.services.store.read(lambda connection: list(all_drafts(connection)))
            assert oldest.time == change.time
            assert {each.sequence for each in await admin.runtimes()} == {0}
        await unblock_issuing(bed)
        await bed.issued()
        count = sa.text("SELECT count(*), count(DISTINCT runtime) FROM deliveries")
        counts = await bed.services.store.read(lambda connection: tuple(connection.execute(count).one()))
    assert counts == (26, 26)


async def test_runtimes_of_a_class_share_one_compilation_and_one_stored_bundle(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(*map(runtime, RUNTIMES), layer("a"))
        change = await bed.apply(layer("b"))
        planned = await bed.apply(layer("c"), dry_run=True, all_runtimes=True)
        await bed.apply(layer("${runtime.id}"))
        stored = sa.text("SELECT count(*) FROM bundles")
        bundles = await bed.services.store.read(lambda connection: connection.scalar(stored))
        ((_, _, compilations),) = bed.services.metrics.compilations.samples()
    assert [(each.count, each.examples) for each in change.classes] == [(25, ("r00", "r01", "r02"))]
    assert [each.runtime for each in planned.runtimes] == RUNTIMES
    assert (compilations, bundles) == (3 + 25, 2 + 25)


async def test_a_change_of_one_runtime_takes_one_transaction_to_accept_and_one_to_issue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts: list[str] = []
    async with running(tmp_path) as bed, bed.client() as admin:
        await bed.apply(*map(runtime, RUNTIMES), layer("a"))
        agent = await bed.enrol("r01")
        async with agent.watching() as take:
            await take()
            # The token is known from now on.
            await admin.runtime("r01")
            for act in ("read", "write"):
                original = getattr(bed.services.store, act)

                def record(*arguments: Any, act: str = act, original: Any = original) -> Any:
                    acts.append(act)
                    return original(*arguments)

                monkeypatch.setattr(bed.services.store, act, record)
            await admin.change(ChangeRequest((profile("one", component("own"), selector={"runtime": "r01"}),)))
            await take()
    assert acts == ["read", "write", "write"]
