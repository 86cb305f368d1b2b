"""The version of the schema: a new database is made at once, an older one is migrated, a newer one is refused.

Alembic takes a third of a second and 48 MB to import, so it is imported only when there is something to migrate.
"""

from pathlib import Path

import sqlalchemy as sa

from governor.errors import GovernorError, Kind
from governor.process.telemetry import logging
from governor.server.store.schema import HEAD, METADATA, schema_version
from governor.server.store.sqlite import writer_engine

_log = logging.get_logger(__name__)


def prepare(path: Path) -> None:
    """Bring the database at ``path`` to the schema of this program; blocking, before anything else opens it."""
    path.touch(mode=0o600)
    engine = writer_engine(path)
    try:
        with engine.begin() as connection:
            found = _found(connection)
            if found is None:
                _create(connection)
            elif found != HEAD:
                _migrate(connection, found)
    except sa.exc.DBAPIError as error:
        message = f"{path} cannot be used as the server's database: {error.orig}"
        raise GovernorError(Kind.PRECONDITION, "store-unusable", message) from error
    finally:
        engine.dispose()


def _found(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(schema_version.name):
        return None
    return connection.scalar(sa.select(schema_version.c.version_num))


def _create(connection: sa.Connection) -> None:
    METADATA.create_all(connection)
    connection.execute(schema_version.insert().values(version_num=HEAD))
    _log.info("database created", schema=HEAD)


def _migrate(connection: sa.Connection, found: str) -> None:
    if found > HEAD:
        message = f"the database has schema {found}, this program knows up to {HEAD}; start a newer program"
        raise GovernorError(Kind.PRECONDITION, "store-newer", message)
    from governor.server.store.migrations import upgrade  # noqa: PLC0415 - see above

    upgrade(connection, HEAD)
    _log.info("database migrated", schema=HEAD, before=found)
