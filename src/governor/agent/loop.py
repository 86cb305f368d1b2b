"""The agent's loop: one key, the newest delivery; brought about, proven, reported. Works with and without a server.

Runs at the start, for each delivery, and when a sidecar was restarted by itself: a new process has proven nothing.
"""

import asyncio
from typing import Final

from governor.agent import findings
from governor.agent.findings import AGENT, Findings
from governor.agent.platforms.local.platform import LocalPlatform
from governor.agent.reporting import Outbox
from governor.agent.storage import Storage
from governor.agent.watching import Inbox
from governor.domain.bundles import Delivery
from governor.domain.reports import Evidence, State
from governor.errors import GovernorError
from governor.process import logging
from governor.process.clock import Clock
from governor.process.reconcile import Again, Done, Outcome, Stalled

KEY: Final = "runtime"
FIRST_DELIVERY_S: Final = 3.0
"""How long the sidecars of a new agent wait for their first resources before they start without any."""

_log = logging.get_logger(__name__)


class Loop:
    """What ``process.reconcile`` runs for the one key."""

    def __init__(self, inbox: Inbox, outbox: Outbox, platform: LocalPlatform, storage: Storage, clock: Clock) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._platform = platform
        self._storage = storage
        self._clock = clock
        self._began = clock.monotonic()

    async def reconcile(self, _key: str) -> Outcome:
        """Bring about the newest delivery."""
        delivery = self._inbox.newest
        if delivery is None:
            return self._without_delivery()
        received = Evidence(AGENT, self._inbox.received_at, f"delivery {delivery.sequence} received")
        refs = self._platform.refs(delivery)
        if self._outbox.state_of(delivery) is None:
            self._outbox.put(delivery, findings.everywhere(State.RECEIVED, refs, self._platform.workloads, received))
        try:
            found = await self._converge(delivery, received)
        except GovernorError as error:
            failure = Evidence(AGENT, self._clock.now(), str(error))
            failed = findings.everywhere(State.FAILED, refs, self._platform.workloads, received, failure)
            self._outbox.put(delivery, failed)
            raise
        return await self._settle(delivery, found)

    def _without_delivery(self) -> Outcome:
        left_s = self._began + FIRST_DELIVERY_S - self._clock.monotonic()
        if left_s > 0:
            return Again(left_s)
        self._platform.start()
        return Done()

    async def _converge(self, delivery: Delivery, received: Evidence) -> Findings:
        def applied(found: Findings) -> None:
            # A sidecar that fails again and again must not look better in between.
            if self._outbox.state_of(delivery) not in (State.FAILED, State.UNPROVEN):
                self._outbox.put(delivery, found)

        def superseded() -> bool:
            return self._inbox.newest is not delivery

        return await self._platform.converge(delivery, received, applied, superseded)

    async def _settle(self, delivery: Delivery, found: Findings) -> Outcome:
        if self._inbox.newest is not delivery:
            return Done()
        self._outbox.put(delivery, found)
        if not found.verified:
            worst = found.worst
            reason = worst.evidence[-1].text if worst.evidence else ""
            _log.warning("not verified", sequence=delivery.sequence, state=worst.state, reason=reason)
            return Stalled(reason)
        if self._inbox.signed is not None:
            await asyncio.to_thread(self._storage.save_verified, self._inbox.signed)
        _log.info("verified", sequence=delivery.sequence, digest=delivery.digest)
        return Done()
