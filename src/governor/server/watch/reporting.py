"""Reports of agents: judged one by one, stored in batches, each of which is one transaction.

While a batch is being committed the next one collects, so that a fleet that reports at once costs few commits. The work
on a report does not depend on the history of its runtime.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final, TypeAlias

import msgspec
import sqlalchemy as sa

from governor.domain.conditions import reported
from governor.domain.documents import ResourceRef
from governor.domain.reports import Report, State, acknowledged, overall
from governor.errors import Detail, GovernorError, Kind, invalid
from governor.process.clock import Clock
from governor.server.metrics import Metrics
from governor.server.store.bundles import Contents
from governor.server.store.deliveries import (
    ReportedDelivery,
    StoredReport,
    digests_since,
    find_reported,
    newest_acknowledged,
    put_reports,
    stored_reports,
)
from governor.server.store.runtime_states import (
    ReportSummary,
    RuntimeState,
    find_states_and_summaries,
    put_reported,
    underived,
)
from governor.server.store.sqlite import Store
from governor.server.watch.hub import Hub

FOREIGN_REPORT: Final = "report-foreign"
"""Code of the error on a report about content that was not delivered under its sequence."""
_MAX_BATCH: Final = 500
_MAX_INTEGER: Final = 2**63 - 1

Outcome: TypeAlias = bool | GovernorError
"""Whether a report was stored, or why it was rejected."""


class Reports:
    """Accepts reports."""

    def __init__(
        self,
        store: Store,
        contents: Contents,
        hub: Hub,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._contents = contents
        self._hub = hub
        self._clock = clock
        self._metrics = metrics
        self._waiting: list[tuple[Report, asyncio.Future[bool]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def accept(self, report: Report) -> None:
        """Store a report unless the stored one about the same delivery is newer; raise if it is rejected."""
        if max(report.sequence, report.attempt, report.session, report.n) > _MAX_INTEGER:
            raise invalid("number-large", "a number does not fit into 64 bits")
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((report, stored))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await stored

    async def _write(self) -> None:
        """Store what waits, batch by batch, until nothing waits."""
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_MAX_BATCH], self._waiting[_MAX_BATCH:]
                await self._write_batch(batch)
        finally:
            self._writing = None

    async def _write_batch(self, batch: list[tuple[Report, asyncio.Future[bool]]]) -> None:
        reports = [report for report, _ in batch]
        try:
            outcomes = await self._store.write(
                lambda connection: store_reports(connection, self._contents, reports, self._clock.now()),
                lambda outcomes: self._announce(reports, outcomes),
            )
        except Exception as error:  # noqa: BLE001 - every caller gets it
            outcomes = [_unstored(error)] * len(batch)
        for (_, stored), outcome in zip(batch, outcomes, strict=True):
            if stored.done():
                continue
            if isinstance(outcome, GovernorError):
                stored.set_exception(outcome)
            else:
                stored.set_result(outcome)

    def _announce(self, reports: Sequence[Report], outcomes: Sequence[Outcome]) -> None:
        kept = []
        for report, outcome in zip(reports, outcomes, strict=True):
            if isinstance(outcome, GovernorError):
                continue
            self._metrics.reports.labels(str(outcome).lower()).inc()
            self._hub.note_held(report.runtime, report.session, report.sequence)
            if outcome:
                kept.append(report.runtime)
        if kept:
            self._hub.followers.changed(kept)


def _unstored(error: Exception) -> GovernorError:
    if isinstance(error, GovernorError):
        return error
    return GovernorError(Kind.INTERNAL, "internal", f"the report could not be stored: {type(error).__name__}")


def store_reports(
    connection: sa.Connection, contents: Contents, reports: Sequence[Report], now: datetime
) -> list[Outcome]:
    """Store those of some reports that are valid and new, in one transaction; return the outcome of each."""
    batch = _Batch(connection, contents, reports)
    outcomes = [batch.judge(report, now) for report in reports]
    batch.write()
    return outcomes


class _Batch:
    """Some reports with what is stored about their runtimes."""

    def __init__(self, connection: sa.Connection, contents: Contents, reports: Sequence[Report]) -> None:
        self._connection = connection
        keys = {(each.runtime, each.sequence) for each in reports}
        names = {name for name, _ in keys}
        found, states = find_reported(connection, keys), find_states_and_summaries(connection, names)
        self._deliveries = {key: delivery for key, (delivery, _) in found.items()}
        self._contents = contents.find(connection, {each.digest for each in self._deliveries.values()})
        self._all_contents = contents
        self._reports = {key: report for key, (_, report) in found.items() if report is not None}
        self._stored = frozenset(self._reports)
        self._states = {name: state for name, (state, _) in states.items()}
        self._summaries = {name: summary for name, (_, summary) in states.items()}
        self._new: dict[tuple[str, int], StoredReport] = {}
        self._changed: set[str] = set()
        self._revoked: set[str] = set()

    def judge(self, report: Report, now: datetime) -> Outcome:
        """Take over a report; return whether it is new, or why it is rejected."""
        key = report.runtime, report.sequence
        delivery = self._deliveries.get(key)
        if delivery is None:
            message = f"runtime {report.runtime!r} was never sent a delivery {report.sequence}"
            return GovernorError(Kind.NOT_FOUND, "delivery-unknown", message)
        error = check_matches(report, delivery, self._contents[delivery.digest].refs)
        if error is not None:
            return error
        old, new = self._reports.get(key), stored_report(report, now)
        # A repeated or late report changes nothing.
        if old is not None and (old.fingerprint == new.fingerprint or report.order <= (report.sequence, *old.order)):
            return False
        if old is not None and old.verified is not None:
            new = msgspec.structs.replace(new, verified=old.verified)
        self._reports[key], self._new[key] = new.key, new
        self._take(new, delivery)
        return True

    def write(self) -> None:
        """Store everything that the reports change."""
        put_reports(self._connection, self._new.values(), self._stored & self._new.keys())
        for name in self._revoked:
            self._summaries[name] = self._without(self._summaries[name])
        changed = ((self._states[name], self._summaries[name]) for name in self._changed if name in self._states)
        put_reported(self._connection, changed)

    def _take(self, stored: StoredReport, delivery: ReportedDelivery) -> None:
        name, report = delivery.runtime, stored.report
        self._changed.add(name)
        state, summary = self._states[name], self._summaries[name]
        if overall(report) is State.FAILED:
            state = state.with_attempt(report.digest, report.attempt)
        elif stored.acknowledged and report.sequence > state.verified:
            present = self._present(state, report.sequence)
            state = msgspec.structs.replace(state, verified=report.sequence, present=present)
        if report.sequence >= summary.reported:
            summary = with_report(summary, report)
        if stored.acknowledged and report.sequence >= summary.acknowledged:
            summary = with_acknowledgement(summary, delivery, stored.verified)
            self._revoked.discard(name)
        elif not stored.acknowledged and report.sequence == summary.acknowledged:
            self._revoked.add(name)
        self._states[name], self._summaries[name] = state, summary

    def _present(self, state: RuntimeState, sequence: int) -> tuple[ResourceRef, ...]:
        """Return the resources that may exist once a delivery is verified: its own and those of later deliveries."""
        if sequence == state.sequence:
            return self._contents[state.digest].ordered_refs
        return present_since(self._connection, self._all_contents, state.runtime, sequence)

    def _without(self, summary: ReportSummary) -> ReportSummary:
        """Return a summary whose acknowledged delivery no longer is; an older one may still be."""
        found = newest_acknowledged(self._connection, summary.runtime)
        return with_acknowledgement(summary, *found) if found else with_acknowledgement(summary, None, None)


def present_since(
    connection: sa.Connection, contents: Contents, runtime: str, sequence: int
) -> tuple[ResourceRef, ...]:
    """Return the resources of a runtime's deliveries from a sequence on."""
    found = contents.find(connection, digests_since(connection, runtime, sequence))
    return tuple(sorted(frozenset(ref for each in found.values() for ref in each.refs)))


def stored_report(report: Report, now: datetime) -> StoredReport:
    """Return a report as it is stored if nothing was reported about its delivery before."""
    is_acknowledged = acknowledged(report)
    return StoredReport(now, is_acknowledged, now if is_acknowledged else None, report, fingerprint(report))


def fingerprint(report: Report) -> str:
    """Return what is equal for reports that differ only in their session, as after a start of the server."""
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(report, session=0))).hexdigest()


def with_report(summary: ReportSummary, report: Report) -> ReportSummary:
    """Return a summary with the newest report."""
    condition = msgspec.structs.replace(reported(report), evidence=())
    return msgspec.structs.replace(
        summary,
        reported=report.sequence,
        report_attempt=report.attempt,
        report_n=report.n,
        condition=condition,
        restraint=report.restraint,
        reason=condition.reason,
        until=condition.until,
    )


def with_acknowledgement(
    summary: ReportSummary, delivery: ReportedDelivery | None, time: datetime | None
) -> ReportSummary:
    """Return a summary with the newest acknowledged delivery, or without one."""
    return msgspec.structs.replace(
        summary,
        acknowledged=delivery.sequence if delivery else 0,
        acknowledged_revision=delivery.revision if delivery else 0,
        acknowledged_profiles=delivery.profiles if delivery else None,
        acknowledged_version=delivery.runtime_version if delivery else None,
        acknowledged_time=time,
    )


def check_matches(report: Report, delivery: ReportedDelivery, refs: frozenset[ResourceRef]) -> GovernorError | None:
    """Return why a report is rejected: it is about other content, or acknowledges without covering everything."""
    if (report.attempt, report.digest) != (delivery.attempt, delivery.digest):
        message = (
            f"delivery {delivery.sequence} is attempt {delivery.attempt} at {delivery.digest}, "
            f"the report is for attempt {report.attempt} at {report.digest}"
        )
        return invalid(FOREIGN_REPORT, message)
    if not acknowledged(report):
        return None
    missing = refs.union(delivery.removals).difference(part.resource for part in report.resources)
    if not missing:
        return None
    details = [
        Detail(reason=f"{ref} is applied or removed by the delivery, but is not in the report")
        for ref in sorted(missing)
    ]
    return invalid("report-incomplete", "an acknowledgement must cover every resource of its delivery", details)


def derive_summaries(connection: sa.Connection, contents: Contents) -> int:
    """Derive missing summaries, and what depends on verification, from the stored reports; return how many."""
    names = underived(connection)
    derived = []
    for name, (state, _) in find_states_and_summaries(connection, names).items():
        summary, verified = ReportSummary(name), 0
        for stored in stored_reports(connection, name):
            summary = with_report(summary, stored.report)
            verified = stored.report.sequence if stored.verified is not None else verified
        found = newest_acknowledged(connection, name)
        summary = with_acknowledgement(summary, *found) if found else summary
        present = present_since(connection, contents, name, verified)
        derived.append((msgspec.structs.replace(state, verified=verified, present=present), summary))
    put_reported(connection, derived)
    return len(names)
