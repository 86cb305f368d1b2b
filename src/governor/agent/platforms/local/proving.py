"""Asking one sidecar until it has shown what is expected, has failed, or its time is over. Only polling lives here.

A live change gets half of the window; the other half is for the restart that follows when nothing was proven.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

import msgspec

from governor.agent.platforms.local.plan import Proof, SidecarPlan, Way
from governor.agent.platforms.local.sidecar import Sidecar
from governor.agent.redaction import Redactor
from governor.agent.verification import Expected, Reading, Verdict, Verdicts, fresh, live, settled
from governor.domain.documents import ApplyPolicy, ResourceRef, Unproven
from governor.domain.reports import Evidence, Finding, State
from governor.process.clock import Clock

_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.25
_PAUSE_GROWTH: Final = 1.3

Superseded: TypeAlias = Callable[[], bool]
Shown: TypeAlias = Mapping[ResourceRef, Finding]


class Seen(msgspec.Struct, frozen=True):
    """The last reading of a sidecar and what it says."""

    reading: Reading
    verdicts: Verdicts


class Prover:
    """Proves one sidecar's part of one delivery."""

    def __init__(self, sidecar: Sidecar, policy: ApplyPolicy, superseded: Superseded, clock: Clock) -> None:
        self._sidecar = sidecar
        self._window_s = float(policy.verify_window_seconds)
        self._may_restart = policy.unproven is Unproven.RESTART
        self._superseded = superseded
        self._clock = clock

    async def prove(self, planned: SidecarPlan, after: int, redactor: Redactor) -> Shown:
        """What the sidecar shows of each resource in its scope; ``after`` numbers its starts before the write."""
        if planned.way is Way.LIVE and planned.before is not None:
            seen = await self._prove_live(planned, planned.before)
            kept = planned.kept if seen.reading.process == planned.before.process else {}
        elif planned.way is Way.KEEP:
            return _still_proven(planned.kept)
        else:
            seen, kept = await self._prove_fresh(planned.expected, after, self._window_s), {}
        return self._conclude(planned.expected, seen, kept, redactor)

    async def _prove_live(self, planned: SidecarPlan, before: Reading) -> Seen:
        points = [
            each for each in planned.expected if each.ref not in planned.kept and each.ref not in planned.obstacles
        ]
        window_s = self._window_s / 2 if self._may_restart else self._window_s
        seen = await self._ask(partial(live, points, before), window_s)
        if settled(seen.verdicts) or not self._may_restart or self._superseded():
            blocked = {ref: Verdict(State.UNPROVEN, reason) for ref, reason in planned.obstacles.items()}
            return Seen(seen.reading, {**seen.verdicts, **blocked})
        return await self._prove_fresh(planned.expected, await self._sidecar.restart(), window_s)

    async def _prove_fresh(self, expected: tuple[Expected, ...], after: int, window_s: float) -> Seen:
        return await self._ask(partial(fresh, expected, after), window_s)

    async def _ask(self, judge: Callable[[Reading], Verdicts], window_s: float) -> Seen:
        deadline = self._clock.monotonic() + window_s
        pause_s = _FIRST_PAUSE_S
        while True:
            reading = await self._sidecar.read()
            seen = Seen(reading, judge(reading))
            if settled(seen.verdicts) or self._clock.monotonic() >= deadline or self._superseded():
                return seen
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * _PAUSE_GROWTH, _LONGEST_PAUSE_S)

    def _conclude(
        self, expected: tuple[Expected, ...], seen: Seen, kept: Mapping[ResourceRef, Proof], redactor: Redactor
    ) -> Shown:
        """Turn verdicts into findings, and remember for this process what was verified."""
        shown = _still_proven(kept)
        proofs = dict(kept)
        digests = {each.ref: each.digest for each in expected}
        for ref, verdict in seen.verdicts.items():
            evidence = Evidence(f"sidecar {self._sidecar.app_id}", seen.reading.time, redactor.clean(verdict.text))
            shown[ref] = Finding(state=verdict.state, evidence=(evidence,))
            if verdict.state is State.VERIFIED:
                proofs[ref] = Proof(digests[ref], evidence)
        if seen.reading.process is not None:
            self._sidecar.keep_proofs(seen.reading.process, proofs)
        return shown


def _still_proven(kept: Mapping[ResourceRef, Proof]) -> dict[ResourceRef, Finding]:
    return {ref: Finding(state=State.VERIFIED, evidence=(proof.evidence,)) for ref, proof in kept.items()}
