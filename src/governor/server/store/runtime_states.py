"""Statements on the states of runtimes, one row each: the newest delivery, and what its reports have shown.

The progress of a revision is counted from these rows. What an agent found in its runtime, the inventory, is here too.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

import msgspec
import sqlalchemy as sa

from governor.domain.conditions import Condition
from governor.domain.documents import ApplyPolicy, ResourceRef
from governor.domain.inventories import Inventory
from governor.domain.windows import Hold, Restraint, Window
from governor.server.store.columns import Json, SharedEncoder, decode_time, encode_time
from governor.server.store.schema import deliveries, document_versions, inventories, runtime_keys, runtime_states
from governor.server.store.sqlite import batches, insert_rows, update_rows

_MAX_ATTEMPTS: Final = 50


class Target(NamedTuple):
    """What an agent must know of a delivery, issued or not: a difference in one of them is delivered."""

    digest: str
    apply: ApplyPolicy
    windows: tuple[Window, ...]
    hold: Hold | None


class RuntimeState(msgspec.Struct, frozen=True):
    """The newest delivery of a runtime, and what the next one depends on.

    ``present`` are the resources that may exist in the runtime: those of the last verified delivery and of every later
    one. ``attempts`` are the highest ones of the digests that were retried or that the agent has rejected. ``verified``
    is the newest sequence that was ever acknowledged, 0 if none.
    """

    runtime: str
    sequence: int
    id: str
    attempt: int
    revision: int
    digest: str
    apply: ApplyPolicy
    windows: tuple[Window, ...]
    hold: Hold | None
    time: datetime
    present: tuple[ResourceRef, ...] = ()
    attempts: dict[str, int] = {}
    verified: int = 0

    def attempt_at(self, digest: str) -> int:
        """Return the highest known attempt at a digest; 0 if there was none."""
        return max(self.attempts.get(digest, 0), self.attempt if digest == self.digest else 0)

    def with_attempt(self, digest: str, attempt: int) -> "RuntimeState":
        """Return the state with an attempt at a digest that was retried or rejected; the oldest ones are forgotten."""
        if self.attempts.get(digest, 0) >= attempt:
            return self
        others = {known: number for known, number in self.attempts.items() if known != digest}
        kept = dict(list(others.items())[-_MAX_ATTEMPTS:])
        return msgspec.structs.replace(self, attempts={**kept, digest: attempt})


class ReportSummary(msgspec.Struct, frozen=True):
    """What the reports on a runtime's deliveries have shown.

    ``reported`` is the newest sequence with a report; attempt, number, condition (without evidence) and restraint are
    of that report. ``acknowledged`` is the newest sequence whose newest report acknowledges it; revision, versions of
    documents and the time of the first acknowledgement are of that delivery.
    """

    runtime: str
    reported: int = 0
    report_attempt: int = 0
    report_n: int = 0
    condition: Condition | None = None
    restraint: Restraint | None = None
    reason: str = ""
    until: datetime | None = None
    acknowledged: int = 0
    acknowledged_revision: int = 0
    acknowledged_profiles: dict[str, int] | None = None
    acknowledged_version: int | None = None
    acknowledged_time: datetime | None = None


_RAW: Final = sa.table("runtime_states", *(sa.column(each.name) for each in runtime_states.columns)).c
"""Columns without types: their values are decoded here, which is faster."""
_STATE: Final = tuple(_RAW[name] for name in RuntimeState.__struct_fields__)
_SUMMARY: Final = tuple(_RAW[name] for name in ReportSummary.__struct_fields__)
_REPORTED_STATE: Final = ("verified", "present", "attempts")
"""Columns of a state that reports change."""
_SCAN: Final = 1000
"""For more runtimes than this the whole table is read."""
_SHARED: Final = ("apply", "windows", "hold", "present", "attempts")
_SUMMARY_JSON: Final = ("condition", "restraint", "acknowledged_profiles")
_JSON: Final = {name: cast("Json", runtime_states.c[name].type) for name in _SUMMARY_JSON}
_SUMMARY_TIMES: Final = ("until", "acknowledged_time")
_TERMS: Final = tuple(cast("Json", runtime_states.c[name].type) for name in ("apply", "windows", "hold"))
_PRESENT: Final = tuple(cast("Json", runtime_states.c[name].type) for name in ("present", "attempts"))
_WINDOWS: Final = tuple[Window, ...]


def find_states(connection: sa.Connection, runtimes: Iterable[str]) -> dict[str, RuntimeState]:
    """Return the states of the given runtimes that have one."""
    found: dict[str, RuntimeState] = {}
    for names in batches(runtimes):
        statement = sa.select(*_STATE).where(_RAW.runtime.in_(names))
        found |= {row[0]: _state(row) for row in connection.execute(statement)}
    return found


def find_states_and_summaries(
    connection: sa.Connection, runtimes: Iterable[str]
) -> dict[str, tuple[RuntimeState, ReportSummary]]:
    """Return the states of the given runtimes that have one, and the summaries of their reports."""
    found: dict[str, tuple[RuntimeState, ReportSummary]] = {}
    width = len(_STATE)
    for names in batches(runtimes):
        statement = sa.select(*_STATE, *_SUMMARY[1:]).where(_RAW.runtime.in_(names))
        for row in connection.execute(statement):
            found[row[0]] = _state(row[:width]), _summary((row[0], *row[width:]))
    return found


def find_targets(connection: sa.Connection, runtimes: Collection[str]) -> dict[str, Target]:
    """Return what the newest delivery of each given runtime tells its agent."""
    statement = sa.select(_RAW.runtime, _RAW.digest, _RAW.apply, _RAW.windows, _RAW.hold)
    parts = [statement]
    if len(runtimes) <= _SCAN:
        parts = [statement.where(_RAW.runtime.in_(names)) for names in batches(runtimes)]
    known: dict[tuple[object, ...], Target] = {}
    found: dict[str, Target] = {}
    for part in parts:
        for runtime, *values in connection.execute(part):
            key = tuple(values)
            if key not in known:
                known[key] = Target(values[0], *_decoded(_TERMS, values[1:]))
            found[runtime] = known[key]
    return found


def find_state(connection: sa.Connection, runtime: str) -> RuntimeState | None:
    """Return the state of a runtime, or None if it has no delivery."""
    return find_states(connection, [runtime]).get(runtime)


def put_states(connection: sa.Connection, states: Sequence[RuntimeState], known: Container[str]) -> None:
    """Store states; those of ``known`` runtimes replace the previous ones and keep the summary of the reports."""
    shared = SharedEncoder()
    rows = [msgspec.structs.asdict(each) for each in states]
    for row in rows:
        for name in _SHARED:
            row[name] = shared.encode(row[name])
        row["time"] = encode_time(row["time"])
    new = [row | {"reported": 0} for row in rows if row["runtime"] not in known]
    insert_rows(connection, runtime_states, new)
    update_rows(connection, runtime_states, "runtime", [row for row in rows if row["runtime"] in known])


def put_reported(connection: sa.Connection, reported: Iterable[tuple[RuntimeState, ReportSummary]]) -> None:
    """Store what reports have changed of some states, and their summaries, in place of the previous ones."""
    shared, rows = SharedEncoder(), []
    for state, summary in reported:
        row = msgspec.structs.asdict(summary)
        row |= {name: getattr(state, name) for name in _REPORTED_STATE}
        for name in (*_SUMMARY_JSON, "present", "attempts"):
            row[name] = shared.encode(row[name])
        for name in _SUMMARY_TIMES:
            row[name] = encode_time(row[name])
        rows.append(row)
    update_rows(connection, runtime_states, "runtime", rows)


def find_summaries(connection: sa.Connection, runtimes: Iterable[str]) -> dict[str, ReportSummary]:
    """Return the summaries of the given runtimes that have a delivery."""
    found: dict[str, ReportSummary] = {}
    for names in batches(runtimes):
        statement = sa.select(*_SUMMARY).where(_RAW.runtime.in_(names))
        found |= {row[0]: _summary(row) for row in connection.execute(statement)}
    return found


class ProgressGroup(msgspec.Struct, frozen=True):
    """Runtimes of a revision that are alike. ``acknowledged`` if a delivery since the revision is.

    ``profiles`` are the versions in the newest acknowledged delivery, ``reason`` is that of the newest report, if it is
    about the newest delivery, and ``verified`` is when the last of them was first acknowledged.
    """

    acknowledged: bool
    profiles: dict[str, int] | None
    reason: str
    enrolled: bool
    until: datetime | None
    verified: datetime | None
    count: int


def count_progress(
    connection: sa.Connection, revision: int, without: Collection[str], *, has_runtimes: bool = True
) -> list[ProgressGroup]:
    """Count the runtimes that a revision delivered to, except some, by what decides their progress.

    ``has_runtimes`` if it created versions of Runtime documents.
    """
    since, is_acknowledged = _since(revision, has_runtimes=has_runtimes)
    state = runtime_states.c
    reason = sa.case((state.reported == state.sequence, state.reason), else_="")
    is_enrolled = runtime_keys.c.runtime.is_not(None)
    keys = (is_acknowledged, state.acknowledged_profiles, reason, is_enrolled)
    statement = (
        sa.select(*keys, sa.func.min(state.until), sa.func.max(state.acknowledged_time), sa.func.count())
        .select_from(since.outerjoin(runtime_keys, runtime_keys.c.runtime == state.runtime))
        .group_by(*keys)
    )
    if without:
        statement = statement.where(state.runtime.not_in(sorted(without)))
    return [ProgressGroup(bool(is_done), *values) for is_done, *values in connection.execute(statement)]


def first_of_progress(connection: sa.Connection, revision: int, limit: int, runtime: str | None = None) -> list[str]:
    """Return the names of runtimes that a revision delivered to, those that are not done first."""
    since, is_acknowledged = _since(revision, has_runtimes=False)
    statement = sa.select(runtime_states.c.runtime).select_from(since)
    if runtime is not None:
        statement = statement.where(runtime_states.c.runtime == runtime)
    return list(connection.scalars(statement.order_by(is_acknowledged, runtime_states.c.runtime).limit(limit)))


def _since(revision: int, *, has_runtimes: bool) -> tuple[sa.FromClause, sa.ColumnElement[bool]]:
    """Return the states of the runtimes of a revision, and whether a delivery since then is acknowledged.

    Such a delivery is not older than the first one of the revision, and contains its version of the Runtime document.
    """
    first = (
        sa.select(deliveries.c.runtime, sa.func.min(deliveries.c.sequence).label("sequence"))
        .where(deliveries.c.revision == revision)
        .group_by(deliveries.c.runtime)
        .subquery()
    )
    own, state = document_versions.c, runtime_states.c
    joined = first.join(runtime_states, state.runtime == first.c.runtime)
    is_after = sa.and_(state.acknowledged > 0, state.acknowledged >= first.c.sequence)
    if not has_runtimes:
        return joined, is_after
    is_own = sa.and_(own.kind == "Runtime", own.name == state.runtime, own.revision == revision)
    is_contained = sa.func.coalesce(state.acknowledged_version, 0) >= sa.func.coalesce(own.version, 0)
    is_known = sa.or_(is_contained, state.acknowledged_version.is_(None))
    return joined.outerjoin(document_versions, is_own), sa.and_(is_after, is_known)


def count_pending(connection: sa.Connection, before: datetime) -> int:
    """Return the number of runtimes whose newest delivery is from before a time and not acknowledged."""
    state = runtime_states.c
    statement = sa.select(sa.func.count()).where(state.acknowledged < state.sequence, state.time <= before)
    return connection.scalar(statement) or 0


def underived(connection: sa.Connection) -> list[str]:
    """Return the runtimes whose summary must be derived from their reports."""
    statement = sa.select(runtime_states.c.runtime).where(runtime_states.c.reported.is_(None))
    return list(connection.scalars(statement))


def underive(connection: sa.Connection, runtimes: Iterable[str]) -> None:
    """Let the summaries of some runtimes be derived from their reports when the server starts."""
    for names in batches(runtimes):
        is_named = runtime_states.c.runtime.in_(names)
        connection.execute(runtime_states.update().where(is_named).values(reported=None))


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


def _state(row: Sequence[Any]) -> RuntimeState:
    values: tuple[Any, ...] = tuple(row)
    terms, others = _decoded(_TERMS, values[6:9]), _decoded(_PRESENT, values[10:12])
    return RuntimeState(*[*values[:6], *terms, decode_time(values[9]), *others, values[12]])


def _summary(row: Sequence[Any]) -> ReportSummary:
    values = dict(zip(ReportSummary.__struct_fields__, row, strict=True))
    for name in _SUMMARY_JSON:
        values[name] = _JSON[name].decode(values[name])
    for name in _SUMMARY_TIMES:
        values[name] = None if values[name] is None else decode_time(values[name])
    return ReportSummary(**values)


def _decoded(types: tuple[Json, ...], values: Iterable[bytes | None]) -> list[Any]:
    """Decode the values of some columns; windows of deliveries before migration 0004 are null."""
    found = [each.decode(value) for each, value in zip(types, values, strict=True)]
    return [() if value is None and each.of == _WINDOWS else value for each, value in zip(types, found, strict=True)]
