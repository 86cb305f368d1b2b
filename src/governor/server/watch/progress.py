"""Progress of a revision: counts of all its runtimes, which the database computes, and details of those listed.

A runtime is done with a revision if its newest acknowledged delivery is not older than its first one of the revision,
and contains the versions of the documents that the revision created, or newer ones.
"""

import asyncio
import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Final

import msgspec
import sqlalchemy as sa

from governor.domain.conditions import PENDING, accepted, summarise
from governor.process.clock import Clock
from governor.server.changes.catalogue import Catalogues
from governor.server.store.bundles import Draft, drafts_of
from governor.server.store.deliveries import (
    DeliveryHead,
    StoredReport,
    acknowledged_since,
    first_heads,
    newest_heads,
    newest_reports,
    targets_of,
)
from governor.server.store.documents import revision_time, versions_in
from governor.server.store.identities import enrolled_runtimes, revocations
from governor.server.store.runtime_states import ProgressGroup, count_progress, first_of_progress
from governor.server.store.sqlite import Store
from governor.server.watch.followers import topic_of
from governor.server.watch.hub import Hub
from governor.server.watch.status import PresenceOf, connection_condition, delivery_condition, pending_heads
from governor.wire.rest import ProgressCount, RevisionProgress, RuntimeProgress

MAX_LISTED: Final = 100
_VERIFIED: Final = "Verified"


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


class RevisionRecord(msgspec.Struct, frozen=True):
    """Stored state of one revision: groups of runtimes, the number of those without a delivery yet, and some records.

    ``versions`` are those of the documents that the revision created, by ``Kind/name``.
    """

    groups: tuple[ProgressGroup, ...]
    pending: int
    listed: tuple[ProgressRecord, ...]
    versions: Mapping[str, int] = {}
    time: datetime | None = None


def read_targets(connection: sa.Connection, revision: int) -> frozenset[str]:
    """Return the names of all runtimes that a revision concerns."""
    return targets_of(connection, revision).union(_pending(drafts_of(connection, revision)))


def _pending(drafts: Iterable[Draft]) -> Iterator[str]:
    """Yield the runtimes of some drafts that have no delivery of them yet."""
    return (name for draft in drafts for name, _ in draft.pending)


def read_progress(
    connection: sa.Connection,
    revision: int,
    targets: Collection[str],
    existing: Collection[str],
    *,
    limit: int,
    only: str | None = None,
) -> RevisionRecord:
    """Return the record of a revision, or of ``only`` one of its runtimes; those that do not exist do not count."""
    drafts = drafts_of(connection, revision)
    pending = {name for name in _pending(drafts) if name in existing and only in (None, name)}
    deleted = [name for name in targets if name not in existing]
    issued = first_of_progress(connection, revision, limit + len(deleted), only)
    first = heapq.nsmallest(limit, pending)
    listed = [*first, *(name for name in issued if name in existing and name not in pending)][:limit]
    records = _read_records(connection, revision, listed, pending_heads(drafts, frozenset(first)))
    if only is not None:
        return RevisionRecord((), 0, records)
    versions, time = versions_in(connection, revision), revision_time(connection, revision)
    has_runtimes = any(name.startswith("Runtime/") for name in versions)
    groups = tuple(count_progress(connection, revision, deleted, has_runtimes=has_runtimes))
    return RevisionRecord(groups, len(pending), records, versions, time)


def _read_records(
    connection: sa.Connection, revision: int, names: Iterable[str], pending: Mapping[str, DeliveryHead]
) -> tuple[ProgressRecord, ...]:
    listed = list(names)
    first = {head.runtime: head for head in first_heads(connection, revision, listed)} | dict(pending)
    newest, reports = newest_heads(connection, listed), newest_reports(connection, listed)
    enrolled, acknowledged = enrolled_runtimes(connection, listed), acknowledged_since(connection, revision, listed)
    revoked = revocations(connection, listed)
    return tuple(
        ProgressRecord(
            first[name],
            name in enrolled,
            first[name] if name in pending else newest[name],
            reports.get(name),
            acknowledged.get(name),
            revoked.get(name),
            pending.get(name),
        )
        for name in listed
    )


def revision_progress(
    revision: int, record: RevisionRecord, presence_of: PresenceOf, now: datetime
) -> RevisionProgress:
    """Return how far a revision has been rolled out."""
    listed = tuple(_runtime_progress(each, presence_of, now) for each in record.listed)
    counts = _counts(record) or _counts_of(record.listed, listed)
    if sum(each.count for each in counts) == len(listed):
        listed = tuple(sorted(listed, key=lambda each: each.runtime))
    verified = [each.verified for each in record.groups if each.verified is not None]
    seconds = max((each - record.time).total_seconds() for each in verified) if verified and record.time else 0.0
    return RevisionProgress(revision, all(each.done for each in counts), listed, counts, max(0.0, seconds))


def _counts(record: RevisionRecord) -> tuple[ProgressCount, ...]:
    found: dict[tuple[str, bool, bool], ProgressCount] = {}
    if record.pending:
        found[PENDING, False, True] = ProgressCount(PENDING, done=False, count=record.pending)
    for group in record.groups:
        done = group.acknowledged and contains(group.profiles, record.versions)
        state = _VERIFIED if done else group.reason or PENDING
        key = state, done, group.enrolled
        known = found.get(key, ProgressCount(state, done, 0, group.enrolled, None))
        until = None if done else min(filter(None, (known.until, group.until)), default=None)
        found[key] = msgspec.structs.replace(known, count=known.count + group.count, until=until)
    return tuple(found[key] for key in sorted(found))


def _counts_of(records: Iterable[ProgressRecord], listed: Iterable[RuntimeProgress]) -> tuple[ProgressCount, ...]:
    """Count each listed runtime for itself."""
    return tuple(
        ProgressCount(each.summary.state, each.done, 1, record.enrolled, each.summary.until)
        for record, each in zip(records, listed, strict=True)
    )


def contains(profiles: Mapping[str, int] | None, versions: Mapping[str, int]) -> bool:
    """Return whether a delivery contains no older version of a document than a revision created.

    Versions of profiles that do not select the runtime are not in it, and those of version 0.1 are not known.
    """
    known = profiles or {}
    return all(known.get(name, version) >= version for name, version in versions.items())


def _runtime_progress(record: ProgressRecord, presence_of: PresenceOf, now: datetime) -> RuntimeProgress:
    name = record.first.runtime
    head, report = record.acknowledged or (record.newest, record.report)
    until = report.verified if record.acknowledged and report and report.verified else now
    began = head if head.revision == record.first.revision else record.first
    presence = presence_of(name)
    condition = delivery_condition(head, report.report if report else None, presence, is_newest=head == record.newest)
    if record.pending is not None:
        condition = accepted(record.pending.revision, record.pending.digest, record.pending.time)
    connection = connection_condition(presence, enrolled=record.enrolled, revoked=record.revoked)
    return RuntimeProgress(
        runtime=name,
        sequence=head.sequence,
        summary=summarise((condition, connection)),
        done=record.acknowledged is not None,
        # Not negative if the clock was set back meanwhile.
        seconds=max(0.0, (until - began.time).total_seconds()),
    )


class ProgressReader:
    """Reads the progress of revisions; all followers of a revision share what is read after a change."""

    def __init__(self, store: Store, hub: Hub, catalogues: Catalogues, clock: Clock) -> None:
        self._store = store
        self._hub = hub
        self._catalogues = catalogues
        self._clock = clock
        self._reading: dict[tuple[str, int], asyncio.Lock] = {}
        self._known: dict[tuple[str, int], tuple[int, RevisionProgress]] = {}

    async def targets(self, revision: int) -> frozenset[str]:
        """Return the names of all runtimes that a revision concerns."""
        return await self._store.read(lambda connection: read_targets(connection, revision))

    async def read(
        self, revision: int, targets: Collection[str], limit: int, only: str | None = None
    ) -> RevisionProgress:
        """Return the progress of a revision, or of ``only`` one of its runtimes."""
        topic = topic_of(revision, only)
        key, changes = (topic, limit), self._hub.followers.changes(topic)
        if changes is None:
            return await self._read(revision, targets, limit, only)
        async with self._reading.setdefault(key, asyncio.Lock()):
            known = self._known.get(key)
            if known is None or known[0] < changes:
                changes = self._hub.followers.changes(topic) or 0
                known = self._known[key] = changes, await self._read(revision, targets, limit, only)
            return known[1]

    @contextmanager
    def follow(self, revision: int, targets: Collection[str], limit: int, only: str | None = None) -> Iterator[None]:
        """Follow a revision, or ``only`` one of its runtimes, until the context ends."""
        topic = topic_of(revision, only)
        with self._hub.followers.follow(topic, targets if only is None else {only}):
            yield
        if self._hub.followers.changes(topic) is None:
            self._known.pop((topic, limit), None)
            self._reading.pop((topic, limit), None)

    async def _read(self, revision: int, targets: Collection[str], limit: int, only: str | None) -> RevisionProgress:
        existing = self._catalogues.committed.runtimes
        record = await self._store.read(
            lambda connection: read_progress(connection, revision, targets, existing, limit=limit, only=only)
        )
        return revision_progress(revision, record, self._hub.presence, self._clock.now())
