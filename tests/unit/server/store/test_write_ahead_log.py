"""A database file and a write-ahead log are used together only if they are of one store."""

import random
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from governor.errors import GovernorError, Kind
from governor.server.store import schema_version
from governor.server.store.backup import REPLACED, backup, restore
from governor.server.store.identities import insert_server_key
from governor.server.store.sqlite import Store
from governor.server.store.write_ahead_log import is_foreign

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEED = 7


class Server:
    """A store that is copied while it is open, as a crash leaves it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        schema_version.prepare(path)
        self.store = Store(path)
        self.commits = 0

    async def commit(self) -> int:
        """Commit one row and return the number of rows."""
        self.commits += 1
        name = f"{self.path.parent.name}-{self.commits}"
        await self.store.write(lambda connection: insert_server_key(connection, name, "k" * 3000, NOW))
        return self.commits

    async def checkpoint(self, mode: str = "TRUNCATE") -> None:
        """Copy the log into the database file; TRUNCATE empties the log."""
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute(f"PRAGMA wal_checkpoint({mode})")


@pytest.fixture
def server(tmp_path: Path) -> Server:
    (tmp_path / "one").mkdir()
    return Server(tmp_path / "one" / "test.db")


def log_of(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def put(database: Path, log: Path, target: Path) -> Path:
    """Put a database file and a log in one place and return the database."""
    target.mkdir()
    shutil.copy(database, target / "test.db")
    shutil.copy(log, target / "test.db-wal")
    return target / "test.db"


async def put_backup_beside_log(server: Server, directory: Path) -> Path:
    """Put a backup of the server's database beside its newer log and return the database."""
    await server.commit()
    backup(server.path, directory / "backup.db")
    await server.commit()
    await server.checkpoint()
    await server.commit()
    replaced = put(directory / "backup.db", log_of(server.path), directory / "replaced")
    server.store.close()
    return replaced


def rows(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return int(connection.execute("SELECT count(*) FROM server_keys").fetchone()[0])


async def test_the_log_of_a_crash_is_used(server: Server, tmp_path: Path) -> None:
    for _ in range(3):
        await server.commit()
    crashed = put(server.path, log_of(server.path), tmp_path / "crashed")
    server.store.close()
    schema_version.prepare(crashed)
    assert rows(crashed) == 3


async def test_a_file_copy_beside_the_log_of_the_replaced_database_is_rejected(server: Server, tmp_path: Path) -> None:
    replaced = await put_backup_beside_log(server, tmp_path)
    before = {path: path.read_bytes() for path in replaced.parent.iterdir()}
    with pytest.raises(GovernorError) as caught:
        schema_version.prepare(replaced)
    assert (caught.value.kind, caught.value.code) == (Kind.PRECONDITION, "store-log-foreign")
    assert f"move {log_of(replaced)}" in caught.value.message
    assert {path: path.read_bytes() for path in replaced.parent.iterdir()} == before
    log_of(replaced).unlink()
    schema_version.prepare(replaced)
    assert rows(replaced) == 1


@pytest.mark.parametrize("kept", [20, 40, 32 + 24 + 4096, 32 + 24 + 4096 + 30])
async def test_a_log_without_a_complete_commit_is_ignored(server: Server, tmp_path: Path, kept: int) -> None:
    await server.commit()
    await server.checkpoint()
    crashed = put(server.path, log_of(server.path), tmp_path / "crashed")
    await server.commit()
    content = log_of(server.path).read_bytes()
    server.store.close()
    assert len(content) > kept
    # Without its first half, a page has another checksum.
    for log in (content[:kept], content[: 32 + 24] + bytes(2048) + content[32 + 24 + 2048 :]):
        log_of(crashed).write_bytes(log)
        assert not is_foreign(crashed)
        assert rows(crashed) == 1


async def test_the_log_of_another_store_is_rejected(server: Server, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    other = Server(tmp_path / "two" / "test.db")
    for each in (server, other):
        await each.commit()
    mixed = put(server.path, log_of(other.path), tmp_path / "mixed")
    for each in (server, other):
        each.store.close()
    with pytest.raises(GovernorError, match="not the write-ahead log of"):
        schema_version.prepare(mixed)


async def test_every_accepted_pair_of_file_and_log_has_the_state_of_the_log(server: Server, tmp_path: Path) -> None:
    """With the server's own checkpoints, complete and partial, between the copies."""
    rng = random.Random(SEED)
    await server.store.write(lambda connection: connection.exec_driver_sql("PRAGMA wal_autocheckpoint=8").close())
    copies: list[tuple[Path, Path, int]] = []
    for number in range(16):
        for _ in range(rng.randint(1, 4)):
            count = await server.commit()
        if rng.random() < 0.3:
            await server.checkpoint(rng.choice(["PASSIVE", "TRUNCATE"]))
        copy = put(server.path, log_of(server.path), tmp_path / f"copy-{number}")
        copies.append((copy, log_of(copy), count))
    server.store.close()
    accepted = 0
    for one, (file, _, _) in enumerate(copies):
        for two, (_, log, count) in enumerate(copies):
            pair = put(file, log, tmp_path / f"{one}-{two}")
            # An empty log is ignored: only the file counts then.
            if log.stat().st_size == 0 or is_foreign(pair):
                assert one != two or log.stat().st_size == 0
                continue
            accepted += one != two
            assert rows(pair) == count
    assert accepted > 0, f"seed {SEED}"


async def test_a_database_of_an_older_version_is_opened_with_its_log(server: Server, tmp_path: Path) -> None:
    """Such versions do not mark their commits."""
    server.store.close()
    with closing(sqlite3.connect(server.path)) as connection:
        connection.execute("PRAGMA user_version=0")
        connection.execute("PRAGMA application_id=0")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with connection:
            connection.execute("INSERT INTO server_keys VALUES ('a', 'k', 1)")
        crashed = put(server.path, log_of(server.path), tmp_path / "crashed")
    schema_version.prepare(crashed)
    assert rows(crashed) == 1


async def test_a_commit_that_changes_nothing_is_not_marked(server: Server) -> None:
    size = log_of(server.path).stat().st_size if log_of(server.path).exists() else 0
    await server.store.write(lambda connection: connection.execute(sa.text("SELECT 1")).close())
    assert (log_of(server.path).stat().st_size if log_of(server.path).exists() else 0) == size
    server.store.close()


async def test_a_restore_keeps_a_replaced_database_and_a_foreign_log_apart(server: Server, tmp_path: Path) -> None:
    replaced = await put_backup_beside_log(server, tmp_path)
    file, log = replaced.read_bytes(), log_of(replaced).read_bytes()
    restore(tmp_path / "backup.db", replaced)
    [kept] = (path for path in replaced.parent.glob(f"test.db{REPLACED}-*") if not path.name.endswith(("-wal", "-shm")))
    assert (kept.read_bytes(), log_of(kept).read_bytes()) == (file, log)
    schema_version.prepare(replaced)
    assert rows(replaced) == 1
