"""The agent's loop: one key, the newest delivery; brought about, proven, reported. Works with and without a server.

Runs at the start, for each delivery, when a sidecar ended or was restarted by itself, and when the window of a change
is over. A change that fails in its window is taken back here, once; what it came to is the ledger's to remember.
"""

from typing import Final

import msgspec

from governor.agent.inbox import Inbox
from governor.agent.ledger import DeliveryPhase, Ledger
from governor.agent.outbox import Outbox
from governor.agent.platforms.local.platform import LocalPlatform
from governor.agent.verification import findings
from governor.agent.verification.findings import AGENT, Findings
from governor.domain.bundles import Delivery
from governor.domain.documents import Preflight
from governor.domain.reports import STALLED, Evidence, State
from governor.errors import GovernorError
from governor.process.clock import Clock
from governor.process.reconcile.reconciler import Done, Outcome, Requeue, Stalled
from governor.process.telemetry import logging
from governor.values.digest import digest

KEY: Final = "runtime"
FIRST_DELIVERY_S: Final = 3.0
"""How long the sidecars of a new agent wait for their first resources before they start without any."""

_log = logging.get_logger(__name__)


class Loop:
    """What ``process.reconcile`` runs for the one key."""

    def __init__(self, inbox: Inbox, outbox: Outbox, platform: LocalPlatform, ledger: Ledger, clock: Clock) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._platform = platform
        self._ledger = ledger
        self._clock = clock
        self._began = clock.monotonic()
        self._window: tuple[Delivery, float] | None = None

    async def reconcile(self, _key: str) -> Outcome:
        """Bring about the newest delivery, or what worked before it if it is known to fail."""
        if self._inbox.unstored is not None:
            # Nothing is done about it, so the sidecars stay as they are.
            self._report_failure(*self._inbox.unstored)
            return Done()
        delivery = self._inbox.newest
        if delivery is None:
            return self._without_delivery()
        if self._left_s(delivery) <= 0:
            await self._ledger.record_settled(delivery)
        if self._ledger.phase(delivery) is DeliveryPhase.QUARANTINED:
            return await self._roll_back(delivery)
        return await self._apply(delivery)

    def _without_delivery(self) -> Outcome:
        left_s = self._began + FIRST_DELIVERY_S - self._clock.monotonic()
        if left_s > 0:
            return Requeue(left_s)
        self._platform.start()
        return Done()

    async def _apply(self, delivery: Delivery) -> Outcome:
        received = Evidence(AGENT, self._inbox.received_at, f"delivery {delivery.sequence} received")
        refs = self._platform.refs(delivery)
        if self._outbox.reported_state(delivery) is None:
            self._outbox.put(delivery, findings.uniform(State.RECEIVED, refs, self._platform.workloads, received))
        try:
            found = await self._converge(delivery, received)
        except GovernorError as error:
            self._report_failure(delivery, error, received)
            raise
        return Done() if self._is_superseded(delivery) else await self._settle(delivery, found)

    def _report_failure(self, delivery: Delivery, error: GovernorError, *history: Evidence) -> None:
        """Something of the agent's own went wrong; it is not the delivery's fault and will be tried again."""
        failure = Evidence(AGENT, self._clock.now(), f"{error.kind}: {error}")
        refs = self._platform.refs(delivery)
        self._outbox.put(delivery, findings.uniform(State.FAILED, refs, self._platform.workloads, *history, failure))

    async def _converge(self, delivery: Delivery, received: Evidence) -> Findings:
        def applied(found: Findings) -> None:
            self._open_window(delivery)
            # A sidecar that fails again and again must not look better in between.
            if self._outbox.reported_state(delivery) not in STALLED:
                self._outbox.put(delivery, found)

        # What has worked before is repaired at once: a store that is down for a while must not keep it away for good.
        wanted = _without_preflight(delivery) if self._ledger.phase(delivery) is DeliveryPhase.SETTLED else delivery
        return await self._platform.converge(wanted, received, applied, lambda: self._is_superseded(delivery))

    async def _settle(self, delivery: Delivery, found: Findings) -> Outcome:
        on_trial = self._ledger.phase(delivery) is DeliveryPhase.ON_TRIAL
        if found.failed and on_trial:
            _log.warning("a change failed", sequence=delivery.sequence, reason=_reason(found))
            await self._ledger.record_failed(delivery, found)
            return await self._roll_back(delivery)
        self._outbox.put(delivery, found)
        if found.verified:
            return await self._passed(delivery)
        _log.warning("not verified", sequence=delivery.sequence, state=found.worst.state, reason=_reason(found))
        if on_trial:
            await self._ledger.record_unproven(delivery, found)
        return Stalled(_reason(found))

    async def _passed(self, delivery: Delivery) -> Outcome:
        assert self._inbox.signed is not None  # noqa: S101 - it came or was restored with its signature
        await self._ledger.record_verified(delivery, self._inbox.signed)
        _log.info("verified", sequence=delivery.sequence, digest=delivery.digest)
        if self._ledger.phase(delivery) is DeliveryPhase.SETTLED:
            return Done()
        self._open_window(delivery)
        return Requeue(self._left_s(delivery))

    async def _roll_back(self, delivery: Delivery) -> Outcome:
        """Keep or bring back what worked before a delivery that failed, and say both."""
        trial = self._ledger.trial(delivery)
        assert trial is not None  # noqa: S101 - only called for a delivery in quarantine
        back = self._ledger.fallback(delivery)
        verb = "returned to" if trial.found.applied else "stayed at"
        where = f"{verb} bundle {back.digest} of delivery {back.sequence}" if back else f"{verb} the empty bundle"

        def tell(how: str) -> None:
            self._outbox.put(delivery, findings.rolled_back(trial.found, self._clock.now(), f"{where}; {how}"))

        tell("not verified yet")
        received = Evidence(AGENT, self._clock.now(), where)
        superseded = lambda: self._is_superseded(delivery)  # noqa: E731
        try:
            found = await self._platform.converge(
                _without_preflight(back or _empty(delivery)), received, _ignore, superseded
            )
        except GovernorError as error:
            tell(f"failed: {error}")
            raise
        if self._is_superseded(delivery):
            return Done()
        tell("verified" if found.verified else f"{found.worst.state}: {_reason(found)}")
        return Stalled(f"delivery {delivery.sequence} is in quarantine")

    def _open_window(self, delivery: Delivery) -> None:
        """The window of a change begins when it is written, or when a restarted agent finds it written."""
        if self._window is None or self._window[0] is not delivery:
            self._window = delivery, self._clock.monotonic() + delivery.apply.verify_window_seconds

    def _left_s(self, delivery: Delivery) -> float:
        if self._window is None or self._window[0] is not delivery:
            return float(delivery.apply.verify_window_seconds)
        return self._window[1] - self._clock.monotonic()

    def _is_superseded(self, delivery: Delivery) -> bool:
        return self._inbox.newest is not delivery


def _reason(found: Findings) -> str:
    evidence = found.worst.evidence
    return evidence[-1].text if evidence else ""


def _empty(delivery: Delivery) -> Delivery:
    """What a runtime has that has never verified anything."""
    return msgspec.structs.replace(delivery, sequence=0, digest=digest([]), resources=(), removals=())


def _without_preflight(delivery: Delivery) -> Delivery:
    """A delivery that needs no preflight: it worked before, and every second without it hurts."""
    return msgspec.structs.replace(delivery, apply=msgspec.structs.replace(delivery.apply, preflight=Preflight.OFF))


def _ignore(_found: Findings) -> None:
    """A return is reported as a part of what failed."""
