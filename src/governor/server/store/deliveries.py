"""Statements on deliveries and their reports."""

import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from governor.domain.bundles import Delivery, DeliveryPosition
from governor.domain.documents import DocumentRef
from governor.domain.reports import Report
from governor.domain.windows import Hold, Window
from governor.server.store.bundles import Content, Contents
from governor.server.store.columns import SharedEncoder
from governor.server.store.incarnation import current_incarnation
from governor.server.store.runtime_states import RuntimeState, find_states, put_states
from governor.server.store.schema import DELIVERY_COLUMNS, deliveries, reports, runtime_states
from governor.server.store.sqlite import batches


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


_STORED = (*DELIVERY_COLUMNS, deliveries.c.profiles, deliveries.c.runtime_version)
_SHARED = ("removals", "apply", "windows", "hold")


def insert_deliveries(connection: sa.Connection, new: Sequence[tuple[Delivery, datetime]]) -> tuple[Delivery, ...]:
    """Store new deliveries with their times; return them with a random id each and the incarnation of the store."""
    if not new:
        return ()
    incarnation = current_incarnation(connection)
    issued = tuple(msgspec.structs.replace(each, incarnation=incarnation, id=secrets.token_hex(8)) for each, _ in new)
    shared = SharedEncoder()
    rows = [_row(each, shared) | {"time": time} for each, (_, time) in zip(issued, new, strict=True)]
    connection.execute(deliveries.insert(), rows)
    return issued


def _row(delivery: Delivery, shared: SharedEncoder) -> dict[str, Any]:
    own = str(DocumentRef("Runtime", delivery.runtime))
    row = {column.name: getattr(delivery, column.name) for column in DELIVERY_COLUMNS}
    row |= {name: shared.encode(row[name]) for name in _SHARED}
    profiles = {name: version for name, version in delivery.documents.items() if name != own}
    return row | {"profiles": profiles, "runtime_version": delivery.documents.get(own)}


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


def find_delivery(
    connection: sa.Connection, contents: Contents, runtime: str, sequence: int | None = None
) -> Delivery | None:
    """Return one delivery with its sealed content; the newest if ``sequence`` is None."""
    statement = sa.select(*_STORED).where(deliveries.c.runtime == runtime)
    if sequence is not None:
        statement = statement.where(deliveries.c.sequence == sequence)
    row = connection.execute(statement.order_by(deliveries.c.sequence.desc()).limit(1)).one_or_none()
    return None if row is None else _delivery(row, contents.find(connection, [row.digest]))


def newest_restraints(connection: sa.Connection, runtime: str) -> tuple[tuple[Window, ...], Hold | None]:
    """Return the windows and the hold of a runtime's newest delivery."""
    statement = sa.select(runtime_states.c.windows, runtime_states.c.hold).where(runtime_states.c.runtime == runtime)
    row = connection.execute(statement).one_or_none()
    return ((), None) if row is None else (row.windows or (), row.hold)


def newest_deliveries(connection: sa.Connection, contents: Contents, runtimes: Iterable[str]) -> dict[str, Delivery]:
    """Return the newest delivery of each given runtime, with its sealed content."""
    joined = deliveries.join(runtime_states, _same_delivery(deliveries, runtime_states))
    found: dict[str, Delivery] = {}
    for names in batches(runtimes):
        statement = sa.select(*_STORED).select_from(joined).where(deliveries.c.runtime.in_(names))
        rows = connection.execute(statement).all()
        known = contents.find(connection, [row.digest for row in rows])
        found |= {row.runtime: _delivery(row, known) for row in rows}
    return found


def newest_heads(connection: sa.Connection, runtime: str | None = None) -> dict[str, DeliveryHead]:
    """Return the head of the newest delivery, of every runtime or of one."""
    statement = sa.select(*(runtime_states.c[name] for name in DeliveryHead.__struct_fields__))
    if runtime is not None:
        statement = statement.where(runtime_states.c.runtime == runtime)
    return {row.runtime: DeliveryHead(*row) for row in connection.execute(statement)}


def newest_reports(connection: sa.Connection, runtime: str | None = None) -> dict[str, StoredReport]:
    """Return the report about the newest reported delivery, of every runtime or of one."""
    newest = _newest_reported(runtime)
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


def digests_since(connection: sa.Connection, runtime: str, sequence: int) -> frozenset[str]:
    """Return the digests of a runtime's deliveries from a sequence on."""
    statement = sa.select(deliveries.c.digest).where(deliveries.c.runtime == runtime, deliveries.c.sequence >= sequence)
    return frozenset(connection.scalars(statement))


def newest_verified(connection: sa.Connection, runtime: str) -> int:
    """Return the sequence of a runtime's newest delivery that was ever acknowledged, or 0."""
    statement = sa.select(sa.func.max(reports.c.sequence)).where(
        reports.c.runtime == runtime, reports.c.verified.is_not(None)
    )
    return connection.scalar(statement) or 0


def verified_state(connection: sa.Connection, contents: Contents, state: RuntimeState, sequence: int) -> RuntimeState:
    """Return the state of a runtime whose last verified delivery is this one, or 0 if none is."""
    found = contents.find(connection, digests_since(connection, state.runtime, sequence))
    present = frozenset(ref for each in found.values() for ref in each.refs)
    return msgspec.structs.replace(state, verified=sequence, present=tuple(sorted(present)))


def forget_verification(connection: sa.Connection, contents: Contents, runtimes: Iterable[str]) -> None:
    """Derive the last verified delivery of some runtimes from their remaining reports."""
    states = find_states(connection, runtimes).values()
    changed = [verified_state(connection, contents, each, newest_verified(connection, each.runtime)) for each in states]
    put_states(connection, changed)


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


def forget_newest_reports(connection: sa.Connection) -> list[str]:
    """Delete the reports about the newest deliveries, so that each is pending until its agent confirms it again.

    Return the runtimes that had one.
    """
    is_newest = sa.exists().where(_same_delivery(reports, runtime_states))
    runtimes = list(connection.scalars(sa.select(reports.c.runtime).where(is_newest)))
    connection.execute(reports.delete().where(is_newest))
    return runtimes


def _newest_reported(runtime: str | None) -> sa.Subquery:
    newest = sa.func.max(reports.c.sequence).label("sequence")
    statement = sa.select(reports.c.runtime, newest).group_by(reports.c.runtime)
    if runtime is not None:
        statement = statement.where(reports.c.runtime == runtime)
    return statement.subquery()


def _first_deliveries(revision: int) -> sa.Subquery:
    lowest = sa.func.min(deliveries.c.sequence).label("sequence")
    first = sa.select(deliveries.c.runtime, lowest).where(deliveries.c.revision == revision)
    return first.group_by(deliveries.c.runtime).subquery()


def _same_delivery(left: sa.FromClause, right: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(left.c.runtime == right.c.runtime, left.c.sequence == right.c.sequence)


def _delivery(row: sa.Row[tuple[object, ...]], contents: dict[str, Content]) -> Delivery:
    values = dict(row._mapping)  # noqa: SLF001 - public in SQLAlchemy
    profiles, version = values.pop("profiles") or {}, values.pop("runtime_version")
    own = {} if version is None else {str(DocumentRef("Runtime", row.runtime)): version}
    resources, windows = contents[row.digest].resources, values["windows"] or ()
    return Delivery(**values | {"resources": resources, "documents": {**profiles, **own}, "windows": windows})
