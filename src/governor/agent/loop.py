"""The agent's reconcile loop: one key, the newest delivery, which is applied, verified and reported.

Runs at start, for each delivery, when a sidecar exits or comes back, when something that was written is changed, at the
end of a verification window, when a maintenance window begins or a hold ends, and by a resync. A change that fails in
its verification window is rolled back at once; the ``ledger`` stores the result. While a change waits, what is in
use is verified. Drift is reported here before it is repaired. Needs no server and knows no platform.
"""

import random
from typing import Final, NamedTuple

import msgspec

from governor.agent.inbox import Inbox
from governor.agent.ledger import DeliveryPhase, Ledger
from governor.agent.outbox import Outbox
from governor.agent.platform import Platform
from governor.agent.restraints import (
    Restraints,
    recheck_s,
    unrestrained,
    verification_only,
    without_preflight,
    without_restarts,
)
from governor.agent.verification import findings
from governor.agent.verification.findings import AGENT, DriftFindings, Findings
from governor.agent.verification.verdicts import MAX_EXTERNAL_EXITS
from governor.domain.bundles import Delivery
from governor.domain.documents import Drift, Retry
from governor.domain.reports import STALLED, Cause, Evidence, State
from governor.domain.windows import Restraint
from governor.errors import GovernorError
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.process.reconcile.reconciler import Done, Outcome, Requeue, Stalled, Waiting
from governor.process.telemetry import logging
from governor.values.digest import digest

KEY: Final = "runtime"
FIRST_DELIVERY_S: Final = 3.0
"""How long what waits for a first delivery waits before it starts without one."""
_RECHECK_S: Final = 10.0
"""How soon a runtime that has become unhealthy is checked again."""

_PREFLIGHT_BACKOFF: Final = Backoff(initial_s=1.0, max_s=10.0)
_REPAIR_BACKOFF: Final = Backoff(initial_s=1.0, max_s=300.0)
_CALM_S: Final = 900.0
"""Reset the count of repairs after this time without one."""

_log = logging.get_logger(__name__)


class _RepeatedPreflight(NamedTuple):
    """A delivery whose preflight is repeated until the monotonic time ``end``."""

    delivery: Delivery
    end: float
    retries: Retries


class Repairs:
    """The repairs of drift by one agent. The first is allowed at once, each further one only after a growing delay.

    Otherwise the agent and another program that writes the same resource would run in a busy loop.
    """

    def __init__(self) -> None:
        self.count = 0
        self._last_s = 0.0

    @property
    def delay_s(self) -> float:
        """How long after the last repair the next one is allowed."""
        return _REPAIR_BACKOFF.ceiling_s(self.count) if self.count else 0.0

    @property
    def note(self) -> str:
        """What a report says while the next repair waits."""
        return (
            f"; repaired {self.count} times, next repair within {self.delay_s:.0f} s. "
            "Find the other program that changes it, or set `apply.drift: warn`"
        )

    def wait_s(self, now_s: float) -> float:
        """Return how long the next repair must wait."""
        if now_s - self._last_s > _CALM_S:
            self.count = 0
        return max(0.0, self._last_s + self.delay_s - now_s) if self.count else 0.0

    def add(self, now_s: float) -> None:
        """Count a repair."""
        self.count += 1
        self._last_s = now_s


class Loop:
    """The reconcile function of the agent's only key, and its state."""

    def __init__(self, inbox: Inbox, outbox: Outbox, platform: Platform, ledger: Ledger, clock: Clock) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._platform = platform
        self._ledger = ledger
        self._clock = clock
        self._began = clock.monotonic()
        self._window: tuple[Delivery, float] | None = None
        self._repeated: _RepeatedPreflight | None = None
        self._rng = random.Random()  # noqa: S311 - jitter, not security
        self._repairs = Repairs()
        self._found: tuple[Delivery, Findings] | None = None
        """The last result of verification, without drift."""
        self._restraints = Restraints()
        """Those in force when the present run began."""
        self._returned: Delivery | None = None
        """The failed delivery that the runtime has returned from."""
        self._excuses: tuple[Delivery, int] | None = None
        """How often a failure of a delivery was not held against it, because of what others had changed meanwhile."""

    async def reconcile(self, _key: str) -> Outcome:
        """Apply the newest delivery, or its fallback if it is quarantined."""
        if self._inbox.unstored is not None:
            # An unstored delivery is not applied: the sidecars keep their state.
            self._report_failure(*self._inbox.unstored)
            return Done()
        delivery = self._inbox.newest
        if delivery is None:
            return self._without_delivery()
        self._restraints = Restraints(delivery.windows, delivery.hold, self._platform.hold())
        if self._left_s(delivery) <= 0:
            await self._settle(delivery)
        if self._ledger.phase(delivery) is DeliveryPhase.QUARANTINED:
            return await self._roll_back(delivery)
        return await self._apply(delivery)

    async def _settle(self, delivery: Delivery) -> None:
        """Record that the window is over; a full disk must not keep the runtime from being checked."""
        try:
            await self._ledger.record_settled(delivery)
        except GovernorError as error:
            _log.warning("cannot store that the window is over", sequence=delivery.sequence, error=str(error))

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
            self._put(delivery, findings.uniform(State.RECEIVED, refs, self._platform.workloads, received))
        try:
            drift = await self._platform.find_drift(delivery)
            wait = self._report_drift(delivery, drift, received) if drift else None
            if wait is not None:
                return wait
            found = await self._converge(delivery, received, is_repair=drift is not None)
            if self._hold_has_changed:
                return Requeue(0.0)
            if found.waits_for is not None and not found.failed:
                return await self._wait(delivery, found, found.waits_for, received)
            if drift is not None and self._restraints.on(delivery).restart_restraint(self._clock.now()) is not None:
                # The files are repaired; what only a restart proves waits.
                return Requeue(0.0)
            if await self._is_disturbed(delivery, found, was_repaired=drift is not None):
                return Requeue(0.0)
        except GovernorError as error:
            self._report_failure(delivery, error, received)
            raise
        if self._is_superseded(delivery):
            return Done()
        found = self._attributed(delivery, self._with_earlier_tries(delivery, found))
        self._found = delivery, found
        return await self._conclude(delivery, found)

    async def _is_disturbed(self, delivery: Delivery, found: Findings, *, was_repaired: bool) -> bool:
        """Return whether findings are not a result of the delivery, because another program has changed something.

        It was changed meanwhile, could not be repaired, or a sidecar may have failed for what it was.
        """
        on_trial = self._ledger.phase(delivery) is DeliveryPhase.ON_TRIAL
        if not (found.verified or (on_trial and found.failed) or was_repaired):
            return False
        is_blamed = on_trial and self._attributed(delivery, found).rejects_change
        drift = await self._platform.find_drift(delivery, after_failure=is_blamed)
        if drift is None or not drift.is_past:
            return drift is not None
        number = self._excuses[1] + 1 if self._excuses is not None and self._excuses[0] is delivery else 1
        if number > MAX_EXTERNAL_EXITS:
            return False
        self._excuses = delivery, number
        note = f"; does not count against the change: {_reason(found)}"
        _log.warning("failure during drift", sequence=delivery.sequence, drift=str(drift), reason=_reason(found))
        self._put(delivery, findings.drifted(found.attributed(Cause.RUNTIME), drift, self._clock.now(), note))
        return True

    def _with_earlier_tries(self, delivery: Delivery, found: Findings) -> Findings:
        """Return the findings as applied if an earlier try, which the runtime did not let finish, has written."""
        was_applied = self._found is not None and self._found[0] is delivery and self._found[1].applied
        return msgspec.structs.replace(found, applied=found.applied or was_applied)

    async def _wait(self, delivery: Delivery, found: Findings, restraint: Restraint, received: Evidence) -> Outcome:
        """Report what waits, beside the state of what is in use, and look again when the restraint ends."""
        current = None if found.applied else await self._verify_current(delivery, received)
        if self._is_interrupted(delivery):
            return Requeue(0.0)
        if found.applied:
            self._found = delivery, found
        if self._window is not None and self._window[0] is delivery:
            # It begins again when the rest is applied.
            self._window = None
        if self._put(delivery, findings.beside(found, current) if current is not None else found):
            _log.info("change waits", sequence=delivery.sequence, reason=restraint.message)
        return Waiting(restraint.message, recheck_s(restraint, self._clock.now()))

    async def _verify_current(self, delivery: Delivery, received: Evidence) -> Findings | None:
        """Verify what is in use while a newer delivery waits; None if that is not the last verified delivery."""
        current = None if self._ledger.was_verified(delivery) else self._ledger.fallback(delivery)
        if current is None:
            return None
        target = verification_only(current, self._clock.now())
        found = await self._platform.converge(target, received, lambda _: None, lambda: self._is_interrupted(delivery))
        if found.waits_for is not None and not found.applied:
            return None
        drift = await self._platform.find_drift(target)
        found = found.attributed(Cause.RUNTIME)
        return findings.drifted(found, drift, self._clock.now(), "; not repaired yet") if drift else found

    def _report_drift(self, delivery: Delivery, drift: DriftFindings, received: Evidence) -> Outcome | None:
        """Revoke what was verified and is no longer true; return an outcome if nothing is repaired now."""
        wait = self._begin_repair(delivery, drift)
        note = self._repairs.note if isinstance(wait, Requeue) else ""
        if isinstance(wait, Waiting):
            note = f"; not repaired: {wait.reason}"
        found = findings.drifted(self._last_found(delivery, received), drift, self._clock.now(), note)
        if self._put(delivery, found):
            _log.warning("drift found", sequence=delivery.sequence, drift=str(drift), policy=delivery.apply.drift)
        return wait

    def _last_found(self, delivery: Delivery, received: Evidence) -> Findings:
        if self._found is not None and self._found[0] is delivery:
            return self._found[1]
        return findings.uniform(State.RECEIVED, self._platform.refs(delivery), self._platform.workloads, received)

    def _begin_repair(self, delivery: Delivery, drift: DriftFindings) -> Outcome | None:
        """Count a repair and return None, or return the outcome that postpones it."""
        if delivery.apply.drift is not Drift.ENFORCE or not drift.is_repairable:
            self._platform.start()
            return Stalled(str(drift))
        restraint = self._restraints.on(delivery).write_restraint(self._clock.now())
        if restraint is not None:
            self._platform.start()
            return Waiting(restraint.message, recheck_s(restraint, self._clock.now()))
        now_s = self._clock.monotonic()
        wait_s = self._repairs.wait_s(now_s)
        if wait_s > 0:
            return Requeue(wait_s)
        self._repairs.add(now_s)
        return None

    def _report_failure(self, delivery: Delivery, error: GovernorError, *history: Evidence) -> None:
        """Report an error of the agent itself: it does not count against the delivery, which is retried."""
        failure = Evidence(AGENT, self._clock.now(), f"{error.kind}: {error}")
        refs = self._platform.refs(delivery)
        workloads = self._platform.workloads
        self._put(delivery, findings.uniform(State.FAILED, refs, workloads, *history, failure, cause=Cause.AGENT))

    async def _converge(self, delivery: Delivery, received: Evidence, *, is_repair: bool) -> Findings:
        # A crash-looping sidecar is not reported as applied between two failures.
        reports_progress = self._outbox.reported_state(delivery) not in STALLED

        def progress(found: Findings) -> None:
            self._open_window(delivery)
            if reports_progress:
                self._put(delivery, self._attributed(delivery, found))

        # No preflight for a settled delivery: a store that is down now must not block the repair.
        is_settled = self._ledger.phase(delivery) is DeliveryPhase.SETTLED
        target = self._restraints.on(without_preflight(delivery) if is_settled or is_repair else delivery)
        if is_repair and target.restart_restraint(self._clock.now()) is not None:
            target = without_restarts(target)
        return await self._platform.converge(target, received, progress, lambda: self._is_interrupted(delivery))

    def _attributed(self, delivery: Delivery, found: Findings) -> Findings:
        """Return the findings with causes: a failure of a change on trial is due to the change."""
        on_trial = self._ledger.phase(delivery) is DeliveryPhase.ON_TRIAL
        return found.attributed(Cause.CHANGE if on_trial else Cause.RUNTIME)

    async def _conclude(self, delivery: Delivery, found: Findings) -> Outcome:
        on_trial = self._ledger.phase(delivery) is DeliveryPhase.ON_TRIAL
        if found.rejects_change and on_trial:
            retries = self._preflight_retry(delivery, found)
            if retries is not None:
                return self._defer_preflight(delivery, found, retries.next_delay_s())
            _log.warning("change failed", sequence=delivery.sequence, reason=_reason(found))
            await self._quarantine(delivery, found)
            return await self._roll_back(delivery)
        is_new = self._put(delivery, found)
        if found.verified:
            return await self._verified(delivery, is_new=is_new)
        if is_new:
            state = found.worst.state
            _log.warning("change not verified", sequence=delivery.sequence, state=state, reason=_reason(found))
        if found.failed or found.restarts_due:
            # What the runtime or the agent did not let happen yet is still to be tried: it stays on trial.
            return Waiting(_reason(found), _RECHECK_S)
        if on_trial and found.applied and not self._ledger.was_verified(delivery):
            await self._ledger.record_unproven(delivery, found)
        return Stalled(_reason(found))

    def _preflight_retry(self, delivery: Delivery, found: Findings) -> Retries | None:
        """Return the retries of a preflight that failed because a dependency was not reachable, or None."""
        policy = delivery.apply.retry
        allowed = policy is Retry.ALWAYS or (policy is Retry.FIRST and self._ledger.fallback(delivery) is None)
        if not (found.unreachable and allowed):
            return None
        if self._repeated is None or self._repeated.delivery is not delivery:
            end = self._clock.monotonic() + delivery.apply.verify_window_seconds
            self._repeated = _RepeatedPreflight(delivery, end, Retries(_PREFLIGHT_BACKOFF, self._rng))
        return self._repeated.retries if self._clock.monotonic() < self._repeated.end else None

    def _defer_preflight(self, delivery: Delivery, found: Findings, delay_s: float) -> Outcome:
        text = f"a dependency is not reachable: the preflight is repeated in {delay_s:.1f} s"
        _log.warning("preflight will be repeated", sequence=delivery.sequence, reason=_reason(found))
        self._put(delivery, findings.deferred(found, self._clock.now(), text))
        return Requeue(delay_s)

    async def _quarantine(self, delivery: Delivery, found: Findings) -> None:
        """Record the failure of a delivery; if a full disk prevents that, report it all the same."""
        try:
            await self._ledger.record_failed(delivery, found)
        except GovernorError:
            self._put(delivery, found)
            raise

    async def _verified(self, delivery: Delivery, *, is_new: bool) -> Outcome:
        assert self._inbox.signed is not None  # noqa: S101 - set together with ``newest``
        await self._ledger.record_verified(delivery, self._inbox.signed)
        await self._platform.release()
        if is_new:
            _log.info("change verified", sequence=delivery.sequence, digest=delivery.digest)
        if self._ledger.phase(delivery) is DeliveryPhase.SETTLED:
            return Done()
        self._open_window(delivery)
        left_s = self._left_s(delivery)
        if left_s > 0:
            return Requeue(left_s)
        await self._settle(delivery)
        return Done() if self._ledger.phase(delivery) is DeliveryPhase.SETTLED else Requeue(_RECHECK_S)

    async def _roll_back(self, delivery: Delivery) -> Outcome:
        """Keep or restore the fallback of a failed delivery, and report both the failure and the rollback."""
        trial = self._ledger.trial(delivery)
        assert trial is not None  # noqa: S101 - called only for a quarantined delivery
        fallback = self._ledger.fallback(delivery)
        verb = "rolled back to" if trial.found.applied else "stayed at"
        bundle = f"bundle {fallback.digest} of delivery {fallback.sequence}" if fallback else "the empty bundle"
        where = f"{verb} {bundle}"

        def report(result: str) -> None:
            self._put(delivery, findings.rolled_back(trial.found, self._clock.now(), f"{where}; {result}"))

        if self._outbox.reported_state(delivery) is not State.FAILED:
            report("not verified yet")
        received = Evidence(AGENT, self._clock.now(), where)
        target = without_preflight(fallback or _empty(delivery))
        is_due = trial.found.applied and self._returned is not delivery
        try:
            drift = await self._platform.find_drift(target)
            wait = self._begin_repair(target, drift) if drift else None
            if wait is not None:
                report(f"failed: {drift}")
                return wait
            target = unrestrained(target) if is_due and drift is None else self._restraints.on(target)
            found = await self._platform.converge(
                target, received, lambda _: report("not verified yet"), lambda: self._is_superseded(delivery)
            )
        except GovernorError as error:
            report(f"failed: {error}")
            raise
        if self._is_superseded(delivery):
            return Done()
        if found.verified:
            self._returned = delivery
        report("verified" if found.verified else f"{found.worst.state}: {_reason(found)}")
        await self._platform.release()
        return Stalled(f"delivery {delivery.sequence} is in quarantine")

    def _put(self, delivery: Delivery, found: Findings) -> bool:
        """Queue a report, which names the hold if there is one."""
        held = self._restraints.held(self._clock.now())
        restrained = msgspec.structs.replace(found, restraint=held) if found.restraint is None else found
        return self._outbox.put(delivery, restrained)

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

    def _is_interrupted(self, delivery: Delivery) -> bool:
        return self._is_superseded(delivery) or self._hold_has_changed

    @property
    def _hold_has_changed(self) -> bool:
        """Whether an administrator has set or removed a hold on the platform since this run began."""
        return self._platform.hold() != self._restraints.platform_hold


def _reason(found: Findings) -> str:
    evidence = found.worst.all_evidence
    return evidence[-1].text if evidence else ""


def _empty(delivery: Delivery) -> Delivery:
    """Return the empty bundle: the fallback of a runtime that never verified a delivery."""
    return msgspec.structs.replace(delivery, sequence=0, digest=digest([]), resources=(), removals=())
