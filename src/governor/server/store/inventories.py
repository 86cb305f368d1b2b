"""Statements on the inventories of runtimes."""

from datetime import datetime

import sqlalchemy as sa

from governor.domain.inventories import Inventory
from governor.server.store.schema import inventories


def find_inventory(connection: sa.Connection, runtime: str) -> tuple[datetime, Inventory] | None:
    """Return when a runtime's inventory last changed, and the inventory; None if its agent has sent none."""
    statement = sa.select(inventories.c.received, inventories.c.body).where(inventories.c.runtime == runtime)
    row = connection.execute(statement).one_or_none()
    return None if row is None else (row.received, row.body)


def put_inventory(connection: sa.Connection, runtime: str, inventory: Inventory, time: datetime) -> None:
    """Replace the stored inventory of a runtime."""
    delete_inventory(connection, runtime)
    connection.execute(inventories.insert(), [{"runtime": runtime, "received": time, "body": inventory}])


def delete_inventory(connection: sa.Connection, runtime: str) -> None:
    """Delete the stored inventory of a runtime, if there is one."""
    connection.execute(inventories.delete().where(inventories.c.runtime == runtime))
