"""Backup, restore and pruning of the database file. Blocking.

A backup is a consistent copy, taken while the server runs. It contains sealed values, hashed secrets and no key: the
key files of the data directory are kept apart.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import sqlalchemy as sa

from governor.errors import GovernorError, Kind, invalid
from governor.process.files import Staged, stage
from governor.process.telemetry import logging
from governor.server.store import retention, schema_version
from governor.server.store.deliveries import forget_newest_reports
from governor.server.store.incarnation import renew_incarnation
from governor.server.store.runtime_states import underive
from governor.server.store.schema import schema_version as version_table
from governor.server.store.sqlite import writer_engine
from governor.server.store.write_ahead_log import is_foreign, mark_commit

REPLACED: Final = ".replaced"
"""Suffix of the database that a restore replaced, followed by the time."""
_WAL_FILES: Final = ("-wal", "-shm")

_log = logging.get_logger(__name__)


def backup(database: Path, target: Path) -> None:
    """Write a consistent copy of a database, in use or not, to a new file that only its owner can read."""
    _require(database)
    if target.exists():
        raise GovernorError(Kind.EXISTS, "backup-exists", f"{target} exists already; choose another file")
    with _copied(database, target, str(database)) as staged:
        staged.commit()


def prune(database: Path, keep: int) -> int:
    """Remove superseded deliveries from a database, in use or not; return how many."""
    _require(database)
    engine, total = writer_engine(database), 0
    try:
        removed: int | None = 0
        while removed is not None:
            total += removed
            with engine.begin() as connection:
                schema_version.require_current(connection, database)
                removed = retention.prune(connection, keep)
                mark_commit(connection)
    except sa.exc.DBAPIError as error:
        raise invalid("database-unreadable", f"{database} cannot be pruned: {error.orig}") from error
    finally:
        engine.dispose()
    return total


def _require(database: Path) -> None:
    if not database.is_file():
        message = f"there is no database {database}; name the server's data directory with --data-dir"
        raise GovernorError(Kind.NOT_FOUND, "database-missing", message)


class Restored(NamedTuple):
    """The new incarnation, and the database that was replaced, if there was one."""

    incarnation: str
    replaced: Path | None


def restore(source: Path, database: Path, name: str = "") -> Restored:
    """Replace the database of a stopped server by a backup under a new incarnation. Errors call the backup ``name``.

    The backup is checked and migrated before anything is replaced; the replaced database is kept beside it.
    """
    name = name or str(source)
    if not source.is_file():
        raise GovernorError(Kind.NOT_FOUND, "backup-missing", f"there is no backup {name}")
    _remove_unfinished(database)
    with _copied(source, database, name) as staged:
        incarnation = _prepare(staged.temporary, name)
        staged.sync()
        replaced = _keep_replaced(database)
        staged.commit()
    return Restored(incarnation, replaced)


@contextmanager
def _copied(source: Path, target: Path, name: str) -> Iterator[Staged]:
    """Copy a database beside ``target`` under a temporary name, and check the copy."""
    staged = stage(target, b"")
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as original,
            closing(sqlite3.connect(staged.temporary)) as copy,
        ):
            original.backup(copy)
            _make_single_file(copy)
            problem = copy.execute("PRAGMA integrity_check").fetchone()[0]
        if problem != "ok":
            raise invalid("database-damaged", f"{name} is damaged: {problem}")
        staged.sync()
        yield staged
    except sqlite3.Error as error:
        raise invalid("database-unreadable", f"{name} cannot be copied as a database: {error}") from error
    finally:
        staged.discard()


def _prepare(copy: Path, name: str) -> str:
    """Migrate the copy of a backup and give it a new incarnation in which agents must confirm what they hold."""
    engine = writer_engine(copy)
    try:
        with engine.begin() as connection:
            if not sa.inspect(connection).has_table(version_table.name):
                raise invalid("backup-foreign", f"{name} is not a database of this server")
        schema_version.prepare(copy)
        with engine.begin() as connection:
            incarnation = renew_incarnation(connection)
            underive(connection, forget_newest_reports(connection))
            mark_commit(connection)
    finally:
        engine.dispose()
    with closing(sqlite3.connect(copy)) as connection:
        _make_single_file(connection)
    return incarnation


def _make_single_file(connection: sqlite3.Connection) -> None:
    """Merge the write-ahead log into the database file; the server turns it on again."""
    connection.execute("PRAGMA journal_mode=DELETE")


def _remove_unfinished(database: Path) -> None:
    """Remove copies that a killed restore left beside the database."""
    for path in database.parent.glob(f".{database.name}.*"):
        path.unlink(missing_ok=True)


def _keep_replaced(database: Path) -> Path | None:
    """Hard-link the current database as ``.replaced`` and move its write-ahead log along.

    Return None if there is no database.
    """
    if not database.exists():
        return None
    if not is_foreign(database):
        _checkpoint(database)
    # Never overwritten: after two restores the first replaced database may be the one that is wanted.
    kept = database.with_name(f"{database.name}{REPLACED}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
    for suffix in _WAL_FILES:
        log = database.with_name(database.name + suffix)
        if log.exists():
            log.replace(kept.with_name(kept.name + suffix))
    kept.hardlink_to(database)
    return kept


def _checkpoint(database: Path) -> None:
    """Move the write-ahead log into the database, unless it is damaged, which may be why it is replaced."""
    try:
        with closing(sqlite3.connect(database)) as connection:
            is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.DatabaseError as error:
        is_busy = False
        _log.warning("the replaced database is damaged", file=str(database), error=str(error))
    if is_busy:
        # Its log would be lost, which may hold transactions that are not in the database yet.
        message = f"{database} is being read, for example by a backup; try again when that has ended"
        raise GovernorError(Kind.CONFLICT, "database-in-use", message)
