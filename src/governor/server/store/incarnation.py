"""The identity of the store: its incarnation, and how often a server opened it.

A store that was restored, copied back or rolled back to a snapshot has forgotten deliveries that agents hold. It gets a
new incarnation as soon as that is known: when ``governor db restore`` runs, or when an agent presents such a delivery.
"""

import secrets

import sqlalchemy as sa

from governor.server.store.schema import store_identity


def count_start(connection: sa.Connection) -> int:
    """Count a start of the server and return its number; a new store gets its first incarnation."""
    found = connection.execute(sa.select(store_identity)).one_or_none()
    starts = found.starts + 1 if found else 1
    _replace(connection, found.incarnation if found else _new(), starts)
    return starts


def current_incarnation(connection: sa.Connection) -> str:
    """Return the incarnation of the store."""
    incarnation: str = connection.execute(sa.select(store_identity.c.incarnation)).scalar_one()
    return incarnation


def renew_incarnation(connection: sa.Connection) -> str:
    """Give the store a new incarnation and return it."""
    starts = connection.scalar(sa.select(store_identity.c.starts)) or 0
    incarnation = _new()
    _replace(connection, incarnation, starts)
    return incarnation


def _new() -> str:
    return secrets.token_hex(8)


def _replace(connection: sa.Connection, incarnation: str, starts: int) -> None:
    connection.execute(store_identity.delete())
    connection.execute(store_identity.insert().values(incarnation=incarnation, starts=starts))
