"""The store on a real SQLite file: group commit, isolation of failures, migrations."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from governor.errors import GovernorError, Kind
from governor.server.store import schema, schema_version
from governor.server.store.identities import insert_server_key, server_key_id
from governor.server.store.sqlite import Store, writer_engine

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Bed:
    """An open store that records the sizes of its commits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.commits: list[int] = []
        self.store = Store(path, self.commits.append)


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    schema_version.prepare(tmp_path / "test.db")
    bed = Bed(tmp_path / "test.db")
    yield bed
    bed.store.close()


async def purposes(store: Store) -> set[str]:
    return set(await store.read(lambda connection: list(connection.scalars(sa.select(schema.server_keys.c.purpose)))))


def insert(purpose: str) -> Callable[[sa.Connection], None]:
    return lambda connection: insert_server_key(connection, purpose, "k", NOW)


async def test_queued_writes_share_a_commit(bed: Bed) -> None:
    release = threading.Event()
    first = asyncio.ensure_future(bed.store.write(lambda _: release.wait(10)))
    waiting = [asyncio.ensure_future(bed.store.write(insert(str(number)))) for number in range(20)]
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(first, *waiting)
    assert sum(bed.commits) == 21
    assert len(bed.commits) <= 3
    assert await purposes(bed.store) == {str(number) for number in range(20)}


async def test_a_failing_write_does_not_affect_others_in_its_commit(bed: Bed) -> None:
    def fail(connection: sa.Connection) -> None:
        insert_server_key(connection, "half-done", "k", NOW)
        raise ValueError("on purpose")

    writes = [
        bed.store.write(lambda c: insert_server_key(c, "before", "k", NOW)),
        bed.store.write(fail),
        bed.store.write(lambda c: insert_server_key(c, "before", "k", NOW)),
        bed.store.write(lambda c: insert_server_key(c, "after", "k", NOW)),
    ]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert await purposes(bed.store) == {"before", "after"}
    assert [type(outcome) for outcome in outcomes] == [type(None), ValueError, GovernorError, type(None)]


async def test_a_database_error_contains_no_values(bed: Bed) -> None:
    await bed.store.write(lambda c: insert_server_key(c, "same", "canary", NOW))
    with pytest.raises(GovernorError) as caught:
        await bed.store.write(lambda c: insert_server_key(c, "same", "canary", NOW))
    assert caught.value.kind is Kind.INTERNAL
    assert "canary" not in str(caught.value)


async def test_a_write_returns_after_its_commit(bed: Bed) -> None:
    await bed.store.write(lambda c: insert_server_key(c, "written", "k", NOW))
    engine = writer_engine(bed.path)
    with engine.connect() as other:
        assert server_key_id(other, "written") == "k"
    engine.dispose()


async def test_a_reader_cannot_write(bed: Bed) -> None:
    with pytest.raises(GovernorError):
        await bed.store.read(lambda c: insert_server_key(c, "x", "k", NOW))
    assert await purposes(bed.store) == set()


async def test_a_reader_sees_one_snapshot_while_others_write(bed: Bed) -> None:
    began, release = threading.Event(), threading.Event()

    def read_twice(connection: sa.Connection) -> list[str | None]:
        first = server_key_id(connection, "late")
        began.set()
        release.wait(10)
        return [first, server_key_id(connection, "late")]

    reading = asyncio.ensure_future(bed.store.read(read_twice))
    await asyncio.to_thread(began.wait, 10)
    await bed.store.write(lambda c: insert_server_key(c, "late", "k", NOW))
    release.set()
    assert await reading == [None, None]


async def test_a_write_cancelled_before_it_starts_does_not_run(bed: Bed) -> None:
    started, release = threading.Event(), threading.Event()

    def wait(_: sa.Connection) -> None:
        started.set()
        release.wait(10)

    first = asyncio.ensure_future(bed.store.write(wait))
    # Submitted earlier, the cancelled write could join the first commit and have started.
    assert await asyncio.to_thread(started.wait, 10)
    cancelled = asyncio.ensure_future(bed.store.write(lambda c: insert_server_key(c, "cancelled", "k", NOW)))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait({cancelled})
    release.set()
    await first
    await bed.store.write(lambda c: insert_server_key(c, "kept", "k", NOW))
    assert await purposes(bed.store) == {"kept"}


async def test_a_number_beyond_64_bits_is_rejected(bed: Bed) -> None:
    with pytest.raises(GovernorError) as caught:
        await bed.store.read(lambda c: c.scalar(sa.select(schema.revisions).filter_by(number=1 << 70)))
    assert caught.value.code == "number-large"


async def test_the_writer_uses_durable_settings(bed: Bed) -> None:
    def pragmas(connection: sa.Connection) -> dict[str, object]:
        names = ("journal_mode", "synchronous", "foreign_keys")
        return {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names}

    assert await bed.store.write(pragmas) == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_migrations_produce_the_current_schema(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    from governor.server.store.migrations import config, upgrade

    def tables(engine: sa.Engine) -> list[str]:
        with engine.connect() as connection:
            statement = "SELECT type || ' ' || name FROM sqlite_master ORDER BY 1"
            return [str(row[0]) for row in connection.exec_driver_sql(statement)]

    schema_version.prepare(tmp_path / "created.db")
    created, migrated = writer_engine(tmp_path / "created.db"), writer_engine(tmp_path / "migrated.db")
    with migrated.begin() as connection:
        upgrade(connection, "head")
        assert ScriptDirectory.from_config(config(connection)).get_current_head() == schema.HEAD
    with migrated.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), schema.METADATA) == []
    assert tables(created) == tables(migrated)
    created.dispose()
    migrated.dispose()


def test_a_failed_migration_is_rolled_back(tmp_path: Path) -> None:
    from governor.server.store.migrations import upgrade

    engine = writer_engine(tmp_path / "test.db")
    with engine.connect() as connection:
        transaction = connection.begin()
        upgrade(connection, "head")
        during = sa.inspect(connection).get_table_names()
        transaction.rollback()
        after = sa.inspect(connection).get_table_names()
    assert (during != [], after) == (True, [])
    engine.dispose()


def test_alembic_is_imported_only_for_a_migration(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from governor.server.store import schema_version\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "schema_version.prepare(path); schema_version.prepare(path)\n"
        "print('alembic' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "test.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False"


async def test_a_full_database_rejects_only_the_write_that_does_not_fit(bed: Bed) -> None:
    def limit(connection: sa.Connection) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar() or 0
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages + 20}")

    def too_much(connection: sa.Connection) -> None:
        insert_server_key(connection, "too much", "k" * 1_000_000, NOW)

    await bed.store.write(limit)
    release = threading.Event()
    blocked = asyncio.ensure_future(bed.store.write(lambda _: release.wait(10)))
    await asyncio.sleep(0)
    small = [asyncio.ensure_future(bed.store.write(insert(f"small {number}"))) for number in range(4)]
    large = asyncio.ensure_future(bed.store.write(too_much))
    more = asyncio.ensure_future(bed.store.write(insert("more")))
    await asyncio.sleep(0)
    release.set()
    outcomes = await asyncio.gather(blocked, *small, large, more, return_exceptions=True)
    rejected = [each for each in outcomes if isinstance(each, GovernorError)]
    assert [(each.kind, each.code) for each in rejected] == [(Kind.EXHAUSTED, "store-full")]
    assert await purposes(bed.store) == {"more", *(f"small {number}" for number in range(4))}
