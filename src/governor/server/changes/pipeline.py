"""Changes: the only way in which desired state changes, whoever asks.

A change is decided and stored in one transaction: new versions of documents, one revision, the deliveries that follow
from it. It is taken whole or refused whole. How a request travels is the API's business.
"""

import asyncio
import secrets
from collections.abc import Mapping
from datetime import datetime

import msgspec
import sqlalchemy as sa

from governor.domain.bundles import Bundle, Delivery, refs
from governor.domain.changes import Change, ChangeState, Revision, RuntimeChange
from governor.domain.documents import DocumentRef
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.telemetry import logging
from governor.server.changes.compiler import (
    Documents,
    check_selectors,
    compile_runtimes,
    concerned,
    idle_profiles,
    read_documents,
)
from governor.server.changes.consent import Loss, needs_consent
from governor.server.changes.deliveries import History, again, is_due, next_delivery
from governor.server.changes.ownership import Ownership
from governor.server.changes.preview import document_change, runtime_change
from governor.server.changes.problems import Refusals
from governor.server.changes.submission import Submission, check
from governor.server.changes.versions import Stored, new_versions, restored_versions, revision_digest
from governor.server.metrics import Metrics
from governor.server.store.deliveries import (
    delivered_since_verified,
    find_delivery,
    find_heard,
    highest_attempt,
    insert_deliveries,
    newest_deliveries,
)
from governor.server.store.documents import (
    DocumentVersion,
    document_version,
    insert_change,
    insert_revision,
    newest_revision,
    newest_versions,
)
from governor.server.store.identities import delete_runtime_key, find_runtime_key
from governor.server.store.sealer import Sealer
from governor.server.store.sqlite import Store
from governor.server.watch.hub import PROGRESS, Hub
from governor.values.trees import Manifest
from governor.wire.rest import ChangeRequest, Rollback

_log = logging.get_logger(__name__)


class Decision(msgspec.Struct, frozen=True):
    """An accepted change with all that is stored with it; without versions nothing is stored."""

    change: Change
    digest: str = ""
    parent: int | None = None
    versions: tuple[DocumentVersion, ...] = ()
    deliveries: tuple[Delivery, ...] = ()

    @property
    def deleted_runtimes(self) -> list[str]:
        """The runtimes that end with this change."""
        return [version.name for version in self.versions if version.kind == "Runtime" and version.tree is None]


class Changes:
    """Takes changes."""

    def __init__(
        self, store: Store, hub: Hub, sealer: Sealer, ownership: Ownership, clock: Clock, metrics: Metrics
    ) -> None:
        self._store = store
        self._hub = hub
        self._sealer = sealer
        self._ownership = ownership
        self._clock = clock
        self._metrics = metrics

    async def submit(self, request: ChangeRequest, author: str) -> Change:
        """Take a change or refuse it with an error; a dry run gives the same answer and stores nothing."""
        with self._metrics.change_seconds.time():
            try:
                submission = await asyncio.to_thread(check, request)
                if request.dry_run:
                    return await self._store.read(
                        lambda connection: self._decide(connection, submission, author).change
                    )
                # What is committed must be announced, even when whoever asked has gone.
                return await asyncio.shield(self._take(submission, author))
            except GovernorError as error:
                self._metrics.changes.labels("failed" if error.kind is Kind.INTERNAL else "refused").inc()
                raise

    async def retry(self, runtime: str, author: str) -> Delivery:
        """Have a runtime try its newest delivery once more, under the next attempt; no document changes."""
        delivery = await self._store.write(lambda connection: _retry(connection, runtime, self._clock.now()))
        self._hub.wake(runtime)
        self._hub.wake(PROGRESS)
        self._metrics.deliveries.inc()
        _log.info("retry", runtime=runtime, sequence=delivery.sequence, attempt=delivery.attempt, author=author)
        return delivery

    async def _take(self, submission: Submission, author: str) -> Change:
        decision, ended_keys = await self._store.write(
            lambda connection: self._transact(connection, submission, author)
        )
        for delivery in decision.deliveries:
            self._hub.wake(delivery.runtime)
        for key_id in ended_keys:
            self._hub.end(key_id)
        self._hub.wake(PROGRESS)
        self._metrics.deliveries.inc(len(decision.deliveries))
        self._metrics.changes.labels("accepted" if decision.versions else "unchanged").inc()
        if decision.versions:
            counts = {"documents": len(decision.versions), "deliveries": len(decision.deliveries)}
            _log.info("change accepted", revision=decision.change.revision, author=author, **counts)
        return decision.change

    def _transact(self, connection: sa.Connection, submission: Submission, author: str) -> tuple[Decision, list[str]]:
        decision = self._decide(connection, submission, author)
        return decision, store_decision(connection, decision)

    def _decide(self, connection: sa.Connection, submission: Submission, author: str) -> Decision:
        decision = decide(connection, submission, self._sealer, author, self._clock.now())
        self._ownership.check((version.ref for version in decision.versions), author)
        return decision


def decide(connection: sa.Connection, submission: Submission, sealer: Sealer, author: str, time: datetime) -> Decision:
    """What a change does to what is stored; only reads."""
    stored = newest_versions(connection)
    parent = newest_revision(connection)
    dry_run = submission.request.dry_run
    versions, message = _versions(connection, submission, stored, sealer, parent or 0)
    before = {ref: version.tree for ref, version in stored.items() if version.tree is not None}
    after = _replaced(before, versions)
    deliveries, runtimes, warnings = _deliver(connection, submission, versions, before, after)
    change = Change(
        id="" if dry_run or not versions else f"c-{secrets.token_hex(8)}",
        state=ChangeState.ACCEPTED,
        author=author,
        message=message,
        time=time,
        revision=None if dry_run or not versions else (parent or 0) + 1,
        documents=tuple(document_change(version, before.get(version.ref)) for version in versions),
        runtimes=runtimes,
        warnings=warnings,
    )
    return Decision(change, revision_digest(stored, versions), parent, versions, deliveries)


def store_decision(connection: sa.Connection, decision: Decision) -> list[str]:
    """Store an accepted change; returns the keys of runtimes that ended with it."""
    change = decision.change
    if change.revision is None:
        return []
    documents = tuple(version.ref for version in decision.versions)
    revision = Revision(
        change.revision, decision.digest, decision.parent, change.author, change.message, change.time, documents
    )
    insert_revision(connection, revision, decision.versions)
    insert_change(connection, change)
    insert_deliveries(connection, decision.deliveries, change.time)
    ended = [find_runtime_key(connection, runtime) for runtime in decision.deleted_runtimes]
    for runtime in decision.deleted_runtimes:
        delete_runtime_key(connection, runtime)
    return [key.key_id for key in ended if key is not None]


def _versions(
    connection: sa.Connection, submission: Submission, stored: Stored, sealer: Sealer, newest: int
) -> tuple[tuple[DocumentVersion, ...], str]:
    """The versions that a request asks for, and the words for it."""
    request = submission.request
    if request.rollback is None:
        return new_versions(submission, stored, sealer, revision=newest + 1), request.message
    to = _rollback_target(request.rollback, newest)
    then = newest_versions(connection, at=to)
    versions = restored_versions(submission, stored, then, request.rollback.documents, revision=newest + 1)
    return versions, request.message or f"rollback to revision {to}"


def _rollback_target(rollback: Rollback, newest: int) -> int:
    to = newest - 1 if rollback.revision is None else rollback.revision
    if 0 < to <= newest:
        return to
    if rollback.revision is None:
        message = "there is no revision before the newest, so there is nothing to go back to"
        raise GovernorError(Kind.PRECONDITION, "nothing-to-roll-back", message)
    raise GovernorError(Kind.NOT_FOUND, "revision-unknown", f"there is no revision {to}; see `governor history`")


def _replaced(
    before: Mapping[DocumentRef, Manifest], versions: tuple[DocumentVersion, ...]
) -> dict[DocumentRef, Manifest]:
    trees = {**before, **{version.ref: version.tree for version in versions}}
    return {ref: tree for ref, tree in trees.items() if tree is not None}


def _deliver(
    connection: sa.Connection,
    submission: Submission,
    versions: tuple[DocumentVersion, ...],
    before_trees: Mapping[DocumentRef, Manifest],
    after_trees: Mapping[DocumentRef, Manifest],
) -> tuple[tuple[Delivery, ...], tuple[RuntimeChange, ...], tuple[str, ...]]:
    """The deliveries that follow from new versions, what they change for each runtime, and warnings."""
    if not versions:
        return (), (), ()
    touched = [version.ref for version in versions]
    before, after = read_documents(before_trees.values()), read_documents(after_trees.values())
    bundles = _compile(before, after, touched)
    newest = newest_deliveries(connection, bundles)
    _check_consent(submission, versions, bundles, newest)
    due = {
        name: bundle
        for name, bundle in bundles.items()
        if is_due(bundle, newest.get(name), is_new=name not in before.runtimes)
    }
    deliveries = tuple(
        next_delivery(name, bundle, _history(connection, name, bundle.digest, newest.get(name)), versions[0].revision)
        for name, bundle in due.items()
    )
    shown = tuple(
        runtime_change(delivery, newest.get(delivery.runtime), dry_run=submission.request.dry_run)
        for delivery in deliveries
    )
    return deliveries, shown, tuple(idle_profiles(after, touched))


def _compile(before: Documents, after: Documents, touched: list[DocumentRef]) -> dict[str, Bundle]:
    refusals = Refusals()
    bundles: dict[str, Bundle] = {}
    with refusals.collecting():
        check_selectors(after)
    with refusals.collecting():
        bundles = compile_runtimes(after, concerned(before, after, touched))
    refusals.refuse_if_any()
    return bundles


def _check_consent(
    submission: Submission,
    versions: tuple[DocumentVersion, ...],
    bundles: Mapping[str, Bundle],
    newest: Mapping[str, Delivery],
) -> None:
    if submission.request.allow_deletions:
        return
    deleted = [version.ref for version in versions if version.tree is None]
    losses = {
        name: Loss(frozenset(refs(delivery.resources)), frozenset(refs(bundles[name].resources)))
        for name, delivery in newest.items()
    }
    reasons = needs_consent(deleted, losses)
    if reasons:
        message = "the change removes much; if that is meant, allow it with --allow-deletions (allowDeletions)"
        raise GovernorError(Kind.PRECONDITION, "deletions-not-allowed", message, reasons)


def _history(connection: sa.Connection, runtime: str, digest: str, newest: Delivery | None) -> History:
    if newest is None:
        return History()
    attempt = highest_attempt(connection, runtime, digest)
    return History(newest, attempt, delivered_since_verified(connection, runtime))


def _retry(connection: sa.Connection, runtime: str, time: datetime) -> Delivery:
    version = document_version(connection, DocumentRef("Runtime", runtime))
    if version is None or version.tree is None:
        raise GovernorError(Kind.NOT_FOUND, "not-found", f"there is no runtime {runtime!r}")
    newest = find_delivery(connection, runtime)
    if newest is None:
        message = f"nothing was ever sent to runtime {runtime!r}, so there is nothing to retry; apply a profile for it"
        raise GovernorError(Kind.PRECONDITION, "nothing-to-retry", message)
    heard = find_heard(connection, runtime, newest.sequence)
    if heard is not None and heard.acknowledged:
        message = f"delivery {newest.sequence} of runtime {runtime!r} is verified, so there is nothing to retry"
        raise GovernorError(Kind.PRECONDITION, "nothing-to-retry", message)
    delivery = again(newest, _history(connection, runtime, newest.digest, newest))
    insert_deliveries(connection, (delivery,), time)
    return delivery
