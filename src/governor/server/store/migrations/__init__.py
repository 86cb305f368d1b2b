"""Database migrations, run by alembic. Importing this package imports alembic, which is slow."""

import sqlalchemy as sa
from alembic import command
from alembic.config import Config


def upgrade(connection: sa.Connection, to: str) -> None:
    """Run all migrations up to ``to`` in the connection's transaction."""
    command.upgrade(config(connection), to)


def config(connection: sa.Connection) -> Config:
    """Return alembic's configuration; there is no alembic.ini."""
    config = Config()
    config.set_main_option("script_location", "governor.server.store:migrations")
    config.attributes["connection"] = connection
    return config
