"""Which deliveries were verified and which are quarantined; stored before it is relied on.

A delivery's content is *on trial* from its first write until its verification window ends. The result is stored by
digest, so that neither an agent restart nor a repeated delivery makes the sidecars flap.
"""

import enum
from typing import Final

import msgspec

from governor.agent.enrolment import verify_stored
from governor.agent.state.agent_state import AgentState
from governor.agent.state.records import Membership, Trial, VerifiedDeliveries
from governor.agent.verification.findings import Findings
from governor.domain.bundles import Delivery
from governor.wire.deliveries import SignedDelivery

_MAX_TRIALS: Final = 64


class DeliveryPhase(enum.StrEnum):
    """What a failure of a delivery means."""

    ON_TRIAL = "on trial"
    """The change is rejected and rolled back."""
    SETTLED = "settled"
    """The runtime is unhealthy: it is reported and nothing is rolled back."""
    QUARANTINED = "quarantined"
    """It has failed before and is not applied again in this attempt."""


class Ledger:
    """The last verified delivery, its predecessor while the last is on trial, and the trials that were not verified."""

    def __init__(self, state: AgentState) -> None:
        self._state = state
        self._verified: VerifiedDeliveries | None = None
        self._last: Delivery | None = None
        self._before: Delivery | None = None
        self._trials: dict[str, Trial] = {}

    async def restore(self, membership: Membership | None) -> None:
        """Load the stored state and verify its signatures again."""
        self._trials = await self._state.trials()
        verified = await self._state.verified()
        if verified is None or membership is None:
            return
        self._verified, self._last = verified, verify_stored(verified.last, membership)
        self._before = verify_stored(verified.before, membership) if verified.before else None

    def phase(self, delivery: Delivery) -> DeliveryPhase:
        """Return the phase of a delivery."""
        trial = self.trial(delivery)
        if trial is not None:
            return DeliveryPhase.QUARANTINED if trial.failed else DeliveryPhase.SETTLED
        is_settled = self._is_last(delivery) and self._verified is not None and not self._verified.on_trial
        return DeliveryPhase.SETTLED if is_settled else DeliveryPhase.ON_TRIAL

    def was_verified(self, delivery: Delivery) -> bool:
        """Return whether this content is the last that was verified."""
        return self._is_last(delivery)

    def trial(self, delivery: Delivery) -> Trial | None:
        """Return the stored trial of this content, or None.

        A higher attempt starts a new trial, and so does a store that may have forgotten the attempts before.
        """
        trial = self._trials.get(delivery.digest)
        if trial is None or trial.incarnation != delivery.incarnation or trial.attempt < delivery.attempt:
            return None
        return trial

    def fallback(self, delivery: Delivery) -> Delivery | None:
        """Return the delivery to roll back to, or None."""
        return self._before if self._is_last(delivery) else self._last

    async def record_verified(self, delivery: Delivery, signed: SignedDelivery) -> None:
        """Record a verified delivery; it stays on trial, with its predecessor kept, until ``record_settled``."""
        if delivery.digest in self._trials:
            await self._save_trials({key: each for key, each in self._trials.items() if key != delivery.digest})
        if not self._is_last(delivery):
            before = self._verified.last if self._verified else None
            await self._save(VerifiedDeliveries(signed, before, on_trial=True), last=delivery, before=self._last)
        elif self._verified is not None and self._verified.last != signed:
            verified = msgspec.structs.replace(self._verified, last=signed)
            await self._save(verified, last=delivery, before=self._before)

    async def record_settled(self, delivery: Delivery) -> None:
        """Record that the verification window is over: later failures do not roll it back."""
        if self._is_last(delivery) and self._verified is not None and self._verified.on_trial:
            await self._save(VerifiedDeliveries(self._verified.last), last=self._last, before=None)

    async def record_failed(self, delivery: Delivery, found: Findings) -> None:
        """Quarantine a delivery that failed on trial."""
        await self._store_trial(delivery, _trial(delivery, found, failed=True))
        if self._is_last(delivery):
            before = self._verified.before if self._verified else None
            await self._save(VerifiedDeliveries(before) if before else None, last=self._before, before=None)

    async def record_unproven(self, delivery: Delivery, found: Findings) -> None:
        """Record a delivery whose window ended without proof."""
        await self._store_trial(delivery, _trial(delivery, found, failed=False))

    def _is_last(self, delivery: Delivery) -> bool:
        return self._last is not None and self._last.digest == delivery.digest

    async def _store_trial(self, delivery: Delivery, trial: Trial) -> None:
        others = [(key, each) for key, each in self._trials.items() if key != delivery.digest]
        await self._save_trials(dict([*others, (delivery.digest, trial)][-_MAX_TRIALS:]))

    async def _save_trials(self, trials: dict[str, Trial]) -> None:
        # Stored first, here and below: what could not be stored, as on a full disk, must not be relied on.
        await self._state.save_trials(trials)
        self._trials = trials

    async def _save(
        self, verified: VerifiedDeliveries | None, *, last: Delivery | None, before: Delivery | None
    ) -> None:
        await self._state.save_verified(verified)
        self._verified, self._last, self._before = verified, last, before


def _trial(delivery: Delivery, found: Findings, *, failed: bool) -> Trial:
    return Trial(delivery.sequence, delivery.attempt, failed, found, delivery.incarnation)
