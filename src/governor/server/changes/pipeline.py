"""The change pipeline: API, sources and rollbacks all change desired state through ``Changes``.

A change is decided and stored in one transaction: document versions, one revision and the resulting deliveries. It is
accepted or rejected as a whole. Decoding requests belongs to the API.
"""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Final

import msgspec
import sqlalchemy as sa

from governor.domain.bundles import Bundle, Delivery, DeliveryPosition
from governor.domain.changes import Change, ChangeState, Revision
from governor.domain.documents import DocumentRef
from governor.errors import GovernorError, Kind, invalid
from governor.process.clock import Clock
from governor.process.flowcontrol.worker import Worker
from governor.process.telemetry import logging
from governor.server.changes.compiler import (
    Documents,
    compile_affected,
    compile_runtimes,
    ended_holds,
    read_documents,
    unused_profiles,
)
from governor.server.changes.deliveries import History, is_due, next_delivery, reissued_delivery, retry_delivery
from governor.server.changes.impact import check_deletions, document_change, runtime_change
from governor.server.changes.ownership import Ownership
from governor.server.changes.rolling import check_rolling
from governor.server.changes.submission import Submission, check
from governor.server.changes.versions import Stored, existing, new_versions, restored_versions, revision_digest
from governor.server.metrics import Metrics
from governor.server.store.deliveries import (
    delivered_since_verified,
    find_delivery,
    find_report,
    highest_attempt,
    insert_deliveries,
    issued_incarnations,
    newest_deliveries,
    was_issued,
)
from governor.server.store.documents import (
    DocumentVersion,
    document_version,
    insert_change,
    insert_revision,
    newest_revision,
    newest_versions,
)
from governor.server.store.identities import delete_runtime_key, find_runtime_key, revoke_join_tokens
from governor.server.store.incarnation import current_incarnation, renew_incarnation
from governor.server.store.inventories import delete_inventory, find_inventory
from governor.server.store.sealer import Sealer
from governor.server.store.sqlite import Store
from governor.server.watch.hub import PROGRESS, Hub
from governor.wire.rest import ChangeRequest, Rollback

REISSUED: Final = "reissued"
"""Code of the error for a re-issue too soon after the last one."""

_MAX_UNKNOWN_SEQUENCE: Final = 10**15
_REISSUE_INTERVAL_S: Final = 10.0

_log = logging.get_logger(__name__)


class Decision(msgspec.Struct, frozen=True):
    """An accepted change with the rows that it adds; no rows if no document changes."""

    change: Change
    versions: tuple[DocumentVersion, ...] = ()
    deliveries: tuple[Delivery, ...] = ()
    deleted_keys: tuple[str, ...] = ()


class Changes:
    """Runs changes through the pipeline, one transaction each."""

    def __init__(
        self,
        store: Store,
        hub: Hub,
        sealer: Sealer,
        ownership: Ownership,
        worker: Worker,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._hub = hub
        self._sealer = sealer
        self._ownership = ownership
        self._worker = worker
        self._clock = clock
        self._metrics = metrics
        self._reissued: dict[str, float] = {}

    async def submit(self, request: ChangeRequest, author: str) -> Change:
        """Accept a change, or raise why it is rejected; a dry run returns the same result and stores nothing."""
        with self._measured():
            submission = await self._worker.run(partial(check, request))
            if request.dry_run:
                decision = await self._store.read(lambda connection: self._process(connection, submission, author))
                return decision.change
            decision = await self._store.write(
                lambda connection: self._process(connection, submission, author), self._announce
            )
            return decision.change

    async def retry(self, runtime: str, author: str) -> Delivery:
        """Deliver a runtime's newest delivery again under the next attempt; no document changes."""
        presence = self._hub.presence(runtime)
        held_sequence = presence.held_sequence if presence.watching else None
        return await self._store.write(
            lambda connection: _retry(connection, runtime, held_sequence, self._clock.now()),
            lambda delivery: self._announce_retry(delivery, author),
        )

    async def supersede_unknown(self, runtime: str, held: DeliveryPosition) -> None:
        """Re-issue the current state above a delivery that an agent holds and this store never issued.

        The store was restored from a backup, or its files were replaced by a copy or a snapshot.
        """
        if await self._store.read(lambda connection: _is_superseded(connection, runtime, held)):
            return
        self._check_reissue(runtime, held)
        await self._store.write(
            lambda connection: _reissue_lost(connection, runtime, held, self._clock.now()),
            lambda reissued: self._announce_reissue(reissued, held),
        )

    async def reissue_newest(self, runtime: str, sequence: int) -> None:
        """Issue the newest delivery again, if it has this sequence, so that an agent of version 0.1 reports on it.

        Such an agent cannot show which delivery it holds, and does not report on one that it already has.
        """
        await self._store.write(
            lambda connection: _reissue_newest(connection, runtime, sequence, self._clock.now()),
            self._announce_confirmation,
        )

    def _process(self, connection: sa.Connection, submission: Submission, author: str) -> Decision:
        """Run all steps on a checked request, within one transaction; a dry run skips the last one."""
        request, time = submission.request, self._clock.now()
        stored, parent = newest_versions(connection), newest_revision(connection)
        versions, message = _requested_versions(connection, submission, stored, self._sealer, parent or 0)
        touched = [version.ref for version in versions]
        self._ownership.check(touched, author)
        if not versions:
            return Decision(Change("", ChangeState.ACCEPTED, author, message, time, None, (), ()))
        trees = existing(stored)
        before, after = read_documents(trees.values()), read_documents(existing(stored, versions).values())
        bundles = compile_affected(before, after, touched)
        newest = newest_deliveries(connection, bundles)
        if not request.allow_deletions:
            check_deletions(versions, newest, bundles)
        numbers = {ref: each.version for ref, each in stored.items()} | {each.ref: each.version for each in versions}
        deliveries = _due_deliveries(connection, bundles, newest, before, numbers, versions[0].revision)
        check_rolling(deliveries, newest, partial(find_inventory, connection))
        change = Change(
            id="" if request.dry_run else f"c-{secrets.token_hex(8)}",
            state=ChangeState.ACCEPTED,
            author=author,
            message=message,
            time=time,
            revision=None if request.dry_run else versions[0].revision,
            documents=tuple(document_change(each, trees.get(each.ref)) for each in versions),
            runtimes=tuple(
                runtime_change(each, newest.get(each.runtime), dry_run=request.dry_run) for each in deliveries
            ),
            warnings=(*unused_profiles(after, touched), *ended_holds(before, after, time)),
        )
        if request.dry_run:
            return Decision(change)
        _insert(connection, change, parent, revision_digest(stored, versions), versions, deliveries)
        return Decision(change, versions, deliveries, tuple(_delete_identities(connection, versions, time)))

    def _announce(self, decision: Decision) -> None:
        """Wake the affected watches, close those of deleted runtimes, and count the change."""
        for delivery in decision.deliveries:
            self._hub.wake(delivery.runtime)
        for key_id in decision.deleted_keys:
            self._hub.block(key_id)
        self._hub.wake(PROGRESS)
        self._metrics.deliveries.inc(len(decision.deliveries))
        self._metrics.changes.labels("accepted" if decision.versions else "unchanged").inc()
        if decision.versions:
            counts = {"documents": len(decision.versions), "deliveries": len(decision.deliveries)}
            _log.info("change accepted", revision=decision.change.revision, author=decision.change.author, **counts)

    def _announce_delivery(self, delivery: Delivery) -> None:
        self._hub.wake(delivery.runtime)
        self._hub.wake(PROGRESS)
        self._metrics.deliveries.inc()

    def _announce_retry(self, delivery: Delivery, author: str) -> None:
        self._announce_delivery(delivery)
        _log.info(
            "delivery retried",
            runtime=delivery.runtime,
            sequence=delivery.sequence,
            attempt=delivery.attempt,
            author=author,
        )

    def _check_reissue(self, runtime: str, held: DeliveryPosition) -> None:
        """Raise if an agent's claim would exhaust the sequences or, repeated, the disk."""
        if held.sequence >= _MAX_UNKNOWN_SEQUENCE:
            raise invalid("last-event-id", f"this server never issued a delivery {held.sequence}")
        now_s = self._clock.monotonic()
        if now_s < self._reissued.get(runtime, -_REISSUE_INTERVAL_S) + _REISSUE_INTERVAL_S:
            message = "the current state was issued again a moment ago; reconnect later"
            raise GovernorError(Kind.UNAVAILABLE, REISSUED, message)
        self._reissued[runtime] = now_s

    def _announce_reissue(self, reissued: tuple[Delivery, str] | None, held: DeliveryPosition) -> None:
        if reissued is None:
            return
        delivery, incarnation = reissued
        if incarnation:
            _log.warning(
                "the store was restored from an older state", incarnation=incarnation, runtime=delivery.runtime
            )
        self._announce_delivery(delivery)
        _log.warning(
            "agent holds a delivery that this store never issued; the current state was issued again",
            runtime=delivery.runtime,
            held=str(held),
            sequence=delivery.sequence,
        )

    def _announce_confirmation(self, delivery: Delivery | None) -> None:
        if delivery is None:
            return
        self._announce_delivery(delivery)
        _log.info(
            "newest delivery issued again: an agent of version 0.1 must confirm it after a start of the server",
            runtime=delivery.runtime,
            sequence=delivery.sequence,
        )

    @contextmanager
    def _measured(self) -> Iterator[None]:
        with self._metrics.change_seconds.time():
            try:
                yield
            except GovernorError as error:
                self._metrics.changes.labels("failed" if error.kind is Kind.INTERNAL else "refused").inc()
                raise


def _requested_versions(
    connection: sa.Connection, submission: Submission, stored: Stored, sealer: Sealer, newest: int
) -> tuple[tuple[DocumentVersion, ...], str]:
    """Return the new versions that a request asks for, and the message of its revision."""
    request = submission.request
    if request.rollback is None:
        return new_versions(submission, stored, sealer, revision=newest + 1), request.message
    target = _rollback_target(request.rollback, newest)
    then = newest_versions(connection, at=target)
    versions = restored_versions(submission, stored, then, request.rollback.documents, revision=newest + 1)
    return versions, request.message or f"rollback to revision {target}"


def _rollback_target(rollback: Rollback, newest: int) -> int:
    target = newest - 1 if rollback.revision is None else rollback.revision
    if 0 < target <= newest:
        return target
    if rollback.revision is None:
        message = "there is no revision before the newest, so there is nothing to roll back to"
        raise GovernorError(Kind.PRECONDITION, "nothing-to-roll-back", message)
    raise GovernorError(Kind.NOT_FOUND, "revision-unknown", f"there is no revision {target}; see `governor history`")


def _due_deliveries(
    connection: sa.Connection,
    bundles: Mapping[str, Bundle],
    newest: Mapping[str, Delivery],
    before: Documents,
    numbers: Mapping[DocumentRef, int],
    revision: int,
) -> tuple[Delivery, ...]:
    return tuple(
        next_delivery(
            name,
            bundle,
            _history(connection, name, bundle.digest, newest.get(name)),
            revision,
            _contained(name, bundle, numbers),
        )
        for name, bundle in bundles.items()
        if is_due(bundle, newest.get(name), is_new=name not in before.runtimes)
    )


def _contained(runtime: str, bundle: Bundle, numbers: Mapping[DocumentRef, int]) -> dict[str, int]:
    """Return the versions of the documents that a bundle was compiled from."""
    refs = [DocumentRef("Runtime", runtime), *(DocumentRef("Profile", name) for name in bundle.profiles)]
    return {str(ref): numbers[ref] for ref in refs}


def _history(connection: sa.Connection, runtime: str, digest: str, newest: Delivery | None) -> History:
    if newest is None:
        return History()
    attempt = highest_attempt(connection, runtime, digest)
    return History(newest, attempt, delivered_since_verified(connection, runtime))


def _insert(
    connection: sa.Connection,
    change: Change,
    parent: int | None,
    digest: str,
    versions: tuple[DocumentVersion, ...],
    deliveries: tuple[Delivery, ...],
) -> None:
    documents = tuple(version.ref for version in versions)
    number = versions[0].revision
    revision = Revision(number, digest, parent, change.author, change.message, change.time, documents)
    insert_revision(connection, revision, versions)
    insert_change(connection, change)
    insert_deliveries(connection, deliveries, change.time)


def _delete_identities(
    connection: sa.Connection, versions: tuple[DocumentVersion, ...], time: datetime
) -> Iterator[str]:
    """Delete the keys and inventories of deleted runtimes, revoke their unused join tokens, and yield the key ids."""
    for version in versions:
        if version.kind == "Runtime" and version.tree is None:
            key = find_runtime_key(connection, version.name)
            delete_runtime_key(connection, version.name)
            revoke_join_tokens(connection, version.name, time)
            delete_inventory(connection, version.name)
            if key is not None:
                yield key.key_id


def _reissue_lost(
    connection: sa.Connection, runtime: str, held: DeliveryPosition, time: datetime
) -> tuple[Delivery, str] | None:
    """Issue the current state above ``held``; renew the incarnation if the store is older than the one in ``held``.

    Return the delivery and the new incarnation, ``""`` if it was not renewed; None if nothing had to be issued.
    """
    newest = find_delivery(connection, runtime) or _first_delivery(connection, runtime)
    if newest is None or _is_superseded(connection, runtime, held):
        return None
    is_older = _is_older_than(connection, runtime, held.incarnation)
    incarnation = renew_incarnation(connection) if is_older else ""
    delivery = reissued_delivery(newest, held.sequence)
    insert_deliveries(connection, (delivery,), time)
    return delivery, incarnation


def _reissue_newest(connection: sa.Connection, runtime: str, sequence: int, time: datetime) -> Delivery | None:
    newest = find_delivery(connection, runtime)
    if newest is None or newest.sequence != sequence:
        return None
    delivery = reissued_delivery(newest, sequence)
    insert_deliveries(connection, (delivery,), time)
    return delivery


def _is_superseded(connection: sa.Connection, runtime: str, held: DeliveryPosition) -> bool:
    """Return whether this store issued what an agent holds, or has issued something above it since."""
    newest = find_delivery(connection, runtime)
    is_above = newest is not None and newest.sequence > held.sequence and newest.incarnation != held.incarnation
    return is_above or was_issued(connection, runtime, held)


def _is_older_than(connection: sa.Connection, runtime: str, incarnation: str) -> bool:
    """Return whether the store lost deliveries of this incarnation: it is the current one or unknown.

    Version 0.1 sends none, so its delivery may have been of the current one.
    """
    return incarnation not in issued_incarnations(connection, runtime) - {"", current_incarnation(connection)}


def _first_delivery(connection: sa.Connection, runtime: str) -> Delivery | None:
    """Return the delivery of a runtime that has none yet, even an empty one; None if the runtime does not exist."""
    stored = newest_versions(connection)
    documents = read_documents(existing(stored).values())
    if runtime not in documents.runtimes:
        return None
    bundle = compile_runtimes(documents, [runtime])[runtime]
    contained = _contained(runtime, bundle, {ref: each.version for ref, each in stored.items()})
    return next_delivery(runtime, bundle, History(), newest_revision(connection) or 0, contained)


def _retry(connection: sa.Connection, runtime: str, held_sequence: int | None, time: datetime) -> Delivery:
    version = document_version(connection, DocumentRef("Runtime", runtime))
    if version is None or version.tree is None:
        raise GovernorError(Kind.NOT_FOUND, "not-found", f"there is no runtime {runtime!r}")
    newest = find_delivery(connection, runtime)
    if newest is None:
        message = f"runtime {runtime!r} has no delivery yet, so there is nothing to retry; apply a profile for it"
        raise GovernorError(Kind.PRECONDITION, "nothing-to-retry", message)
    stored = find_report(connection, runtime, newest.sequence)
    if stored is not None and stored.acknowledged and held_sequence in (None, newest.sequence):
        message = f"delivery {newest.sequence} of runtime {runtime!r} is verified, so there is nothing to retry"
        raise GovernorError(Kind.PRECONDITION, "nothing-to-retry", message)
    delivery = retry_delivery(newest, _history(connection, runtime, newest.digest, newest))
    insert_deliveries(connection, (delivery,), time)
    return delivery
