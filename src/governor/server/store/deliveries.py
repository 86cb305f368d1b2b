"""Statements on deliveries and on the reports about them."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import msgspec
import sqlalchemy as sa

from governor.domain.bundles import Delivery, refs
from governor.domain.documents import ResourceRef
from governor.domain.reports import Report
from governor.server.store.schema import DELIVERY_COLUMNS, deliveries, reports

_MOST_NAMES = 500
"""How many names go into one statement; databases bound the number of parameters."""


class Issued(msgspec.Struct, frozen=True):
    """A delivery without its content, as far as states are made from it."""

    runtime: str
    sequence: int
    attempt: int
    revision: int
    digest: str
    time: datetime


class Heard(msgspec.Struct, frozen=True):
    """The newest report about one delivery, with the server's own times."""

    received: datetime
    acknowledged: bool
    verified: datetime | None
    report: Report


_ISSUED = tuple(deliveries.c[name] for name in Issued.__struct_fields__)
_HEARD = (reports.c.received, reports.c.acknowledged, reports.c.verified, reports.c.body)


def insert_deliveries(connection: sa.Connection, made: Sequence[Delivery], time: datetime) -> None:
    """Store new deliveries."""
    rows = [{column.name: getattr(delivery, column.name) for column in DELIVERY_COLUMNS} for delivery in made]
    if rows:
        connection.execute(deliveries.insert(), [row | {"time": time} for row in rows])


def find_delivery(connection: sa.Connection, runtime: str, sequence: int | None = None) -> Delivery | None:
    """One delivery with its sealed content, the newest without ``sequence``."""
    statement = sa.select(*DELIVERY_COLUMNS).where(deliveries.c.runtime == runtime)
    if sequence is not None:
        statement = statement.where(deliveries.c.sequence == sequence)
    row = connection.execute(statement.order_by(deliveries.c.sequence.desc()).limit(1)).one_or_none()
    return None if row is None else _delivery(row)


def newest_deliveries(connection: sa.Connection, runtimes: Iterable[str]) -> dict[str, Delivery]:
    """The newest delivery of each of these runtimes, with its sealed content."""
    newest = _newest(deliveries)
    joined = deliveries.join(newest, _same_delivery(deliveries, newest))
    found: dict[str, Delivery] = {}
    for names in _portions(runtimes):
        statement = sa.select(*DELIVERY_COLUMNS).select_from(joined).where(deliveries.c.runtime.in_(names))
        found |= {row.runtime: _delivery(row) for row in connection.execute(statement)}
    return found


def newest_issued(connection: sa.Connection, runtime: str | None = None) -> dict[str, Issued]:
    """The newest delivery of each runtime, or of one, without content."""
    newest = _newest(deliveries, runtime)
    statement = sa.select(*_ISSUED).select_from(deliveries.join(newest, _same_delivery(deliveries, newest)))
    return {row.runtime: Issued(*row) for row in connection.execute(statement)}


def newest_heard(connection: sa.Connection, runtime: str | None = None) -> dict[str, Heard]:
    """For each runtime, or for one, the report about the newest delivery that has one."""
    newest = _newest(reports, runtime)
    statement = sa.select(reports.c.runtime, *_HEARD).select_from(reports.join(newest, _same_delivery(reports, newest)))
    return {name: Heard(*heard) for name, *heard in connection.execute(statement)}


def issued_in(connection: sa.Connection, revision: int) -> list[Issued]:
    """What a revision sent out first to each of its runtimes; a retry sends the same once more."""
    first = _first_of(revision)
    statement = sa.select(*_ISSUED).select_from(deliveries.join(first, _same_delivery(deliveries, first)))
    return [Issued(*row) for row in connection.execute(statement.order_by(deliveries.c.runtime))]


def acknowledged_since(connection: sa.Connection, revision: int) -> dict[str, tuple[Issued, Heard]]:
    """For each runtime of a revision, its first delivery from then on that is acknowledged now."""
    first = _first_of(revision)
    statement = (
        sa.select(*_ISSUED, *_HEARD)
        .select_from(reports.join(deliveries, _same_delivery(reports, deliveries)))
        .join(first, sa.and_(reports.c.runtime == first.c.runtime, reports.c.sequence >= first.c.sequence))
        .where(reports.c.acknowledged)
        .order_by(reports.c.sequence.desc())
    )
    width = len(_ISSUED)
    return {row.runtime: (Issued(*row[:width]), Heard(*row[width:])) for row in connection.execute(statement)}


def highest_attempt(connection: sa.Connection, runtime: str, digest: str) -> int:
    """How often this runtime was asked to take this content; 0 when never."""
    statement = sa.select(sa.func.max(deliveries.c.attempt)).where(
        deliveries.c.runtime == runtime, deliveries.c.digest == digest
    )
    return connection.scalar(statement) or 0


def delivered_since_verified(connection: sa.Connection, runtime: str) -> frozenset[ResourceRef]:
    """What may be present in a runtime: the resources of its last verified delivery and of everything sent since."""
    verified = sa.select(sa.func.coalesce(sa.func.max(reports.c.sequence), 0)).where(
        reports.c.runtime == runtime, reports.c.verified.is_not(None)
    )
    statement = sa.select(deliveries.c.resources).where(
        deliveries.c.runtime == runtime, deliveries.c.sequence >= verified.scalar_subquery()
    )
    return frozenset(ref for resources in connection.scalars(statement) for ref in refs(resources))


def find_heard(connection: sa.Connection, runtime: str, sequence: int) -> Heard | None:
    """The newest report about one delivery."""
    statement = sa.select(*_HEARD).where(reports.c.runtime == runtime, reports.c.sequence == sequence)
    row = connection.execute(statement).one_or_none()
    return None if row is None else Heard(*row)


def put_report(connection: sa.Connection, heard: Heard) -> None:
    """Store a report in place of the last one about the same delivery."""
    key = {"runtime": heard.report.runtime, "sequence": heard.report.sequence}
    connection.execute(reports.delete().filter_by(**key))
    values = {"received": heard.received, "acknowledged": heard.acknowledged, "verified": heard.verified}
    connection.execute(reports.insert(), [{**key, **values, "body": heard.report}])


def _newest(table: sa.Table, runtime: str | None = None) -> sa.Subquery:
    statement = sa.select(table.c.runtime, sa.func.max(table.c.sequence).label("sequence")).group_by(table.c.runtime)
    if runtime is not None:
        statement = statement.where(table.c.runtime == runtime)
    return statement.subquery()


def _first_of(revision: int) -> sa.Subquery:
    lowest = sa.func.min(deliveries.c.sequence).label("sequence")
    chosen = sa.select(deliveries.c.runtime, lowest).where(deliveries.c.revision == revision)
    return chosen.group_by(deliveries.c.runtime).subquery()


def _same_delivery(left: sa.FromClause, right: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(left.c.runtime == right.c.runtime, left.c.sequence == right.c.sequence)


def _delivery(row: sa.Row[tuple[object, ...]]) -> Delivery:
    values = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's public name
    return Delivery(**values | {"resources": tuple(values["resources"])})


def _portions(names: Iterable[str]) -> Iterator[list[str]]:
    ordered = sorted(names)
    for start in range(0, len(ordered), _MOST_NAMES):
        yield ordered[start : start + _MOST_NAMES]
