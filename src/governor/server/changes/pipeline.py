"""The change pipeline: API, sources and rollbacks all change desired state through ``Changes``.

A change is decided and stored in one transaction: document versions, one revision, and drafts of the deliveries that
it causes, which ``issuer`` issues. It is accepted or rejected as a whole. Decoding requests belongs to the API.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Final

import msgspec
import sqlalchemy as sa

from governor.domain.changes import Change, ChangeState, Revision
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.flowcontrol.worker import Worker
from governor.process.telemetry import logging
from governor.server.changes.catalogue import Catalogues
from governor.server.changes.ownership import Ownership
from governor.server.changes.preparation import Decision, Preparation
from governor.server.changes.submission import check
from governor.server.metrics import Metrics
from governor.server.store.bundles import Contents, insert_bundles, insert_drafts
from governor.server.store.documents import DocumentVersion, insert_change, insert_revision
from governor.server.store.identities import delete_runtime_key, find_runtime_key, revoke_join_tokens
from governor.server.store.runtime_states import delete_inventory
from governor.server.store.sealer import Sealer
from governor.server.store.sqlite import Store
from governor.server.watch.hub import Hub
from governor.wire.rest import ChangeRequest

_PREPARED_AT_ONCE: Final = 2
"""Changes that are prepared at the same time; each occupies one of the store's readers."""

_MAX_OUTCOMES: Final = 1000
"""Outcomes that are kept of changes that were returned as pending."""

_log = logging.get_logger(__name__)


class _Accepted(msgspec.Struct, frozen=True):
    """A stored decision, and the keys of the runtimes that it deleted."""

    decision: Decision
    deleted_keys: tuple[str, ...] = ()


class Changes:
    """Runs changes through the pipeline, one transaction each. ``on_drafts`` is called when there are new drafts."""

    def __init__(
        self,
        store: Store,
        hub: Hub,
        sealer: Sealer,
        ownership: Ownership,
        worker: Worker,
        clock: Clock,
        metrics: Metrics,
        *,
        catalogues: Catalogues,
        contents: Contents,
        on_drafts: Callable[[], None],
    ) -> None:
        self._store = store
        self._hub = hub
        self._sealer = sealer
        self._ownership = ownership
        self._worker = worker
        self._clock = clock
        self._metrics = metrics
        self._catalogues = catalogues
        self._contents = contents
        self._on_drafts = on_drafts
        self._preparing = asyncio.Semaphore(_PREPARED_AT_ONCE)
        self._pending: dict[str, tuple[Change, asyncio.Task[Change]]] = {}

    async def submit(self, request: ChangeRequest, author: str, *, answer_s: float | None = None) -> Change:
        """Accept a change, or raise why it is rejected; a dry run returns the same result and stores nothing.

        A change that takes longer than ``answer_s`` is returned as pending; ``find_pending`` returns its outcome.
        """
        if request.dry_run:
            return await self._decide_and_store(request, author, "")
        name = f"c-{secrets.token_hex(8)}"
        deciding = asyncio.create_task(self._decide_and_store(request, author, name))
        pending = Change(name, ChangeState.PENDING, author, request.message, self._clock.now(), None, (), ())
        self._pending[name] = pending, deciding
        deciding.add_done_callback(self._decided)
        # What is being decided goes on if the caller is cancelled.
        await asyncio.wait({deciding}, timeout=answer_s)
        if not deciding.done():
            return pending
        self._pending.pop(name, None)
        return deciding.result()

    def find_pending(self, name: str) -> Change | None:
        """Return a change that was returned as pending, or raise why it was rejected; None if it is not known."""
        found = self._pending.get(name)
        if found is None:
            return None
        pending, deciding = found
        return deciding.result() if deciding.done() else pending

    async def close(self) -> None:
        """Cancel the changes that are being decided; what is being committed is not affected."""
        deciding = [task for _, task in self._pending.values() if not task.done()]
        for task in deciding:
            task.cancel()
        if deciding:
            await asyncio.wait(deciding)

    def _decided(self, deciding: "asyncio.Task[Change]") -> None:
        """Forget a change that is stored now, and the oldest outcomes; the caller of this one may be gone."""
        if not deciding.cancelled() and deciding.exception() is None and deciding.result().revision is not None:
            self._pending.pop(deciding.result().id, None)
        done = [name for name, (_, task) in self._pending.items() if task.done()]
        for name in done[:-_MAX_OUTCOMES]:
            del self._pending[name]

    async def _decide_and_store(self, request: ChangeRequest, author: str, name: str) -> Change:
        with self._measured():
            submission = await self._worker.run(partial(check, request))
            preparation = Preparation(
                submission,
                author,
                name,
                sealer=self._sealer,
                ownership=self._ownership,
                contents=self._contents,
                clock=self._clock,
            )
            async with self._preparing:
                decision = await self._store.read(lambda connection: self._decide(connection, preparation))
            if not request.dry_run:
                accept = partial(self._accept, preparation=preparation)
                decision = (await self._store.write(accept, self._announce)).decision
            self._metrics.compilations.inc(preparation.compiler.compilations)
            return decision.change

    def _decide(self, connection: sa.Connection, preparation: Preparation) -> Decision:
        return preparation.decide(connection, self._catalogues.at(connection))

    def _accept(self, connection: sa.Connection, preparation: Preparation) -> _Accepted:
        """Decide a change and store it, within one transaction."""
        decision = self._decide(connection, preparation)
        if not decision.versions:
            return _Accepted(decision)
        _insert(connection, decision)
        self._catalogues.remember(decision.catalogue)
        return _Accepted(decision, tuple(_delete_identities(connection, decision.versions, decision.change.time)))

    def _announce(self, accepted: _Accepted) -> None:
        """Have the deliveries issued, close the watches of deleted runtimes, and count the change."""
        decision = accepted.decision
        self._metrics.changes.labels("accepted" if decision.versions else "unchanged").inc()
        if not decision.versions:
            return
        self._catalogues.committed = decision.catalogue
        self._contents.remember(decision.bundles)
        for key_id in accepted.deleted_keys:
            self._hub.block(key_id)
        if decision.drafts:
            self._on_drafts()
        counts = {
            "documents": len(decision.versions),
            "classes": len(decision.change.classes),
            "deliveries": sum(len(each.members) for each in decision.drafts),
        }
        _log.info("change accepted", revision=decision.change.revision, author=decision.change.author, **counts)

    @contextmanager
    def _measured(self) -> Iterator[None]:
        with self._metrics.change_seconds.time():
            try:
                yield
            except GovernorError as error:
                self._metrics.changes.labels("failed" if error.kind is Kind.INTERNAL else "refused").inc()
                raise


def _insert(connection: sa.Connection, decision: Decision) -> None:
    change, catalogue = decision.change, decision.catalogue
    documents = tuple(version.ref for version in decision.versions)
    parent = catalogue.revision - 1 or None
    revision = Revision(
        catalogue.revision, catalogue.digest, parent, change.author, change.message, change.time, documents
    )
    insert_revision(connection, revision, decision.versions)
    insert_change(connection, change)
    insert_bundles(connection, {digest: each.resources for digest, each in decision.bundles.items()})
    insert_drafts(connection, decision.drafts)


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
