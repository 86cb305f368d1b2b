"""The verification of one delivery, step by step: ask the sidecars, judge, restart what they cannot prove otherwise.

A step never waits for a restart, so a newer delivery does not wait either.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from governor.agent.platform import Superseded
from governor.agent.platforms.kubernetes.plans.affected import Changes, live_pods, scope_of
from governor.agent.platforms.kubernetes.plans.plan import Observed, Plan, depends_on_control_plane, plan
from governor.agent.platforms.kubernetes.proof.instances import Probed, facts, started_after
from governor.agent.platforms.kubernetes.proof.judgement import Judged, Situation, findings_of, judge_workload
from governor.agent.platforms.kubernetes.proof.probes import Probes, confirmed
from governor.agent.platforms.kubernetes.proof.proofs import ProofBook
from governor.agent.platforms.kubernetes.resources.foreign import ForeignResource, reloaded
from governor.agent.platforms.kubernetes.restarts.control_plane import ControlPlane
from governor.agent.platforms.kubernetes.restarts.restarts import STARTS, Restarts, by_ref
from governor.agent.platforms.kubernetes.workloads.observer import Observer
from governor.agent.platforms.kubernetes.workloads.workload import Workload
from governor.agent.verification import findings
from governor.agent.verification.findings import Findings, InstanceFindings
from governor.domain.bundles import Delivery
from governor.domain.documents import ResourceRef
from governor.domain.reports import Cause, Evidence, State, WorkloadRef
from governor.domain.windows import Restraint
from governor.process.clock import Clock

_CHECK_S: Final = 2.0
"""How long sidecars that proved everything may take to answer, when nothing was changed."""


class Change(msgspec.Struct, frozen=True):
    """A delivery under way: what is expected, the sidecars before it, and when resources were last written.

    ``versions`` are those of the objects before the write, ``foreign`` the resources of other owners then. ``notes``
    are what else a report says about resources.
    """

    delivery: Delivery
    changes: Changes
    before: Mapping[str, Probed]
    written: Mapping[ResourceRef, datetime]
    versions: Mapping[ResourceRef, str]
    history: tuple[Evidence, ...]
    unsettled: Mapping[str, frozenset[str]]
    foreign: tuple[ForeignResource, ...] = ()
    notes: Mapping[ResourceRef, str] = {}
    adopts: bool = False
    """Whether the delivery takes over resources as they are."""

    @property
    def components(self) -> frozenset[ResourceRef]:
        """The Components that change."""
        return frozenset(each.ref for each in self.changes.expected if each.component_type and each.changed)

    @property
    def is_new(self) -> bool:
        """Whether the delivery changes anything."""
        return any(each.changed for each in self.changes.expected)

    def observed(
        self,
        workloads: Sequence[Workload],
        proofs: ProofBook,
        obstacles: Mapping[str, Mapping[ResourceRef, str]] | None = None,
        *,
        applied: bool,
    ) -> Observed:
        """Return what a plan depends on."""
        known = {uid: found for uid, each in self.before.items() if (found := facts(each.status))}
        return Observed(
            workloads,
            known,
            proofs.by_instance(),
            obstacles or {},
            applied=applied,
            written=max(self.written.values(), default=None),
            versions=proofs.versions,
            attempt=self.delivery.attempt,
            adopted=proofs.adopted,
        )


class Verification:
    """The verification of one delivery."""

    def __init__(
        self,
        change: Change,
        refs: Sequence[ResourceRef],
        observer: Observer,
        probes: Probes,
        proofs: ProofBook,
        restarts: Restarts,
        clock: Clock,
        superseded: Superseded,
        *,
        list_foreign: Callable[[], Awaitable[Iterable[ForeignResource]]],
    ) -> None:
        self._change = change
        self._refs = refs
        self._changes = change.changes
        self._observer = observer
        self._probes = probes
        self._proofs = proofs
        self._restarts = restarts
        self._clock = clock
        self._superseded = superseded
        self._list_foreign = list_foreign
        self._reloaded: set[ForeignResource] = set()
        self._digests: dict[WorkloadRef, str] = {}
        self._began_s = clock.monotonic()
        """When the window began: with each restart it begins again, because new sidecars need it too."""
        self._window_s = float(change.delivery.apply.verify_window_seconds) if change.is_new else _CHECK_S
        self.is_over = False
        """Whether nothing more is waited for: the window was over since the last restart."""
        self._now: dict[str, Probed] = {}
        self._settled: set[str] = set()
        self._replaced: frozenset[WorkloadRef] = frozenset()
        self._rejected: Findings | None = None
        """What was found when the change failed: pods that return to their old template do not prove it."""

    @property
    def notes(self) -> tuple[Evidence, ...]:
        """What the restarts of this verification change beside the delivery."""
        return tuple(self._restarts.notes)

    def is_result(self, found: Findings) -> bool:
        """Return whether findings will not change: nothing is verified, or failed, while restarts are under way.

        A restart that failed because of the runtime is no reason to stop asking the sidecars of other workloads.
        """
        if found.failed and self._restarts.is_cleaning_up:
            return False
        if found.failed and not fails_by_runtime(found):
            return True
        is_open = self._restarts.is_busy or any(each.state is State.APPLIED for each in found.workloads)
        return (found.failed or found.verified) and not is_open

    async def step(self) -> Findings:
        """Ask, judge and restart once, and return the findings so far."""
        workloads = self._observer.workloads()
        await self._ask(workloads)
        situation, judged = await self._judge(workloads)
        self._record(judged)
        if not self._superseded():
            await self._restart(workloads, judged)
        if self._restarts.is_busy or self._restarts.is_cleaning_up:
            self._began_s = self._clock.monotonic()
        self.is_over = self._clock.monotonic() - self._began_s > self._window_s
        situation = msgspec.structs.replace(
            situation,
            digests=self._digests,
            failures=self._restarts.failures,
            waiting=self._restarts.waiting,
            replaced=self._replaced,
            is_over=self.is_over,
        )
        found = {each.ref: self._restrained(findings_of(each, judged[each.ref], situation), each) for each in workloads}
        history = (*self._change.history, *self.notes)
        combined = findings.combine(
            self._refs,
            found,
            self._clock.now(),
            *history,
            resource_notes=self._change.notes,
            workload_notes=self._restarts.notes_on,
        )
        return self._unless_rejected(msgspec.structs.replace(combined, restarts_due=self._restarts.is_due))

    def _unless_rejected(self, found: Findings) -> Findings:
        """Return the findings, or those of the change's failure, while and after what it left behind is cleaned up."""
        if found.failed and not fails_by_runtime(found):
            self._rejected = found
        return self._rejected or found

    def _restrained(self, found: tuple[InstanceFindings, ...], workload: Workload) -> tuple[InstanceFindings, ...]:
        """Return what the instances of a workload found; what only its postponed restart will prove is applied."""
        restraint = self._restarts.restrained.get(workload.ref)
        if restraint is None:
            return found
        return tuple(InstanceFindings(each.name, findings.postponed(each.resources, restraint)) for each in found)

    def waits_for(self, found: Findings) -> Restraint | None:
        """Return what the rest of the delivery waits for, if nothing else is under way, or None."""
        waiting = self._restarts.restrained
        is_open = any(each.state is State.APPLIED and each.workload not in waiting for each in found.workloads)
        return None if is_open or self._restarts.is_busy else next(iter(waiting.values()), None)

    async def _ask(self, workloads: Sequence[Workload]) -> None:
        """Ask the sidecars that have not proven everything in this verification."""
        pods = [pod for each in workloads for pod in live_pods(each) if pod.instance not in self._settled]
        concerned = [pod for pod in pods if self._changes.seen_by(frozenset({scope_of(pod)}))]
        answers = await self._probes.ask(concerned, self._change.before, self._superseded)
        self._now.update(confirmed(answers, self._observer.workloads()))

    async def _judge(self, workloads: Sequence[Workload]) -> tuple[Situation, dict[WorkloadRef, tuple[Judged, ...]]]:
        """Judge the sidecars; if a counter proves something, once more with what others have changed meanwhile."""
        situation = self._situation()
        judged = {each.ref: judge_workload(each, situation) for each in workloads}
        if any(each.counted for several in judged.values() for each in several):
            # Listed after the sidecars were asked: what they had initialised until then is in the list.
            times = self._change.written
            written = min((times[ref] for ref in self._change.components if ref in times), default=None)
            self._reloaded.update(reloaded(self._change.foreign, await self._list_foreign(), written))
            situation = msgspec.structs.replace(self._situation(), is_foreign_known=True)
            judged = {each.ref: judge_workload(each, situation) for each in workloads}
        return situation, judged

    def _situation(self) -> Situation:
        return Situation(
            self._changes,
            self._change.before,
            self._now,
            self._change.written,
            self._proofs.by_instance(),
            self._digests,
            unsettled=self._change.unsettled,
            reloaded=tuple(self._reloaded),
            adopted=self._proofs.adopted,
            disturbed=self._proofs.disturbed,
        )

    def _record(self, judged: Mapping[WorkloadRef, Sequence[Judged]]) -> None:
        """Keep the proofs, and do not ask again who has proven everything."""
        for each in (one for several in judged.values() for one in several):
            instance = each.pod.instance
            for ref, proof in tuple(each.proofs(self._clock.now(), self._proofs.of(instance))):
                self._proofs.add(instance, ref, proof)
            if each.pod.instance and all(one.state is State.VERIFIED for one in each.verdicts.values()):
                self._settled.add(each.pod.instance)

    async def _restart(self, workloads: Sequence[Workload], judged: Mapping[WorkloadRef, Sequence[Judged]]) -> None:
        observed = self._change.observed(workloads, self._proofs, self._obstacles(judged), applied=True)
        planned = self._plan(observed)
        control_plane = ControlPlane()
        if depends_on_control_plane(planned, workloads):
            control_plane = await self._restarts.read_control_plane()
            planned = self._plan(msgspec.structs.replace(observed, control_plane=control_plane))
        self._digests = {each.workload: each.digest for each in planned.workloads}
        await self._restarts.step(planned, by_ref(workloads), control_plane)
        # A sidecar that has exited since only waits for its next start.
        starts = {each.workload for each in planned.workloads if each.action in STARTS}
        self._replaced |= starts - self._restarts.restrained.keys()

    def _plan(self, observed: Observed) -> Plan:
        planned = plan(self._changes, observed, self._change.delivery.apply)
        assert isinstance(planned, Plan)  # noqa: S101 - what is applied is not rejected any more
        return planned

    def _obstacles(self, judged: Mapping[WorkloadRef, Sequence[Judged]]) -> dict[str, dict[ResourceRef, str]]:
        """Return, by pod uid, what only a restart proves of sidecars from before the write, and why.

        That is what they did not prove in half of the window and, from the beginning, what no counter can prove. It is
        everything if they have exited, perhaps for what another client wrote.
        """
        is_late = self._clock.monotonic() - self._began_s >= self._window_s / 2
        pods = (each for several in judged.values() for each in several)
        running = [each for each in pods if each.pod.instance and not self._is_new(each)]
        unsettled = self._change.unsettled
        return {
            each.pod.uid: each.unproven(
                None if is_late or each.disturbed else unsettled.get(each.pod.instance, frozenset())
            )
            for each in running
        }

    def _is_new(self, judged: Judged) -> bool:
        """Return whether a sidecar started after the write: another one would prove no more."""
        times = (self._change.written[each.ref] for each in judged.changes if each.ref in self._change.written)
        return started_after(judged.pod, max(times, default=None), self._digests.get(judged.pod.owner, ""))


def fails_by_runtime(found: Findings) -> bool:
    """Return whether something failed, and all of it because of the runtime."""
    return {each.cause for each in found.workloads if each.state is State.FAILED} == {Cause.RUNTIME}
