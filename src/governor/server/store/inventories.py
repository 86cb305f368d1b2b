"""Statements on the inventories of runtimes."""

from collections.abc import Iterable, Iterator
from datetime import datetime

import sqlalchemy as sa

from governor.domain.inventories import Inventory
from governor.server.store.schema import inventories
from governor.server.store.sqlite import batches


def find_inventory(connection: sa.Connection, runtime: str) -> tuple[datetime, Inventory] | None:
    """Return when a runtime's inventory last changed, and the inventory; None if its agent has sent none."""
    statement = sa.select(inventories.c.received, inventories.c.body).where(inventories.c.runtime == runtime)
    row = connection.execute(statement).one_or_none()
    return None if row is None else (row.received, row.body)


def find_inventories(connection: sa.Connection, runtimes: Iterable[str]) -> Iterator[tuple[str, Inventory]]:
    """Yield the inventories of those of some runtimes whose agents have sent one."""
    columns = (inventories.c.runtime, inventories.c.body)
    for some in batches(runtimes):
        rows = connection.execute(sa.select(*columns).where(inventories.c.runtime.in_(some)))
        yield from ((row.runtime, row.body) for row in rows)


def put_inventory(connection: sa.Connection, runtime: str, inventory: Inventory, time: datetime) -> None:
    """Replace the stored inventory of a runtime."""
    delete_inventory(connection, runtime)
    connection.execute(inventories.insert(), [{"runtime": runtime, "received": time, "body": inventory}])


def delete_inventory(connection: sa.Connection, runtime: str) -> None:
    """Delete the stored inventory of a runtime, if there is one."""
    connection.execute(inventories.delete().where(inventories.c.runtime == runtime))
