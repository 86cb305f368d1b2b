"""Asking one sidecar until it has shown what is expected, has failed, or its time is over. Only polling lives here.

A live change gets half of the window; the other half is for the restart that follows when nothing was proven.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from governor.agent.platforms.local.external import ExternalSidecar
from governor.agent.platforms.local.plan import SidecarAction, SidecarPlan
from governor.agent.platforms.local.sidecar import Sidecar
from governor.agent.redaction import Redactor
from governor.agent.verification.verdicts import (
    Expected,
    Proof,
    Reading,
    SidecarExit,
    Verdict,
    Verdicts,
    judge_fresh,
    judge_running,
    settled,
)
from governor.domain.documents import ApplyPolicy, ResourceRef, Unproven
from governor.domain.reports import Evidence, Finding, State
from governor.process.clock import Clock

_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.25
_PAUSE_GROWTH: Final = 1.3

_MOST_ENDED_BY_OTHERS: Final = 3
"""A process that is killed more often than this may be killed for what it loaded, for example by a lack of memory."""

Superseded: TypeAlias = Callable[[], bool]
AnySidecar: TypeAlias = Sidecar | ExternalSidecar
SidecarFindings: TypeAlias = Mapping[ResourceRef, Finding]


class JudgedReading(msgspec.Struct, frozen=True):
    """The last reading of a sidecar and what it says."""

    reading: Reading
    verdicts: Verdicts


class SidecarVerifier:
    """Proves one sidecar's part of one delivery."""

    def __init__(self, sidecar: AnySidecar, policy: ApplyPolicy, superseded: Superseded, clock: Clock) -> None:
        self._sidecar = sidecar
        self._window_s = float(policy.verify_window_seconds)
        own = sidecar if isinstance(sidecar, Sidecar) else None
        self._restartable = own if policy.unproven is Unproven.RESTART else None
        self._superseded = superseded
        self._clock = clock

    async def verify(self, planned: SidecarPlan, after: int, redactor: Redactor) -> SidecarFindings:
        """What the sidecar shows of each resource in its scope; ``after`` numbers its starts before the write."""
        seen = await self._verify(planned, after)
        for _ in range(_MOST_ENDED_BY_OTHERS):
            last_exit = seen.reading.last_exit
            if last_exit is None or not last_exit.external_cause or not _blames(seen, last_exit):
                break
            # Whoever ended it, the change did not: the next process may show it.
            seen = await self._verify_fresh(planned.expected, last_exit.number, self._window_s)
        return await self._conclude(planned, seen, redactor)

    async def _verify(self, planned: SidecarPlan, after: int) -> JudgedReading:
        before = planned.before
        if before is None or planned.action in (SidecarAction.START, SidecarAction.ROLL):
            return await self._verify_fresh(planned.expected, after, self._window_s)
        if planned.action is SidecarAction.AWAIT:
            # Earlier processes may have ended; that is not this one's failure.
            number = before.process.number if before.process else self._sidecar.starts
            return await self._verify_fresh(planned.expected, number - 1, self._window_s)
        return await self._verify_reload(planned, before)

    async def _verify_reload(self, planned: SidecarPlan, before: Reading) -> JudgedReading:
        kept = [each for each in planned.expected if each.ref in planned.kept]
        changed = [each for each in planned.expected if each.ref not in {*planned.kept, *planned.obstacles}]
        window_s = self._window_s / 2 if self._restartable else self._window_s

        def is_replaced(now: Reading) -> bool:
            """By its owner: another process will never show what this one was to show."""
            return now.process not in (None, before.process)

        seen = await self._ask(lambda now: judge_running(changed, kept, before, now), window_s, is_replaced)
        if settled(seen.verdicts) or self._restartable is None or self._superseded():
            blocked = {ref: Verdict(State.UNPROVEN, reason) for ref, reason in planned.obstacles.items()}
            return JudgedReading(seen.reading, {**seen.verdicts, **blocked})
        return await self._verify_fresh(planned.expected, await self._restartable.restart_unchanged(), window_s)

    async def _verify_fresh(self, expected: tuple[Expected, ...], after: int, window_s: float) -> JudgedReading:
        return await self._ask(lambda now: judge_fresh(expected, after, now), window_s)

    async def _ask(
        self,
        judge: Callable[[Reading], Verdicts],
        window_s: float,
        is_futile: Callable[[Reading], bool] = lambda _: False,
    ) -> JudgedReading:
        deadline = self._clock.monotonic() + window_s
        pause_s = _FIRST_PAUSE_S
        while True:
            reading = await self._sidecar.read()
            seen = JudgedReading(reading, judge(reading))
            is_over = settled(seen.verdicts) or is_futile(reading) or self._superseded()
            if is_over or self._clock.monotonic() >= deadline:
                return seen
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * _PAUSE_GROWTH, _LONGEST_PAUSE_S)

    async def _conclude(self, planned: SidecarPlan, seen: JudgedReading, redactor: Redactor) -> SidecarFindings:
        """A finding for everything expected; what was verified is remembered for this process."""
        had = self._sidecar.proofs(seen.reading)
        shown: dict[ResourceRef, Finding] = {}
        proofs: dict[ResourceRef, Proof] = {}
        for each in planned.expected:
            verdict = seen.verdicts[each.ref]
            evidence = Evidence(f"sidecar {self._sidecar.app_id}", seen.reading.time, redactor.redact(verdict.text))
            if verdict.state is State.VERIFIED:
                new = Proof(each.digest, evidence)
                proofs[each.ref] = had.get(each.ref, new) if each.ref in planned.kept else new
                evidence = proofs[each.ref].evidence
            shown[each.ref] = Finding(state=verdict.state, evidence=(evidence,))
        await self._sidecar.keep_proofs(seen.reading, proofs)
        return shown


def _blames(seen: JudgedReading, last_exit: SidecarExit) -> bool:
    return Verdict(State.FAILED, last_exit.text) in seen.verdicts.values()
