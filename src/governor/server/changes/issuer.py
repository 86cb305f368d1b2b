"""The loop that issues deliveries: it turns the drafts of accepted changes into deliveries, in batches.

Each batch is one transaction, which also records how far its drafts are issued: a crash loses no delivery and issues
none twice.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Final, NamedTuple

import sqlalchemy as sa

from governor.domain.bundles import Delivery
from governor.domain.documents import ResourceRef
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.reconciler import Done, Outcome, ReconcileMetrics, Reconciler
from governor.server.changes.deliveries import next_delivery, present_after, removals, state_after
from governor.server.metrics import Metrics
from governor.server.store.bundles import Content, Contents, Draft, advance_drafts, all_drafts
from governor.server.store.deliveries import insert_deliveries
from governor.server.store.runtime_states import RuntimeState, find_states, put_states
from governor.server.store.sqlite import Store

BATCH: Final = 500
"""Deliveries in one transaction, sent together: other writes and requests wait no longer than for one batch."""
_BACKOFF: Final = Backoff(initial_s=0.1, max_s=10.0)
_DRAFTS: Final = "drafts"
"""The only key of the loop."""


class Batch(NamedTuple):
    """The members of drafts whose deliveries are issued together, no runtime twice."""

    members: list[tuple[Draft, tuple[str, int]]]
    issued: dict[int, int]
    """By draft that is not complete yet: how many of its members have their delivery then."""
    complete: list[int]
    is_last: bool
    """Whether all drafts are complete then."""


class Issued(NamedTuple):
    """The deliveries of one batch, and whether nothing was left to issue after it."""

    deliveries: tuple[Delivery, ...]
    is_last: bool


def next_batch(drafts: Iterable[Draft], size: int) -> Batch:
    """Take the next members of some drafts, in their order; a runtime's next draft waits for the next batch."""
    members: list[tuple[Draft, tuple[str, int]]] = []
    issued, complete, seen = dict[int, int](), list[int](), set[str]()
    for draft in drafts:
        taken = list(_take(draft, seen, size - len(members)))
        members.extend((draft, member) for member in taken)
        if len(taken) < len(draft.pending):
            if taken:
                issued[draft.id] = draft.issued + len(taken)
            return Batch(members, issued, complete, is_last=False)
        complete.append(draft.id)
    return Batch(members, issued, complete, is_last=True)


def _take(draft: Draft, seen: set[str], size: int) -> Iterator[tuple[str, int]]:
    for member in draft.pending[:size]:
        if member[0] in seen:
            return
        seen.add(member[0])
        yield member


class Issuer:
    """Issues the deliveries of all drafts. ``announce`` gets the deliveries of each batch after its commit."""

    def __init__(
        self,
        store: Store,
        contents: Contents,
        clock: Clock,
        metrics: Metrics,
        reconcile_metrics: ReconcileMetrics,
        announce: Callable[[tuple[Delivery, ...]], None],
    ) -> None:
        self._store = store
        self._contents = contents
        self._metrics = metrics
        self._announce_all = announce
        self._reconciler = Reconciler[str](
            self._reconcile, name="issuer", metrics=reconcile_metrics, clock=clock, backoff=_BACKOFF
        )

    def wake(self) -> None:
        """Issue what is not issued yet."""
        self._reconciler.add(_DRAFTS)

    async def run(self) -> None:
        """Issue deliveries until cancelled, first those that an earlier process did not issue."""
        self.wake()
        await self._reconciler.run()

    async def _reconcile(self, _key: str) -> Outcome:
        while not (await self._store.write(self._issue, self._announce)).is_last:
            pass
        return Done()

    def _issue(self, connection: sa.Connection) -> Issued:
        """Issue one batch, within one transaction; return its deliveries."""
        batch = next_batch(all_drafts(connection), BATCH)
        if not batch.members and not batch.complete:
            return Issued((), batch.is_last)
        contents = self._contents.find(connection, {draft.digest for draft, _ in batch.members})
        states = find_states(connection, [name for _, (name, _) in batch.members])
        presence = _Presence(contents)
        new = [_next(draft, member, states, presence) for draft, member in batch.members]
        issued = insert_deliveries(connection, new)
        times = (time for _, time in new)
        put_states(connection, [presence.state_after(each, next(times), states) for each in issued], states)
        advance_drafts(connection, batch.issued, batch.complete)
        return Issued(issued, batch.is_last)

    def _announce(self, issued: Issued) -> None:
        if issued.deliveries:
            self._metrics.deliveries.inc(len(issued.deliveries))
            self._announce_all(issued.deliveries)


class _Presence:
    """Resources that are present in runtimes before and after a batch; computed once for those that share them."""

    def __init__(self, contents: dict[str, Content]) -> None:
        self.contents = contents
        self._known: dict[tuple[int, str], tuple[tuple[ResourceRef, ...], tuple[ResourceRef, ...]]] = {}

    def of(self, digest: str, state: RuntimeState | None) -> tuple[tuple[ResourceRef, ...], tuple[ResourceRef, ...]]:
        """Return the removals of a delivery of this digest, and what may be present after it."""
        present = state.present if state else ()
        # States that were read in one transaction share equal values.
        key = id(present), digest
        found = self._known.get(key)
        if found is None:
            content = self.contents[digest]
            found = self._known[key] = removals(content, present), present_after(content, present)
        return found

    def state_after(self, delivery: Delivery, time: datetime, states: dict[str, RuntimeState]) -> RuntimeState:
        """Return the state of a delivery's runtime after it was issued."""
        before = states.get(delivery.runtime)
        return state_after(delivery, time, before, self.of(delivery.digest, before)[1])


def _next(
    draft: Draft, member: tuple[str, int], states: dict[str, RuntimeState], presence: _Presence
) -> tuple[Delivery, datetime]:
    state = states.get(member[0])
    removed, _ = presence.of(draft.digest, state)
    return next_delivery(member, draft, presence.contents[draft.digest], state, removed), draft.time
