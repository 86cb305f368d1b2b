"""Deliveries that no change causes: retries, and the current state again for agents of a forgotten or older state."""

from typing import Final

import sqlalchemy as sa

from governor.domain.bundles import Delivery, DeliveryPosition
from governor.domain.documents import DocumentRef
from governor.errors import GovernorError, Kind, invalid
from governor.process.clock import Clock
from governor.process.telemetry import logging
from governor.server.changes.catalogue import PROFILE, RUNTIME, Catalogues
from governor.server.changes.compiler import Compiler, read_layer
from governor.server.changes.deliveries import (
    next_delivery,
    present_after,
    reissued_delivery,
    retry_delivery,
    state_after,
)
from governor.server.metrics import Metrics
from governor.server.store.bundles import Content, Contents, Draft, insert_bundles
from governor.server.store.deliveries import (
    find_delivery,
    find_report,
    insert_deliveries,
    issued_incarnations,
    was_issued,
)
from governor.server.store.documents import versions_of
from governor.server.store.incarnation import current_incarnation, renew_incarnation
from governor.server.store.runtime_states import find_state, put_states
from governor.server.store.sqlite import Store
from governor.server.watch.hub import Hub

REISSUED: Final = "reissued"
"""Code of the error for a re-issue too soon after the last one."""

_MAX_UNKNOWN_SEQUENCE: Final = 10**15
_REISSUE_INTERVAL_S: Final = 10.0

_log = logging.get_logger(__name__)


class Redelivery:
    """Issues the newest delivery of one runtime again."""

    def __init__(
        self, store: Store, hub: Hub, clock: Clock, metrics: Metrics, *, catalogues: Catalogues, contents: Contents
    ) -> None:
        self._store = store
        self._hub = hub
        self._clock = clock
        self._metrics = metrics
        self._catalogues = catalogues
        self._contents = contents
        self._reissued: dict[str, float] = {}

    async def retry(self, runtime: str, author: str) -> Delivery:
        """Deliver a runtime's newest delivery again under the next attempt; no document changes."""
        presence = self._hub.presence(runtime)
        held_sequence = presence.held_sequence if presence.watching else None
        return await self._store.write(
            lambda connection: self._retry(connection, runtime, held_sequence),
            lambda delivery: self._announce_retry(delivery, author),
        )

    async def supersede_unknown(self, runtime: str, held: DeliveryPosition) -> None:
        """Re-issue the current state above a delivery that an agent holds and this store never issued.

        The store was restored from a backup, or its files were replaced by a copy or a snapshot.
        """
        if await self._store.read(lambda connection: self._is_superseded(connection, runtime, held)):
            return
        self._check_reissue(runtime, held)
        await self._store.write(
            lambda connection: self._reissue_lost(connection, runtime, held),
            lambda reissued: self._announce_reissue(reissued, held),
        )

    async def reissue_newest(self, runtime: str, sequence: int) -> None:
        """Issue the newest delivery again, if it has this sequence, so that an agent of version 0.1 reports on it.

        Such an agent cannot show which delivery it holds, and does not report on one that it already has.
        """
        await self._store.write(
            lambda connection: self._reissue_newest(connection, runtime, sequence), self._announce_confirmation
        )

    def _retry(self, connection: sa.Connection, runtime: str, held_sequence: int | None) -> Delivery:
        if runtime not in self._catalogues.at(connection).runtimes:
            raise GovernorError(Kind.NOT_FOUND, "not-found", f"there is no runtime {runtime!r}")
        newest, state = find_delivery(connection, self._contents, runtime), find_state(connection, runtime)
        if newest is None or state is None:
            message = f"runtime {runtime!r} has no delivery yet, so there is nothing to retry; apply a profile for it"
            raise GovernorError(Kind.PRECONDITION, "nothing-to-retry", message)
        stored = find_report(connection, runtime, newest.sequence)
        if stored is not None and stored.acknowledged and held_sequence in (None, newest.sequence):
            message = f"delivery {newest.sequence} of runtime {runtime!r} is verified, so there is nothing to retry"
            raise GovernorError(Kind.PRECONDITION, "nothing-to-retry", message)
        return self._issue(connection, retry_delivery(newest, Content.of(newest.resources), state))

    def _reissue_lost(
        self, connection: sa.Connection, runtime: str, held: DeliveryPosition
    ) -> tuple[Delivery, str] | None:
        """Issue the current state above ``held``; renew the incarnation if the store is older than that of ``held``.

        Return the delivery and the new incarnation, ``""`` if it was not renewed; None if nothing had to be issued.
        """
        newest = find_delivery(connection, self._contents, runtime) or self._first_delivery(connection, runtime)
        if newest is None or self._is_superseded(connection, runtime, held):
            return None
        is_older = _is_older_than(connection, runtime, held.incarnation)
        incarnation = renew_incarnation(connection) if is_older else ""
        return self._issue(connection, reissued_delivery(newest, held.sequence)), incarnation

    def _reissue_newest(self, connection: sa.Connection, runtime: str, sequence: int) -> Delivery | None:
        newest = find_delivery(connection, self._contents, runtime)
        if newest is None or newest.sequence != sequence:
            return None
        return self._issue(connection, reissued_delivery(newest, sequence))

    def _issue(self, connection: sa.Connection, delivery: Delivery) -> Delivery:
        time, state = self._clock.now(), find_state(connection, delivery.runtime)
        (issued,) = insert_deliveries(connection, [(delivery, time)])
        present = present_after(Content.of(delivery.resources), state.present if state else ())
        known = () if state is None else (delivery.runtime,)
        put_states(connection, [state_after(issued, time, state, present)], known)
        return issued

    def _is_superseded(self, connection: sa.Connection, runtime: str, held: DeliveryPosition) -> bool:
        """Return whether this store issued what an agent holds, or has issued something above it since."""
        newest = find_delivery(connection, self._contents, runtime)
        is_above = newest is not None and newest.sequence > held.sequence and newest.incarnation != held.incarnation
        return is_above or was_issued(connection, runtime, held)

    def _first_delivery(self, connection: sa.Connection, runtime: str) -> Delivery | None:
        """Return the delivery of a runtime that has none yet, even an empty one; None if the runtime does not exist."""
        catalogue = self._catalogues.at(connection)
        found = catalogue.runtimes.get(runtime)
        if found is None:
            return None
        profiles = versions_of(connection, [DocumentRef(PROFILE, name) for name in catalogue.profiles_of(found)])
        layers = {ref.name: read_layer(each.tree) for ref, each in profiles.items() if each.tree is not None}
        bundle = Compiler().compile(catalogue, [runtime], lambda _: layers)[runtime]
        insert_bundles(connection, {bundle.digest: bundle.resources})
        draft = Draft(
            catalogue.revision,
            bundle.digest,
            bundle.apply,
            {str(ref): each.version for ref, each in profiles.items()},
            found.spec.windows,
            found.spec.hold,
            self._clock.now(),
            (),
        )
        member = runtime, catalogue.entries[DocumentRef(RUNTIME, runtime)].version
        return next_delivery(member, draft, Content.of(bundle.resources), None)

    def _check_reissue(self, runtime: str, held: DeliveryPosition) -> None:
        """Raise if an agent's claim would exhaust the sequences or, repeated, the disk."""
        if held.sequence >= _MAX_UNKNOWN_SEQUENCE:
            raise invalid("last-event-id", f"this server never issued a delivery {held.sequence}")
        now_s = self._clock.monotonic()
        if now_s < self._reissued.get(runtime, -_REISSUE_INTERVAL_S) + _REISSUE_INTERVAL_S:
            message = "the current state was issued again a moment ago; reconnect later"
            raise GovernorError(Kind.UNAVAILABLE, REISSUED, message)
        self._reissued[runtime] = now_s

    def _announce_delivery(self, delivery: Delivery) -> None:
        self._hub.announce(delivery.runtime)
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


def _is_older_than(connection: sa.Connection, runtime: str, incarnation: str) -> bool:
    """Return whether the store lost deliveries of this incarnation: it is the current one or unknown.

    Version 0.1 sends none, so its delivery may have been of the current one.
    """
    return incarnation not in issued_incarnations(connection, runtime) - {"", current_incarnation(connection)}
