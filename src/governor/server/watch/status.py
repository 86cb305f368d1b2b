"""Status of runtimes, derived from the store and from the open watches.

The ``read_*`` functions collect the inputs in a transaction; the views are pure functions of them.
"""

import itertools
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, TypeAlias

import msgspec
import sqlalchemy as sa

from governor.domain.conditions import (
    Condition,
    Progress,
    accepted,
    changeable,
    connected,
    is_in_state,
    summarise,
    verified,
    verified_by,
)
from governor.domain.documents import Runtime
from governor.domain.reports import Check, Report
from governor.domain.windows import active
from governor.server.changes.catalogue import Catalogue
from governor.server.store.bundles import Draft, all_drafts
from governor.server.store.deliveries import DeliveryHead, StoredReport, newest_heads, newest_reports
from governor.server.store.identities import enrolled_runtimes, revocations
from governor.server.store.runtime_states import ReportSummary, find_summaries
from governor.server.watch.hub import Presence
from governor.values.selectors import LabelSelector
from governor.wire.rest import RuntimeView

PresenceOf: TypeAlias = Callable[[str], Presence]


class RuntimeRecord(msgspec.Struct, frozen=True):
    """Stored state of one runtime: its document, newest delivery and newest report, or only a summary of the reports.

    ``pending`` is what an accepted change delivers next, as a head without a sequence.
    """

    runtime: Runtime
    enrolled: bool
    newest: DeliveryHead | None
    report: StoredReport | None = None
    summary: ReportSummary | None = None
    revoked: datetime | None = None
    pending: DeliveryHead | None = None


def read_runtimes(connection: sa.Connection, runtimes: Sequence[Runtime], *, full: bool) -> list[RuntimeRecord]:
    """Return the records of some runtimes, with their reports or only with the summaries."""
    names = [each.metadata.name for each in runtimes]
    newest, enrolled = newest_heads(connection, names), enrolled_runtimes(connection, names)
    reports = newest_reports(connection, names) if full else {}
    summaries = {} if full else find_summaries(connection, names)
    revoked, pending = revocations(connection, names), pending_heads(all_drafts(connection), frozenset(names))
    return [
        RuntimeRecord(
            runtime,
            name in enrolled,
            newest.get(name),
            reports.get(name),
            summaries.get(name),
            revoked.get(name),
            pending.get(name),
        )
        for name, runtime in zip(names, runtimes, strict=True)
    ]


class RuntimeQuery(NamedTuple):
    """Which runtimes are listed: those whose name contains a text, whose labels match, and that are in a state."""

    name: str = ""
    selector: LabelSelector = LabelSelector()
    state: str | None = None

    def selects(self, runtime: Runtime) -> bool:
        """Return whether a runtime is listed, regardless of its state."""
        return self.name in runtime.metadata.name and self.selector.matches(runtime.metadata.labels)


def read_page(
    connection: sa.Connection,
    catalogue: Catalogue,
    query: RuntimeQuery,
    presence_of: PresenceOf,
    now: datetime,
    *,
    after: str,
    limit: int,
    full: bool,
) -> list[RuntimeView]:
    """Return the views of the runtimes after a name, in the order of their names; one more than ``limit`` if any."""
    names = catalogue.names
    candidates = (catalogue.runtimes[name] for name in names[bisect_right(names, after) :])
    selected, found = filter(query.selects, candidates), list[RuntimeView]()
    while len(found) <= limit and (part := list(itertools.islice(selected, limit + 1))):
        views = (runtime_view(each, presence_of, now) for each in read_runtimes(connection, part, full=full))
        found += [
            each for each in views if query.state is None or is_in_state(query.state, each.summary, each.conditions)
        ]
    return found[: limit + 1]


def pending_heads(drafts: Iterable[Draft], runtimes: Container[str]) -> dict[str, DeliveryHead]:
    """Return the newest delivery that is accepted and not issued yet of each of some runtimes."""
    return {
        name: DeliveryHead(name, 0, 0, draft.revision, draft.digest, draft.time)
        for draft in drafts
        for name, _ in draft.pending
        if name in runtimes
    }


def runtime_view(record: RuntimeRecord, presence_of: PresenceOf, now: datetime) -> RuntimeView:
    """Return a runtime as the API shows it; without a report if the record has only a summary."""
    runtime, newest, report = record.runtime, record.newest, record.report.report if record.report else None
    conditions = runtime_conditions(record, presence_of(runtime.metadata.name), now)
    return RuntimeView(
        name=runtime.metadata.name,
        platform=runtime.spec.platform,
        labels=runtime.metadata.labels,
        sequence=newest.sequence if newest else 0,
        attempt=newest.attempt if newest else 0,
        revision=newest.revision if newest else 0,
        digest=newest.digest if newest else "",
        summary=summarise(conditions),
        conditions=conditions,
        report=report,
        windows=runtime.spec.windows,
        hold=active(runtime.spec.hold, now),
    )


def runtime_conditions(record: RuntimeRecord, presence: Presence, now: datetime) -> tuple[Condition, ...]:
    """Return the conditions of a runtime."""
    report = record.report.report if record.report else None
    restraint = report.restraint if report else record.summary.restraint if record.summary else None
    held = changeable(record.runtime.spec.hold, restraint, now)
    newest, pending = record.newest, record.pending
    if pending is not None:
        condition = accepted(pending.revision, pending.digest, pending.time)
    elif record.summary is not None:
        condition = _summarised(record.summary, newest, presence)
    else:
        condition = delivery_condition(newest, report, presence, is_newest=True)
    connection = connection_condition(presence, enrolled=record.enrolled, revoked=record.revoked)
    return (condition, connection, *([held] if held else ()))


def _summarised(summary: ReportSummary, newest: DeliveryHead | None, presence: Presence) -> Condition:
    is_current = newest is not None and summary.reported == newest.sequence
    check = Check(summary.reported, summary.report_attempt, 0, summary.report_n)
    checked = presence.checked if _is_same(presence.check, check) else None
    held_sequence = presence.held_sequence if presence.watching else None
    return verified_by(_progress(newest), summary.condition if is_current else None, held_sequence, checked)


def delivery_condition(
    head: DeliveryHead | None, report: Report | None, presence: Presence, *, is_newest: bool
) -> Condition:
    """Return the condition ``Verified`` of a delivery, from the report about it."""
    held_sequence = presence.held_sequence if presence.watching and is_newest else None
    checked = presence.checked if report and _is_same(presence.check, report.check) else None
    return verified(_progress(head), report, held_sequence, checked)


def connection_condition(presence: Presence, *, enrolled: bool, revoked: datetime | None) -> Condition:
    """Return the condition ``Connected`` of a runtime."""
    return connected(
        enrolled=enrolled,
        watching=presence.watching,
        since=presence.since,
        revoked=revoked,
        refusal=presence.refusal,
    )


def _progress(head: DeliveryHead | None) -> Progress | None:
    return Progress(head.sequence, head.digest, head.time) if head else None


def _is_same(check: Check | None, other: Check) -> bool:
    """Return whether two checks are of the same report, which may have been repeated in a later session."""
    return check is not None and (check.sequence, check.attempt, check.n) == (other.sequence, other.attempt, other.n)
