"""Runtime status and revision progress, derived from the store and from the open watches.

The ``read_*`` functions collect the inputs in a transaction; the views are pure functions of them.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TypeAlias

import msgspec
import sqlalchemy as sa

from governor.domain.conditions import Condition, Progress, accepted, changeable, connected, summarise, verified
from governor.domain.documents import DocumentRef, Runtime, read_document
from governor.domain.reports import Check, Report
from governor.domain.windows import active
from governor.server.store.bundles import Draft, all_drafts, drafts_of
from governor.server.store.deliveries import (
    DeliveryHead,
    StoredReport,
    acknowledged_since,
    first_heads,
    newest_heads,
    newest_reports,
)
from governor.server.store.documents import document_version, newest_versions
from governor.server.store.identities import enrolled_runtimes, find_runtime_key, revocations
from governor.server.watch.hub import Presence
from governor.values.trees import Manifest
from governor.wire.rest import RevisionProgress, RuntimeProgress, RuntimeView

PresenceOf: TypeAlias = Callable[[str], Presence]


class RuntimeRecord(msgspec.Struct, frozen=True):
    """Stored state of one runtime: its document, newest delivery and newest report.

    ``pending`` is what an accepted change delivers next, as a head without a sequence.
    """

    tree: Manifest
    enrolled: bool
    newest: DeliveryHead | None
    report: StoredReport | None
    revoked: datetime | None = None
    pending: DeliveryHead | None = None


class ProgressRecord(msgspec.Struct, frozen=True):
    """Stored state of one runtime since one revision: its first and newest delivery, newest report and first
    acknowledged delivery. ``pending`` if the first delivery is not issued yet."""

    first: DeliveryHead
    enrolled: bool
    newest: DeliveryHead
    report: StoredReport | None
    acknowledged: tuple[DeliveryHead, StoredReport] | None
    revoked: datetime | None = None
    pending: DeliveryHead | None = None


def read_runtimes(connection: sa.Connection) -> list[RuntimeRecord]:
    """Return the records of all runtimes, ordered by name."""
    newest, reports, enrolled = newest_heads(connection), newest_reports(connection), enrolled_runtimes(connection)
    revoked, pending = revocations(connection), _pending(all_drafts(connection))
    return [
        RuntimeRecord(
            version.tree,
            version.name in enrolled,
            newest.get(version.name),
            reports.get(version.name),
            revoked.get(version.name),
            pending.get(version.name),
        )
        for version in newest_versions(connection, "Runtime").values()
        if version.tree is not None
    ]


def read_runtime(connection: sa.Connection, name: str) -> RuntimeRecord | None:
    """Return the record of one runtime, or None if it does not exist."""
    version = document_version(connection, DocumentRef("Runtime", name))
    if version is None or version.tree is None:
        return None
    is_enrolled = find_runtime_key(connection, name) is not None
    newest, reports = newest_heads(connection, name), newest_reports(connection, name)
    revoked, pending = revocations(connection, name).get(name), _pending(all_drafts(connection)).get(name)
    return RuntimeRecord(version.tree, is_enrolled, newest.get(name), reports.get(name), revoked, pending)


def _pending(drafts: Iterable[Draft]) -> dict[str, DeliveryHead]:
    """Return the newest delivery of each runtime that is accepted and not issued yet."""
    return {
        name: DeliveryHead(name, 0, 0, draft.revision, draft.digest, draft.time)
        for draft in drafts
        for name, _ in draft.pending
    }


def runtime_view(record: RuntimeRecord, presence_of: PresenceOf, now: datetime) -> RuntimeView:
    """Return a runtime as the API shows it."""
    runtime = read_document(record.tree)
    assert isinstance(runtime, Runtime)  # noqa: S101 - selected by this kind
    name, newest, report = runtime.metadata.name, record.newest, record.report.report if record.report else None
    held = changeable(runtime.spec.hold, report, now)
    conditions = (*_conditions(name, record, newest, record.report, presence_of), *([held] if held else ()))
    return RuntimeView(
        name=name,
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


def read_progress(connection: sa.Connection, revision: int) -> list[ProgressRecord]:
    """Return the records of all existing runtimes that a revision delivered to."""
    pending = _pending(drafts_of(connection, revision))
    first = pending | {head.runtime: head for head in first_heads(connection, revision)}
    if not first:
        return []
    existing = {ref.name for ref, version in newest_versions(connection, "Runtime").items() if version.tree is not None}
    newest, reports = newest_heads(connection), newest_reports(connection)
    enrolled, acknowledged = enrolled_runtimes(connection), acknowledged_since(connection, revision)
    revoked = revocations(connection)
    return [
        ProgressRecord(
            head,
            name in enrolled,
            head if name in pending else newest[name],
            reports.get(name),
            acknowledged.get(name),
            revoked.get(name),
            pending.get(name),
        )
        for name, head in first.items()
        if name in existing
    ]


def revision_progress(
    revision: int, records: list[ProgressRecord], presence_of: PresenceOf, now: datetime
) -> RevisionProgress:
    """Return how far a revision has been rolled out."""
    runtimes = tuple(_runtime_progress(each, presence_of, now) for each in records)
    return RevisionProgress(revision, all(each.done for each in runtimes), runtimes)


def _runtime_progress(record: ProgressRecord, presence_of: PresenceOf, now: datetime) -> RuntimeProgress:
    name = record.first.runtime
    head, report = record.acknowledged or (record.newest, record.report)
    until = report.verified if record.acknowledged and report and report.verified else now
    began = head if head.revision == record.first.revision else record.first
    return RuntimeProgress(
        runtime=name,
        sequence=head.sequence,
        summary=summarise(_conditions(name, record, head, report, presence_of)),
        done=record.acknowledged is not None,
        # Not negative if the clock was set back meanwhile.
        seconds=max(0.0, (until - began.time).total_seconds()),
    )


def _conditions(
    runtime: str,
    record: RuntimeRecord | ProgressRecord,
    head: DeliveryHead | None,
    report: StoredReport | None,
    presence_of: PresenceOf,
) -> tuple[Condition, ...]:
    presence = presence_of(runtime)
    held_sequence = presence.held_sequence if presence.watching and head == record.newest else None
    checked = presence.checked if report and _is_about(presence.check, report.report) else None
    progress = Progress(head.sequence, head.digest, head.time) if head else None
    condition = verified(progress, report.report if report else None, held_sequence, checked)
    if record.pending is not None:
        condition = accepted(record.pending.revision, record.pending.digest, record.pending.time)
    return (
        condition,
        connected(
            enrolled=record.enrolled,
            watching=presence.watching,
            since=presence.since,
            revoked=record.revoked,
            refusal=presence.refusal,
        ),
    )


def _is_about(check: Check | None, report: Report) -> bool:
    """Return whether a check is of this report, which may have been repeated in a later session."""
    return check is not None and (check.sequence, check.attempt, check.n) == (report.sequence, report.attempt, report.n)
