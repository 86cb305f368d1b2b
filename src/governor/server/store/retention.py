"""Retention: superseded deliveries are removed, with their reports and with bundles that no other delivery has.

Documents, revisions and changes are kept.
"""

from collections.abc import Iterable
from typing import Final

import sqlalchemy as sa

from governor.server.store.schema import bundles, deliveries, drafts, reports, runtime_states
from governor.server.store.sqlite import batches

RUNTIMES_AT_ONCE: Final = 200
"""Runtimes whose deliveries are pruned in one transaction."""


def prune(connection: sa.Connection, keep: int) -> int | None:
    """Remove superseded deliveries of some runtimes, within one transaction; return how many, None if none is left.

    The newest ``keep`` of each runtime are kept, and its newest acknowledged one.
    """
    state = runtime_states.c
    last = (state.sequence - keep).label("last")
    statement = sa.select(state.runtime, last, state.acknowledged).where(last > state.pruned)
    found = connection.execute(statement.limit(RUNTIMES_AT_ONCE)).all()
    if not found:
        return None
    removed, digests = 0, set[str]()
    for runtime, last_sequence, acknowledged in found:
        is_old = _between(deliveries, runtime, last_sequence, acknowledged)
        digests.update(connection.scalars(sa.select(deliveries.c.digest).where(is_old)))
        connection.execute(reports.delete().where(_between(reports, runtime, last_sequence, acknowledged)))
        removed += connection.execute(deliveries.delete().where(is_old)).rowcount
        connection.execute(runtime_states.update().where(state.runtime == runtime).values(pruned=last_sequence))
    _remove_unused(connection, digests)
    return removed


def _between(table: sa.Table, runtime: str, last: int, kept: int) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.runtime == runtime, table.c.sequence <= last, table.c.sequence != kept)


def _remove_unused(connection: sa.Connection, digests: Iterable[str]) -> None:
    is_used = sa.or_(*(sa.exists().where(each.c.digest == bundles.c.digest) for each in (deliveries, drafts)))
    for some in batches(digests):
        connection.execute(bundles.delete().where(bundles.c.digest.in_(some), ~is_used))
