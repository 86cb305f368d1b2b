"""Statements on deliveries and their reports."""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from governor.domain.bundles import Delivery, DeliveryPosition
from governor.domain.documents import DocumentRef, ResourceRef
from governor.domain.reports import Report
from governor.domain.windows import Hold, Window
from governor.server.store.bundles import Content, Contents
from governor.server.store.columns import SharedEncoder, encode_json, encode_time
from governor.server.store.incarnation import current_incarnation
from governor.server.store.schema import DELIVERY_COLUMNS, deliveries, reports, runtime_states
from governor.server.store.sqlite import batches, insert_rows


class DeliveryHead(msgspec.Struct, frozen=True):
    """A delivery without its content."""

    runtime: str
    sequence: int
    attempt: int
    revision: int
    digest: str
    time: datetime


class ReportedDelivery(msgspec.Struct, frozen=True):
    """A delivery as far as the reports about it are judged and summarised."""

    runtime: str
    sequence: int
    attempt: int
    revision: int
    digest: str
    removals: tuple[ResourceRef, ...]
    profiles: dict[str, int] | None
    runtime_version: int | None


class ReportKey(msgspec.Struct, frozen=True):
    """What a later report about the same delivery is compared with."""

    attempt: int
    session: int
    n: int
    fingerprint: str | None
    acknowledged: bool
    verified: datetime | None

    @property
    def order(self) -> tuple[int, int, int]:
        """Return what orders reports about one delivery."""
        return self.attempt, self.session, self.n


class StoredReport(msgspec.Struct, frozen=True):
    """The newest report about one delivery, with timestamps of the server's clock."""

    received: datetime
    acknowledged: bool
    verified: datetime | None
    report: Report
    fingerprint: str | None = None

    @property
    def key(self) -> ReportKey:
        """Return what a later report is compared with."""
        given = self.report
        return ReportKey(given.attempt, given.session, given.n, self.fingerprint, self.acknowledged, self.verified)


_HEAD = tuple(deliveries.c[name] for name in DeliveryHead.__struct_fields__)
_REPORTED = tuple(deliveries.c[name] for name in ReportedDelivery.__struct_fields__)
_KEY = tuple(reports.c[name] for name in ReportKey.__struct_fields__)
_REPORT = (reports.c.received, reports.c.acknowledged, reports.c.verified, reports.c.body, reports.c.fingerprint)


_ID_BYTES: Final = 8
_STORED = (*DELIVERY_COLUMNS, deliveries.c.profiles, deliveries.c.runtime_version)
_SHARED = ("removals", "apply", "windows", "hold")
_PLAIN = tuple(column.name for column in DELIVERY_COLUMNS if column.name not in _SHARED)


def insert_deliveries(connection: sa.Connection, new: Sequence[tuple[Delivery, datetime]]) -> tuple[Delivery, ...]:
    """Store new deliveries with their times; return them with a random id each and the incarnation of the store."""
    if not new:
        return ()
    incarnation, shared = current_incarnation(connection), SharedEncoder()
    # One call for all: each one lets another thread continue.
    issued, rows, ids = [], [], secrets.token_hex(_ID_BYTES * len(new))
    for number, (given, time) in enumerate(new):
        own_id = ids[2 * _ID_BYTES * number : 2 * _ID_BYTES * (number + 1)]
        delivery = msgspec.structs.replace(given, incarnation=incarnation, id=own_id)
        issued.append(delivery)
        rows.append(_row(delivery, time, shared))
    insert_rows(connection, deliveries, rows)
    return tuple(issued)


def _row(delivery: Delivery, time: datetime, shared: SharedEncoder) -> dict[str, Any]:
    own = f"Runtime/{delivery.runtime}"
    row = {name: getattr(delivery, name) for name in _PLAIN}
    for name in _SHARED:
        row[name] = shared.encode(getattr(delivery, name))
    row["profiles"] = encode_json({name: version for name, version in delivery.documents.items() if name != own})
    row["runtime_version"], row["time"] = delivery.documents.get(own), encode_time(time)
    return row


def was_issued(connection: sa.Connection, runtime: str, held: DeliveryPosition) -> bool:
    """Return whether this store issued the delivery that an agent holds; a format 1 agent knows no id."""
    if not held.sequence:
        return True
    statement = sa.select(deliveries.c.id).where(
        deliveries.c.runtime == runtime, deliveries.c.sequence == held.sequence
    )
    found = connection.scalar(statement)
    if found is not None:
        return held.id in ("", found)
    # What was pruned can no longer be compared, which does not matter: a newer delivery is sent.
    pruned = sa.select(runtime_states.c.pruned).where(runtime_states.c.runtime == runtime)
    return held.sequence <= (connection.scalar(pruned) or 0)


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


class Offer(msgspec.Struct, frozen=True):
    """What a new watch of an agent needs: ``is_known`` if this store issued what it holds, ``is_held`` if that is the
    newest delivery, and the windows and the hold of that."""

    is_known: bool
    is_held: bool
    windows: tuple[Window, ...] = ()
    hold: Hold | None = None


def find_offer(connection: sa.Connection, runtime: str, held: DeliveryPosition) -> Offer:
    """Return what a new watch of an agent that holds this delivery needs; one read if it is the newest one."""
    columns = runtime_states.c
    statement = sa.select(columns.sequence, columns.id, columns.windows, columns.hold)
    row = connection.execute(statement.where(columns.runtime == runtime)).one_or_none()
    if row is None:
        return Offer(is_known=not held.sequence, is_held=not held.sequence)
    is_held = row.sequence == held.sequence and held.id in ("", row.id)
    return Offer(is_held or was_issued(connection, runtime, held), is_held, row.windows or (), row.hold)


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


def newest_heads(connection: sa.Connection, runtimes: Iterable[str]) -> dict[str, DeliveryHead]:
    """Return the head of the newest delivery of each given runtime that has one."""
    found: dict[str, DeliveryHead] = {}
    for names in batches(runtimes):
        columns = (runtime_states.c[name] for name in DeliveryHead.__struct_fields__)
        statement = sa.select(*columns).where(runtime_states.c.runtime.in_(names))
        found |= {row.runtime: DeliveryHead(*row) for row in connection.execute(statement)}
    return found


def newest_reports(connection: sa.Connection, runtimes: Iterable[str]) -> dict[str, StoredReport]:
    """Return the report about the newest reported delivery of each given runtime that has one."""
    is_newest = sa.and_(reports.c.runtime == runtime_states.c.runtime, reports.c.sequence == runtime_states.c.reported)
    found: dict[str, StoredReport] = {}
    for names in batches(runtimes):
        statement = (
            sa.select(reports.c.runtime, *_REPORT)
            .select_from(reports.join(runtime_states, is_newest))
            .where(runtime_states.c.runtime.in_(names))
        )
        found |= {name: StoredReport(*values) for name, *values in connection.execute(statement)}
    return found


def targets_of(connection: sa.Connection, revision: int) -> frozenset[str]:
    """Return the runtimes that a revision delivered to."""
    statement = sa.select(deliveries.c.runtime).where(deliveries.c.revision == revision).distinct()
    return frozenset(connection.scalars(statement))


def first_heads(connection: sa.Connection, revision: int, runtimes: Iterable[str]) -> list[DeliveryHead]:
    """Return the first delivery of a revision to each of some runtimes; a retry adds later ones."""
    found: list[DeliveryHead] = []
    for names in batches(runtimes):
        first = _first_deliveries(revision, names)
        statement = sa.select(*_HEAD).select_from(deliveries.join(first, _same_delivery(deliveries, first)))
        found += [DeliveryHead(*row) for row in connection.execute(statement)]
    return found


def acknowledged_since(
    connection: sa.Connection, revision: int, runtimes: Iterable[str]
) -> dict[str, tuple[DeliveryHead, StoredReport]]:
    """Return, for each of some runtimes of a revision, its first acknowledged delivery since then."""
    found: dict[str, tuple[DeliveryHead, StoredReport]] = {}
    width = len(_HEAD)
    for names in batches(runtimes):
        first = _first_deliveries(revision, names)
        statement = (
            sa.select(*_HEAD, *_REPORT)
            .select_from(reports.join(deliveries, _same_delivery(reports, deliveries)))
            .join(first, sa.and_(reports.c.runtime == first.c.runtime, reports.c.sequence >= first.c.sequence))
            .where(reports.c.acknowledged)
            .order_by(reports.c.sequence.desc())
        )
        rows = connection.execute(statement)
        found |= {row.runtime: (DeliveryHead(*row[:width]), StoredReport(*row[width:])) for row in rows}
    return found


def digests_since(connection: sa.Connection, runtime: str, sequence: int) -> frozenset[str]:
    """Return the digests of a runtime's deliveries from a sequence on."""
    statement = sa.select(deliveries.c.digest).where(deliveries.c.runtime == runtime, deliveries.c.sequence >= sequence)
    return frozenset(connection.scalars(statement))


def find_reported(
    connection: sa.Connection, keys: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], tuple[ReportedDelivery, ReportKey | None]]:
    """Return deliveries by runtime and sequence, each with the key of the report about it, if there is one."""
    found: dict[tuple[str, int], tuple[ReportedDelivery, ReportKey | None]] = {}
    joined, width = deliveries.outerjoin(reports, _same_delivery(deliveries, reports)), len(_REPORTED)
    for sequence, names in _by_sequence(keys):
        statement = sa.select(*_REPORTED, *_KEY).select_from(joined)
        is_one = sa.and_(deliveries.c.runtime.in_(names), deliveries.c.sequence == sequence)
        for row in connection.execute(statement.where(is_one)):
            key = ReportKey(*row[width:]) if row.acknowledged is not None else None
            found[row.runtime, sequence] = ReportedDelivery(*row[:width]), key
    return found


def newest_acknowledged(connection: sa.Connection, runtime: str) -> tuple[ReportedDelivery, datetime | None] | None:
    """Return a runtime's newest delivery whose newest report acknowledges it, and when that was first so."""
    statement = (
        sa.select(*_REPORTED, reports.c.verified)
        .select_from(reports.join(deliveries, _same_delivery(reports, deliveries)))
        .where(reports.c.runtime == runtime, reports.c.acknowledged)
        .order_by(reports.c.sequence.desc())
        .limit(1)
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else (ReportedDelivery(*row[:-1]), row.verified)


def stored_reports(connection: sa.Connection, runtime: str) -> list[StoredReport]:
    """Return the newest report about each delivery of a runtime, in the order of the deliveries."""
    statement = sa.select(*_REPORT).where(reports.c.runtime == runtime).order_by(reports.c.sequence)
    return [StoredReport(*row) for row in connection.execute(statement)]


def find_report(connection: sa.Connection, runtime: str, sequence: int) -> StoredReport | None:
    """Return the newest report about one delivery."""
    statement = sa.select(*_REPORT).where(reports.c.runtime == runtime, reports.c.sequence == sequence)
    row = connection.execute(statement).one_or_none()
    return None if row is None else StoredReport(*row)


def put_reports(connection: sa.Connection, stored: Iterable[StoredReport], replaced: Iterable[tuple[str, int]]) -> None:
    """Store reports; ``replaced`` are those of the same deliveries that are stored already."""
    for sequence, names in _by_sequence(replaced):
        connection.execute(reports.delete().where(reports.c.runtime.in_(names), reports.c.sequence == sequence))
    rows = [
        {
            **msgspec.structs.asdict(each.key),
            "runtime": each.report.runtime,
            "sequence": each.report.sequence,
            "received": encode_time(each.received),
            "verified": encode_time(each.verified),
            "body": encode_json(each.report),
        }
        for each in stored
    ]
    insert_rows(connection, reports, rows)


def _by_sequence(keys: Iterable[tuple[str, int]]) -> Iterator[tuple[int, list[str]]]:
    """Yield the runtimes of each sequence, in parts that fit into one statement."""
    names: dict[int, list[str]] = {}
    for name, sequence in keys:
        names.setdefault(sequence, []).append(name)
    for sequence, of_sequence in names.items():
        for some in batches(of_sequence):
            yield sequence, some


def forget_newest_reports(connection: sa.Connection) -> list[str]:
    """Delete the reports about the newest deliveries, so that each is pending until its agent confirms it again.

    Return the runtimes that had one.
    """
    is_newest = sa.exists().where(_same_delivery(reports, runtime_states))
    runtimes = list(connection.scalars(sa.select(reports.c.runtime).where(is_newest)))
    connection.execute(reports.delete().where(is_newest))
    return runtimes


def _first_deliveries(revision: int, runtimes: Sequence[str]) -> sa.Subquery:
    lowest = sa.func.min(deliveries.c.sequence).label("sequence")
    is_one = sa.and_(deliveries.c.revision == revision, deliveries.c.runtime.in_(runtimes))
    first = sa.select(deliveries.c.runtime, lowest).where(is_one)
    return first.group_by(deliveries.c.runtime).subquery()


def _same_delivery(left: sa.FromClause, right: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(left.c.runtime == right.c.runtime, left.c.sequence == right.c.sequence)


def _delivery(row: sa.Row[tuple[object, ...]], contents: dict[str, Content]) -> Delivery:
    values = dict(row._mapping)  # noqa: SLF001 - public in SQLAlchemy
    profiles, version = values.pop("profiles") or {}, values.pop("runtime_version")
    own = {} if version is None else {str(DocumentRef("Runtime", row.runtime)): version}
    resources, windows = contents[row.digest].resources, values["windows"] or ()
    return Delivery(**values | {"resources": resources, "documents": {**profiles, **own}, "windows": windows})
