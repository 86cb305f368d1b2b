"""The agent's reconcile loop: one key, the newest delivery, which is applied, verified and reported.

Runs at start, for each delivery, when a sidecar exits or comes back, and at the end of a verification window. A change
that fails within its window is rolled back here; the ``ledger`` stores the result. Needs no server.
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
from governor.domain.reports import STALLED, Cause, Evidence, State
from governor.errors import GovernorError
from governor.process.clock import Clock
from governor.process.reconcile.reconciler import Done, Outcome, Requeue, Stalled
from governor.process.telemetry import logging
from governor.values.digest import digest

KEY: Final = "runtime"
FIRST_DELIVERY_S: Final = 3.0
"""How long the sidecars of a new agent wait for a first delivery before they start without resources."""

_log = logging.get_logger(__name__)


class Loop:
    """The reconcile function of the agent's only key, and its state."""

    def __init__(self, inbox: Inbox, outbox: Outbox, platform: LocalPlatform, ledger: Ledger, clock: Clock) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._platform = platform
        self._ledger = ledger
        self._clock = clock
        self._began = clock.monotonic()
        self._window: tuple[Delivery, float] | None = None

    async def reconcile(self, _key: str) -> Outcome:
        """Apply the newest delivery, or its fallback if it is quarantined."""
        if self._inbox.unstored is not None:
            # An unstored delivery is not applied: the sidecars keep their state.
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
        if self._is_superseded(delivery):
            return Done()
        on_trial = self._ledger.phase(delivery) is DeliveryPhase.ON_TRIAL
        return await self._conclude(delivery, found.attributed(Cause.CHANGE if on_trial else Cause.RUNTIME))

    def _report_failure(self, delivery: Delivery, error: GovernorError, *history: Evidence) -> None:
        """Report an error of the agent itself: it does not count against the delivery, which is retried."""
        failure = Evidence(AGENT, self._clock.now(), f"{error.kind}: {error}")
        refs = self._platform.refs(delivery)
        workloads = self._platform.workloads
        self._outbox.put(
            delivery, findings.uniform(State.FAILED, refs, workloads, *history, failure, cause=Cause.AGENT)
        )

    async def _converge(self, delivery: Delivery, received: Evidence) -> Findings:
        def applied(found: Findings) -> None:
            self._open_window(delivery)
            # Do not report a crash-looping sidecar as applied between two failures.
            if self._outbox.reported_state(delivery) not in STALLED:
                self._outbox.put(delivery, found)

        # No preflight for a settled delivery: a store that is down now must not block the repair.
        is_settled = self._ledger.phase(delivery) is DeliveryPhase.SETTLED
        target = _without_preflight(delivery) if is_settled else delivery
        return await self._platform.converge(target, received, applied, lambda: self._is_superseded(delivery))

    async def _conclude(self, delivery: Delivery, found: Findings) -> Outcome:
        on_trial = self._ledger.phase(delivery) is DeliveryPhase.ON_TRIAL
        if found.rejects_change and on_trial:
            _log.warning("change failed", sequence=delivery.sequence, reason=_reason(found))
            await self._ledger.record_failed(delivery, found)
            return await self._roll_back(delivery)
        self._outbox.put(delivery, found)
        if found.verified:
            return await self._verified(delivery)
        _log.warning("change not verified", sequence=delivery.sequence, state=found.worst.state, reason=_reason(found))
        if on_trial:
            await self._ledger.record_unproven(delivery, found)
        return Stalled(_reason(found))

    async def _verified(self, delivery: Delivery) -> Outcome:
        assert self._inbox.signed is not None  # noqa: S101 - set together with ``newest``
        await self._ledger.record_verified(delivery, self._inbox.signed)
        _log.info("change verified", sequence=delivery.sequence, digest=delivery.digest)
        if self._ledger.phase(delivery) is DeliveryPhase.SETTLED:
            return Done()
        self._open_window(delivery)
        return Requeue(max(0.0, self._left_s(delivery)))

    async def _roll_back(self, delivery: Delivery) -> Outcome:
        """Keep or restore the fallback of a failed delivery, and report both the failure and the rollback."""
        trial = self._ledger.trial(delivery)
        assert trial is not None  # noqa: S101 - called only for a quarantined delivery
        fallback = self._ledger.fallback(delivery)
        verb = "rolled back to" if trial.found.applied else "stayed at"
        bundle = f"bundle {fallback.digest} of delivery {fallback.sequence}" if fallback else "the empty bundle"
        where = f"{verb} {bundle}"

        def report(result: str) -> None:
            self._outbox.put(delivery, findings.rolled_back(trial.found, self._clock.now(), f"{where}; {result}"))

        report("not verified yet")
        received = Evidence(AGENT, self._clock.now(), where)
        superseded = lambda: self._is_superseded(delivery)  # noqa: E731
        try:
            found = await self._platform.converge(
                _without_preflight(fallback or _empty(delivery)), received, _ignore, superseded
            )
        except GovernorError as error:
            report(f"failed: {error}")
            raise
        if self._is_superseded(delivery):
            return Done()
        report("verified" if found.verified else f"{found.worst.state}: {_reason(found)}")
        return Stalled(f"delivery {delivery.sequence} is in quarantine")

    def _open_window(self, delivery: Delivery) -> None:
        """Start the verification window: at the write, or when a restarted agent finds the change written."""
        if self._window is None or self._window[0] is not delivery:
            self._window = delivery, self._clock.monotonic() + delivery.apply.verify_window_seconds

    def _left_s(self, delivery: Delivery) -> float:
        if self._window is None or self._window[0] is not delivery:
            return float(delivery.apply.verify_window_seconds)
        return self._window[1] - self._clock.monotonic()

    def _is_superseded(self, delivery: Delivery) -> bool:
        return self._inbox.newest is not delivery


def _reason(found: Findings) -> str:
    evidence = found.worst.all_evidence
    return evidence[-1].text if evidence else ""


def _empty(delivery: Delivery) -> Delivery:
    """Return the empty bundle: the fallback of a runtime that never verified a delivery."""
    return msgspec.structs.replace(delivery, sequence=0, digest=digest([]), resources=(), removals=())


def _without_preflight(delivery: Delivery) -> Delivery:
    """Return the delivery with preflight off: it was verified before and must be back soon."""
    return msgspec.structs.replace(delivery, apply=msgspec.structs.replace(delivery.apply, preflight=Preflight.OFF))


def _ignore(_found: Findings) -> None:
    """Ignore progress: a rollback is reported with the failed delivery."""
