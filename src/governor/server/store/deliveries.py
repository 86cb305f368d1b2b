"""Statements on deliveries and their reports."""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import msgspec
import sqlalchemy as sa

from governor.domain.bundles import Delivery, DeliveryPosition, refs
from governor.domain.documents import ResourceRef
from governor.domain.reports import Report
from governor.domain.windows import Hold, Window
from governor.server.store.incarnation import current_incarnation
from governor.server.store.schema import DELIVERY_COLUMNS, deliveries, reports

_MAX_NAMES = 500
"""Names per statement; databases limit the number of parameters."""


class DeliveryHead(msgspec.Struct, frozen=True):
    """A delivery without its content."""

    runtime: str
    sequence: int
    attempt: int
    revision: int
    digest: str
    time: datetime


class StoredReport(msgspec.Struct, frozen=True):
    """The newest report about one delivery, with timestamps of the server's clock."""

    received: datetime
    acknowledged: bool
    verified: datetime | None
    report: Report


_HEAD = tuple(deliveries.c[name] for name in DeliveryHead.__struct_fields__)
_REPORT = (reports.c.received, reports.c.acknowledged, reports.c.verified, reports.c.body)


def insert_deliveries(connection: sa.Connection, new: Sequence[Delivery], time: datetime) -> None:
    """Store new deliveries, each with a random id and the incarnation of the store."""
    if not new:
        return
    incarnation = current_incarnation(connection)
    rows = [{column.name: getattr(delivery, column.name) for column in DELIVERY_COLUMNS} for delivery in new]
    issued = [row | {"time": time, "incarnation": incarnation, "id": secrets.token_hex(8)} for row in rows]
    connection.execute(deliveries.insert(), issued)


def was_issued(connection: sa.Connection, runtime: str, held: DeliveryPosition) -> bool:
    """Return whether this store issued the delivery that an agent holds; a format 1 agent knows no id."""
    if not held.sequence:
        return True
    statement = sa.select(deliveries.c.id).where(
        deliveries.c.runtime == runtime, deliveries.c.sequence == held.sequence
    )
    found = connection.scalar(statement)
    return found is not None and held.id in ("", found)


def issued_incarnations(connection: sa.Connection, runtime: str) -> frozenset[str]:
    """Return the incarnations in which deliveries of a runtime were issued."""
    statement = sa.select(deliveries.c.incarnation).where(deliveries.c.runtime == runtime).distinct()
    return frozenset(connection.scalars(statement))


def find_delivery(connection: sa.Connection, runtime: str, sequence: int | None = None) -> Delivery | None:
    """Return one delivery with its sealed content; the newest if ``sequence`` is None."""
    statement = sa.select(*DELIVERY_COLUMNS).where(deliveries.c.runtime == runtime)
    if sequence is not None:
        statement = statement.where(deliveries.c.sequence == sequence)
    row = connection.execute(statement.order_by(deliveries.c.sequence.desc()).limit(1)).one_or_none()
    return None if row is None else _delivery(row)


def newest_restraints(connection: sa.Connection, runtime: str) -> tuple[tuple[Window, ...], Hold | None]:
    """Return the windows and the hold of a runtime's newest delivery, without reading its resources."""
    statement = sa.select(deliveries.c.windows, deliveries.c.hold).where(deliveries.c.runtime == runtime)
    row = connection.execute(statement.order_by(deliveries.c.sequence.desc()).limit(1)).one_or_none()
    return ((), None) if row is None else (row.windows or (), row.hold)


def newest_deliveries(connection: sa.Connection, runtimes: Iterable[str]) -> dict[str, Delivery]:
    """Return the newest delivery of each given runtime, with its sealed content."""
    newest = _newest(deliveries)
    joined = deliveries.join(newest, _same_delivery(deliveries, newest))
    found: dict[str, Delivery] = {}
    for names in _batches(runtimes):
        statement = sa.select(*DELIVERY_COLUMNS).select_from(joined).where(deliveries.c.runtime.in_(names))
        found |= {row.runtime: _delivery(row) for row in connection.execute(statement)}
    return found


def newest_heads(connection: sa.Connection, runtime: str | None = None) -> dict[str, DeliveryHead]:
    """Return the head of the newest delivery, of every runtime or of one."""
    newest = _newest(deliveries, runtime)
    statement = sa.select(*_HEAD).select_from(deliveries.join(newest, _same_delivery(deliveries, newest)))
    return {row.runtime: DeliveryHead(*row) for row in connection.execute(statement)}


def newest_reports(connection: sa.Connection, runtime: str | None = None) -> dict[str, StoredReport]:
    """Return the report about the newest reported delivery, of every runtime or of one."""
    newest = _newest(reports, runtime)
    statement = sa.select(reports.c.runtime, *_REPORT).select_from(
        reports.join(newest, _same_delivery(reports, newest))
    )
    return {name: StoredReport(*values) for name, *values in connection.execute(statement)}


def first_heads(connection: sa.Connection, revision: int) -> list[DeliveryHead]:
    """Return the first delivery of a revision to each of its runtimes; a retry adds later ones."""
    first = _first_deliveries(revision)
    statement = sa.select(*_HEAD).select_from(deliveries.join(first, _same_delivery(deliveries, first)))
    return [DeliveryHead(*row) for row in connection.execute(statement.order_by(deliveries.c.runtime))]


def acknowledged_since(connection: sa.Connection, revision: int) -> dict[str, tuple[DeliveryHead, StoredReport]]:
    """Return, for each runtime of a revision, its first acknowledged delivery since then."""
    first = _first_deliveries(revision)
    statement = (
        sa.select(*_HEAD, *_REPORT)
        .select_from(reports.join(deliveries, _same_delivery(reports, deliveries)))
        .join(first, sa.and_(reports.c.runtime == first.c.runtime, reports.c.sequence >= first.c.sequence))
        .where(reports.c.acknowledged)
        .order_by(reports.c.sequence.desc())
    )
    width = len(_HEAD)
    return {
        row.runtime: (DeliveryHead(*row[:width]), StoredReport(*row[width:])) for row in connection.execute(statement)
    }


def highest_attempt(connection: sa.Connection, runtime: str, digest: str) -> int:
    """Return the highest attempt at which a digest was delivered to a runtime; 0 if it never was."""
    statement = sa.select(sa.func.max(deliveries.c.attempt)).where(
        deliveries.c.runtime == runtime, deliveries.c.digest == digest
    )
    return connection.scalar(statement) or 0


def delivered_since_verified(connection: sa.Connection, runtime: str) -> frozenset[ResourceRef]:
    """Return the resources that may be present: those of the last verified delivery and of every later one."""
    verified = sa.select(sa.func.coalesce(sa.func.max(reports.c.sequence), 0)).where(
        reports.c.runtime == runtime, reports.c.verified.is_not(None)
    )
    statement = sa.select(deliveries.c.resources).where(
        deliveries.c.runtime == runtime, deliveries.c.sequence >= verified.scalar_subquery()
    )
    return frozenset(ref for resources in connection.scalars(statement) for ref in refs(resources))


def find_report(connection: sa.Connection, runtime: str, sequence: int) -> StoredReport | None:
    """Return the newest report about one delivery."""
    statement = sa.select(*_REPORT).where(reports.c.runtime == runtime, reports.c.sequence == sequence)
    row = connection.execute(statement).one_or_none()
    return None if row is None else StoredReport(*row)


def put_report(connection: sa.Connection, stored: StoredReport) -> None:
    """Replace the stored report about the same delivery."""
    key = {"runtime": stored.report.runtime, "sequence": stored.report.sequence}
    connection.execute(reports.delete().filter_by(**key))
    values = {"received": stored.received, "acknowledged": stored.acknowledged, "verified": stored.verified}
    connection.execute(reports.insert(), [{**key, **values, "body": stored.report}])


def forget_newest_reports(connection: sa.Connection) -> None:
    """Delete the reports about the newest deliveries, so that each is pending until its agent confirms it again."""
    newest = _newest(deliveries)
    is_newest = sa.exists().where(_same_delivery(reports, newest))
    connection.execute(reports.delete().where(is_newest))


def _newest(table: sa.Table, runtime: str | None = None) -> sa.Subquery:
    statement = sa.select(table.c.runtime, sa.func.max(table.c.sequence).label("sequence")).group_by(table.c.runtime)
    if runtime is not None:
        statement = statement.where(table.c.runtime == runtime)
    return statement.subquery()


def _first_deliveries(revision: int) -> sa.Subquery:
    lowest = sa.func.min(deliveries.c.sequence).label("sequence")
    first = sa.select(deliveries.c.runtime, lowest).where(deliveries.c.revision == revision)
    return first.group_by(deliveries.c.runtime).subquery()


def _same_delivery(left: sa.FromClause, right: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(left.c.runtime == right.c.runtime, left.c.sequence == right.c.sequence)


def _delivery(row: sa.Row[tuple[object, ...]]) -> Delivery:
    values = dict(row._mapping)  # noqa: SLF001 - public in SQLAlchemy
    resources, documents, windows = tuple(values["resources"]), values["documents"] or {}, values["windows"] or ()
    return Delivery(**values | {"resources": resources, "documents": documents, "windows": windows})


def _batches(names: Iterable[str]) -> Iterator[list[str]]:
    ordered = sorted(names)
    for start in range(0, len(ordered), _MAX_NAMES):
        yield ordered[start : start + _MAX_NAMES]
