"""Which deliveries are known to work and which must not be tried again; on disk before anyone relies on it.

A delivery's content is *on trial* from its first write until its window is over. What it comes to then is kept by
digest, so that neither a restart of the agent nor the same delivery sent again makes the sidecars flap.
"""

import asyncio
import enum
from typing import Final

import msgspec

from governor.agent.enrolment import verify_delivery
from governor.agent.storage import Membership, Storage, Trial, VerifiedDeliveries
from governor.agent.verification.findings import Findings
from governor.domain.bundles import Delivery
from governor.wire.rest import SignedDelivery

_MOST_TRIALS: Final = 64


class DeliveryPhase(enum.StrEnum):
    """What a failure of a delivery would mean."""

    ON_TRIAL = "on trial"
    """The change is not accepted: the runtime returns to what worked before."""
    SETTLED = "settled"
    """The runtime is ill: its health is reported and nothing is returned to."""
    QUARANTINED = "quarantined"
    """It has failed already and is not applied again under this attempt."""


class Ledger:
    """The last verified delivery, the one before it while the last is on trial, and the trials that ended badly."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._proven: VerifiedDeliveries | None = None
        self._last: Delivery | None = None
        self._before: Delivery | None = None
        self._trials: dict[str, Trial] = {}

    def restore(self, membership: Membership | None) -> None:
        """Take up what was known before the agent started; signatures are checked again. Blocking."""
        self._trials = dict(self._storage.trials())
        proven = self._storage.verified()
        if proven is None or membership is None:
            return
        self._proven, self._last = proven, verify_delivery(proven.last, membership)
        self._before = verify_delivery(proven.before, membership) if proven.before else None

    def phase(self, delivery: Delivery) -> DeliveryPhase:
        """What a failure of this delivery would mean now."""
        trial = self.trial(delivery)
        if trial is not None:
            return DeliveryPhase.QUARANTINED if trial.failed else DeliveryPhase.SETTLED
        is_settled = self._is_last(delivery) and self._proven is not None and not self._proven.on_trial
        return DeliveryPhase.SETTLED if is_settled else DeliveryPhase.ON_TRIAL

    def trial(self, delivery: Delivery) -> Trial | None:
        """How this content ended before without being verified; a higher attempt begins anew."""
        trial = self._trials.get(delivery.digest)
        return trial if trial is not None and trial.attempt >= delivery.attempt else None

    def fallback(self, delivery: Delivery) -> Delivery | None:
        """What worked before this delivery."""
        return self._before if self._is_last(delivery) else self._last

    async def record_verified(self, delivery: Delivery, signed: SignedDelivery) -> None:
        """Everything of it is verified; until ``settled`` it stays on trial and the one before it is kept."""
        if delivery.digest in self._trials:
            del self._trials[delivery.digest]
            await self._save_trials()
        if not self._is_last(delivery):
            before = self._proven.last if self._proven else None
            self._before, self._last = self._last, delivery
            await self._save(VerifiedDeliveries(signed, before, on_trial=True))
        elif self._proven is not None and self._proven.last != signed:
            self._last = delivery
            await self._save(msgspec.structs.replace(self._proven, last=signed))

    async def record_settled(self, delivery: Delivery) -> None:
        """Its window is over: from now on a failure is not its fault."""
        if self._is_last(delivery) and self._proven is not None and self._proven.on_trial:
            self._before = None
            await self._save(VerifiedDeliveries(self._proven.last))

    async def record_failed(self, delivery: Delivery, found: Findings) -> None:
        """It failed while it was on trial."""
        await self._keep(delivery, Trial(delivery.sequence, delivery.attempt, failed=True, found=found))
        if self._is_last(delivery):
            before = self._proven.before if self._proven else None
            self._last, self._before = self._before, None
            await self._save(VerifiedDeliveries(before) if before else None)

    async def record_unproven(self, delivery: Delivery, found: Findings) -> None:
        """Its window is over, and whether it is used was not shown."""
        await self._keep(delivery, Trial(delivery.sequence, delivery.attempt, failed=False, found=found))

    def _is_last(self, delivery: Delivery) -> bool:
        return self._last is not None and self._last.digest == delivery.digest

    async def _keep(self, delivery: Delivery, trial: Trial) -> None:
        self._trials.pop(delivery.digest, None)
        self._trials[delivery.digest] = trial
        for oldest in list(self._trials)[:-_MOST_TRIALS]:
            del self._trials[oldest]
        await self._save_trials()

    async def _save_trials(self) -> None:
        await asyncio.to_thread(self._storage.save_trials, dict(self._trials))

    async def _save(self, proven: VerifiedDeliveries | None) -> None:
        # Nobody goes by it before it is kept: an agent that is stopped in between must find what it has shown.
        await asyncio.to_thread(self._storage.save_verified, proven)
        self._proven = proven
