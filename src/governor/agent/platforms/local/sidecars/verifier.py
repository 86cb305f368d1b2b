"""Polls one sidecar until its part of a delivery is verified, has failed, or the window is over.

A reload gets half of the window; the other half is for the restart that follows if the reload proves nothing.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from governor.agent.platform import Superseded
from governor.agent.platforms.local.plan import SidecarAction, SidecarPlan
from governor.agent.platforms.local.sidecars.external import ExternalSidecar
from governor.agent.platforms.local.sidecars.sidecar import Sidecar
from governor.agent.redaction import Redactor
from governor.agent.verification.verdicts import (
    MAX_EXTERNAL_EXITS,
    Expected,
    Proof,
    Reading,
    SidecarExit,
    Verdict,
    Verdicts,
    judge_exit,
    judge_fresh,
    judge_running,
    judge_unchanged,
    settled,
)
from governor.domain.documents import ApplyPolicy, ResourceRef, Unproven
from governor.domain.reports import Cause, Evidence, Finding, State
from governor.process.clock import Clock

_FIRST_PAUSE_S: Final = 0.003
_LONGEST_PAUSE_S: Final = 0.25
_PAUSE_GROWTH: Final = 1.05

_CHECK_S: Final = 2.0
"""How long an unchanged sidecar that responds may take to be healthy and to list everything."""

AnySidecar: TypeAlias = Sidecar | ExternalSidecar
SidecarFindings: TypeAlias = Mapping[ResourceRef, Finding]


class JudgedReading(msgspec.Struct, frozen=True):
    """A reading of a sidecar with its verdicts."""

    reading: Reading
    verdicts: Verdicts


class SidecarVerifier:
    """Verifies one sidecar's part of one delivery."""

    def __init__(self, sidecar: AnySidecar, policy: ApplyPolicy, superseded: Superseded, clock: Clock) -> None:
        self._sidecar = sidecar
        self._window_s = float(policy.verify_window_seconds)
        managed = sidecar if isinstance(sidecar, Sidecar) else None
        self._restartable = managed if policy.unproven is Unproven.RESTART else None
        self._superseded = superseded
        self._clock = clock

    async def verify(self, planned: SidecarPlan, redactor: Redactor) -> SidecarFindings:
        """Return the finding of each resource in scope."""
        judged = await self._verify(planned)
        for _ in range(MAX_EXTERNAL_EXITS):
            last_exit = judged.reading.last_exit
            if last_exit is None or not last_exit.external_cause or not _failed_by(judged, last_exit):
                break
            # The change did not cause the exit: the next process may prove it.
            judged = await self._verify_fresh(planned.expected, self._window_s, last_exit)
        return await self._conclude(planned, judged, redactor)

    async def _verify(self, planned: SidecarPlan) -> JudgedReading:
        before = planned.before
        if before is None or planned.action in (SidecarAction.START, SidecarAction.ROLL):
            return await self._verify_fresh(planned.expected, self._window_s)
        if planned.action is SidecarAction.AWAIT:
            return await self._await(planned.expected, before)
        if planned.action is SidecarAction.KEEP:
            return await self._check(planned, before)
        return await self._verify_reload(planned, before)

    async def _await(self, expected: tuple[Expected, ...], before: Reading) -> JudgedReading:
        """Verify by the process that runs or comes next; without one, the last exit is a failure."""
        now = await self._sidecar.read()
        if now.instance is None and now.last_exit is not None:
            return JudgedReading(now, judge_exit(expected, now.last_exit))
        # An exit of an earlier process is not a failure of this one.
        return await self._verify_fresh(expected, self._window_s, before.last_exit)

    async def _check(self, planned: SidecarPlan, before: Reading) -> JudgedReading:
        """Check that a process still uses what was proven; a proof alone does not say that it still responds."""

        def judge(now: Reading) -> Verdicts:
            return judge_unchanged(planned.expected, before, now)

        if before.status is None:
            # It was polled for long enough before the plan was made.
            return JudgedReading(before, judge(before))
        return await self._poll(judge, _CHECK_S)

    async def _verify_reload(self, planned: SidecarPlan, before: Reading) -> JudgedReading:
        kept = [each for each in planned.expected if each.ref in planned.kept]
        changed = [each for each in planned.expected if each.ref not in {*planned.kept, *planned.obstacles}]
        window_s = self._window_s / 2 if self._restartable else self._window_s

        def is_replaced(now: Reading) -> bool:
            """Return whether the owner restarted the sidecar: the new process cannot complete this proof."""
            return now.instance not in (None, before.instance)

        judged = await self._poll(lambda now: judge_running(changed, kept, before, now), window_s, is_replaced)
        if settled(judged.verdicts) or self._restartable is None or self._superseded():
            blocked = {ref: Verdict(State.UNPROVEN, reason) for ref, reason in planned.obstacles.items()}
            return JudgedReading(judged.reading, {**judged.verdicts, **blocked})
        await self._restartable.restart_unchanged()
        return await self._verify_fresh(planned.expected, window_s)

    async def _verify_fresh(
        self, expected: tuple[Expected, ...], window_s: float, ignored: SidecarExit | None = None
    ) -> JudgedReading:
        """Verify by a process that started after the write; ``ignored`` is an exit that is no failure."""

        def judge(now: Reading) -> Verdicts:
            is_ignored = now.last_exit and ignored and now.last_exit.instance_id == ignored.instance_id
            return judge_fresh(expected, msgspec.structs.replace(now, last_exit=None) if is_ignored else now)

        def is_stale(now: Reading) -> bool:
            """Return whether the process was being started when the write or drift was recorded: it proves nothing."""
            return now.instance is not None and not now.started_after_write and self._restartable is not None

        judged = await self._poll(judge, window_s, is_stale)
        if not is_stale(judged.reading) or self._restartable is None or self._superseded():
            return judged
        await self._restartable.restart_unchanged()
        return await self._poll(judge, window_s)

    async def _poll(
        self,
        judge: Callable[[Reading], Verdicts],
        window_s: float,
        is_futile: Callable[[Reading], bool] = lambda _: False,
    ) -> JudgedReading:
        deadline = self._clock.monotonic() + window_s
        pause_s = _FIRST_PAUSE_S
        while True:
            reading = await self._sidecar.read()
            judged = JudgedReading(reading, judge(reading))
            is_over = settled(judged.verdicts) or is_futile(reading) or self._superseded()
            if is_over or self._clock.monotonic() >= deadline:
                return judged
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * _PAUSE_GROWTH, _LONGEST_PAUSE_S)

    async def _conclude(self, planned: SidecarPlan, judged: JudgedReading, redactor: Redactor) -> SidecarFindings:
        """Return a finding for everything expected, and store the proofs of the process."""
        earlier = self._sidecar.proofs(judged.reading)
        found: dict[ResourceRef, Finding] = {}
        proofs: dict[ResourceRef, Proof] = {}
        for each in planned.expected:
            verdict, cause = judged.verdicts[each.ref], None
            evidence = Evidence(f"sidecar {self._sidecar.app_id}", judged.reading.time, redactor.redact(verdict.text))
            if verdict.state is State.VERIFIED:
                proof = Proof(each.digest, evidence)
                proofs[each.ref] = earlier.get(each.ref, proof) if each.ref in planned.kept else proof
                evidence = proofs[each.ref].evidence
            elif planned.action is SidecarAction.KEEP and verdict.state is State.UNPROVEN:
                # What was proven is no longer seen, and nothing was changed: the runtime failed. If the same process
                # recovers, its proofs are valid again.
                verdict, cause = Verdict(State.FAILED, verdict.text), Cause.RUNTIME
                proofs.update({each.ref: earlier[each.ref]} if each.ref in earlier else {})
            found[each.ref] = Finding(state=verdict.state, evidence=(evidence,), cause=cause)
        await self._sidecar.keep_proofs(judged.reading, proofs)
        return found


def _failed_by(judged: JudgedReading, last_exit: SidecarExit) -> bool:
    return Verdict(State.FAILED, last_exit.text) in judged.verdicts.values()
