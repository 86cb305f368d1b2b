"""Schema version of the database: a new database is created, an older one migrated, a newer one rejected.

Alembic takes a third of a second and 48 MB to import, so it is imported only for a migration.
"""

from pathlib import Path

import sqlalchemy as sa

from governor.errors import GovernorError, Kind
from governor.process.telemetry import logging
from governor.server.store import write_ahead_log
from governor.server.store.schema import HEAD, METADATA, schema_version
from governor.server.store.sqlite import writer_engine

_log = logging.get_logger(__name__)


def prepare(path: Path) -> None:
    """Create or migrate the database at ``path``; blocking, called before anything else opens it.

    Raise if it is beside the write-ahead log of another database.
    """
    path.touch(mode=0o600)
    write_ahead_log.check(path)
    engine = writer_engine(path)
    try:
        with engine.begin() as connection:
            found = _read_version(connection)
            if found is None:
                _create(connection)
            elif found != HEAD:
                _migrate(connection, found)
            if found != HEAD:
                write_ahead_log.mark_commit(connection)
    except sa.exc.DBAPIError as error:
        message = f"{path} cannot be used as the server's database: {error.orig}"
        raise GovernorError(Kind.PRECONDITION, "store-unusable", message) from error
    finally:
        engine.dispose()


def require_current(connection: sa.Connection, path: Path) -> None:
    """Raise if a database is not of this version; only the server migrates."""
    found = _read_version(connection)
    if found != HEAD:
        message = f"{path} has schema {found}, this version has {HEAD}: start the server of this version first"
        raise GovernorError(Kind.PRECONDITION, "store-version", message)


def _read_version(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(schema_version.name):
        return None
    return connection.scalar(sa.select(schema_version.c.version_num))


def _create(connection: sa.Connection) -> None:
    METADATA.create_all(connection)
    connection.execute(schema_version.insert().values(version_num=HEAD))
    _log.info("database created", schema=HEAD)


def _migrate(connection: sa.Connection, found: str) -> None:
    if found > HEAD:
        message = f"the database has schema {found}, this version supports up to {HEAD}; install a newer version"
        raise GovernorError(Kind.PRECONDITION, "store-newer", message)
    from governor.server.store.migrations import upgrade  # noqa: PLC0415 - slow to import, see above

    upgrade(connection, HEAD)
    _log.info("database migrated", schema=HEAD, before=found)
