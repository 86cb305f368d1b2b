"""Verifies one delivery in the sidecars of this machine, and restarts those that roll, one after another.

How one sidecar is verified is ``sidecars.verifier``.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec

from governor.agent.platform import Superseded
from governor.agent.platforms.local.plan import Plan, SidecarAction, SidecarPlan
from governor.agent.platforms.local.sidecars.sidecar import Sidecar
from governor.agent.platforms.local.sidecars.verifier import AnySidecar, SidecarFindings, SidecarVerifier
from governor.agent.redaction import Redactor
from governor.agent.verification.findings import postponed
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, Strategy, Unproven
from governor.domain.reports import STALLED, Evidence, Finding, State
from governor.domain.windows import Restraint
from governor.process.clock import Clock


class Verification:
    """The verification of one delivery."""

    def __init__(
        self,
        delivery: Delivery,
        sidecars: Mapping[str, AnySidecar],
        redactor: Redactor,
        superseded: Superseded,
        clock: Clock,
    ) -> None:
        self._delivery = delivery
        self._sidecars = sidecars
        self._redactor = redactor
        self._superseded = superseded
        self._clock = clock
        self.restraint: Restraint | None = None
        """What keeps a sidecar from being restarted that must be, or None."""

    async def run(self, planned: Plan, config: Path | None) -> dict[str, SidecarFindings]:
        """Verify the delivery in every sidecar, and return what each of them found."""
        rolling = [each for each in planned.sidecars if each.action is SidecarAction.ROLL]
        others = [each for each in planned.sidecars if each.action is not SidecarAction.ROLL]
        found = dict(
            zip((each.app_id for each in others), await asyncio.gather(*map(self._verify, others)), strict=True)
        )
        for each in rolling:
            found[each.app_id] = await self._roll(each, found, config)
        return found

    async def _verify(self, planned: SidecarPlan) -> SidecarFindings:
        restraint = self._restart_restraint()
        policy = self._delivery.apply
        if restraint is not None:
            policy = msgspec.structs.replace(policy, unproven=Unproven.REPORT)
        verifier = SidecarVerifier(self._sidecars[planned.app_id], policy, self._superseded, self._clock)
        found = await verifier.verify(planned, self._redactor)
        if restraint is None or not self._needs_restart(planned, found):
            return found
        self.restraint = restraint
        return postponed(found, restraint)

    def _needs_restart(self, planned: SidecarPlan, found: SidecarFindings) -> bool:
        """Return whether the policy asks for a restart, because the running process did not prove everything."""
        is_managed = isinstance(self._sidecars[planned.app_id], Sidecar)
        is_unproven = any(each.state is State.UNPROVEN for each in found.values())
        return planned.action is SidecarAction.RELOAD and is_managed and is_unproven and _restarts(self._delivery.apply)

    async def _roll(
        self, planned: SidecarPlan, found: Mapping[str, SidecarFindings], config: Path | None
    ) -> SidecarFindings:
        """Restart one sidecar and verify it, unless the change is not verified in those before it, or must wait."""
        sidecar, restraint = self._sidecars[planned.app_id], self._restart_restraint()
        assert isinstance(sidecar, Sidecar)  # noqa: S101 - only these roll
        others = [(app_id, each) for app_id, several in found.items() for each in several.values()]
        # One that waits for a restart itself is neither: the restraint is still the same.
        stalled = next((app_id for app_id, each in others if each.state in STALLED), None)
        if stalled is not None or self._superseded():
            reason = f"the change is not verified in {stalled}" if stalled else "a newer delivery has arrived"
            return self._not_restarted(planned, State.UNPROVEN, reason)
        if restraint is not None:
            self.restraint = restraint
            return self._not_restarted(planned, State.APPLIED, restraint.message)
        await sidecar.restart(config)
        return await self._verify(planned)

    def _not_restarted(self, planned: SidecarPlan, state: State, reason: str) -> SidecarFindings:
        evidence = Evidence(f"sidecar {planned.app_id}", self._clock.now(), f"not restarted: {reason}")
        return {each.ref: Finding(state=state, evidence=(evidence,)) for each in planned.expected}

    def _restart_restraint(self) -> Restraint | None:
        return self._delivery.restart_restraint(self._clock.now())


def _restarts(policy: ApplyPolicy) -> bool:
    return policy.unproven is Unproven.RESTART or policy.strategy is Strategy.ROLLING
