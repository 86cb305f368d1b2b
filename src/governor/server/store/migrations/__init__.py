"""Migrations of the database, run by alembic. Importing this costs what alembic costs."""

import sqlalchemy as sa
from alembic import command
from alembic.config import Config


def upgrade(connection: sa.Connection, to: str) -> None:
    """Run all migrations up to ``to`` in the transaction of ``connection``."""
    command.upgrade(config(connection), to)


def config(connection: sa.Connection) -> Config:
    """Alembic's configuration; there is no alembic.ini."""
    made = Config()
    made.set_main_option("script_location", "governor.server.store:migrations")
    made.attributes["connection"] = connection
    return made
