"""Judging the sidecars of a runtime's workloads: from what they answered to findings by instance. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from governor.agent.platforms.kubernetes.plans.affected import Change, Changes, Scope, live_pods, scope_of
from governor.agent.platforms.kubernetes.plans.plan import ADOPTED
from governor.agent.platforms.kubernetes.proof.instances import Probed, reading
from governor.agent.platforms.kubernetes.proof.restarts_in_place import (
    may_have_restarted,
    restarted_for,
    unexplained_initialisation,
)
from governor.agent.platforms.kubernetes.resources.foreign import ForeignResource
from governor.agent.platforms.kubernetes.workloads.workload import Pod, Workload
from governor.agent.verification.findings import InstanceFindings
from governor.agent.verification.obstacles import reload_obstacles
from governor.agent.verification.verdicts import (
    Expected,
    Proof,
    Reading,
    SidecarExit,
    Verdict,
    Verdicts,
    judge_fresh,
    judge_running,
    judge_unchanged,
)
from governor.domain.documents import ResourceRef
from governor.domain.reports import Cause, Evidence, Finding, State, WorkloadRef

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_PROVING: Final = "`governor runtime retry` restarts what must be restarted to prove it"
_NO_SIDECAR: Final = "it has no sidecar: Dapr's injector did not add one; check dapr-sidecar-injector"


class Failure(msgspec.Struct, frozen=True):
    """Why the restart of a workload failed."""

    text: str
    cause: Cause


class Situation(msgspec.Struct, frozen=True):
    """All that the judgement of a delivery depends on, at one moment.

    ``before`` and ``now`` are by pod uid. ``written`` is when each resource was last written, by the clock of the API
    server. ``digests`` are those of restarts for this content, by workload. ``failures`` are restarts that failed,
    ``waiting`` says why others are not done, ``replaced`` are the workloads whose pods a restart replaces, now or
    later. ``is_over`` if nothing more is waited for.
    """

    changes: Changes
    before: Mapping[str, Probed]
    now: Mapping[str, Probed]
    written: Mapping[ResourceRef, datetime]
    proofs: Mapping[str, Mapping[ResourceRef, Proof]]
    digests: Mapping[WorkloadRef, str] = {}
    failures: Mapping[WorkloadRef, Failure] = {}
    waiting: Mapping[WorkloadRef, str] = {}
    replaced: frozenset[WorkloadRef] = frozenset()
    is_over: bool = False
    unsettled: Mapping[str, frozenset[str]] = {}
    """Component types, by instance, whose counters may still rise because of an earlier change."""
    reloaded: tuple[ForeignResource, ...] = ()
    """Resources of other owners that sidecars may have loaded, so that their counters may have risen for these."""
    is_foreign_known: bool = False
    """Whether these were listed since the sidecars were asked."""
    adopted: frozenset[ResourceRef] = frozenset()
    """Resources that were taken over as they are."""
    disturbed: frozenset[ResourceRef] = frozenset()
    """Resources that another client has changed."""


class Judged(msgspec.Struct, frozen=True):
    """The verdicts on one pod's sidecar."""

    pod: Pod
    changes: tuple[Change, ...]
    verdicts: Verdicts
    counted: frozenset[ResourceRef] = frozenset()
    """Components that only the counters of a running sidecar prove."""
    disturbed: bool = False
    """Whether it has exited, perhaps for what another client wrote."""

    def proofs(self, time: datetime, earlier: Mapping[ResourceRef, Proof]) -> Iterator[tuple[ResourceRef, Proof]]:
        """Yield what is proven and was not by ``earlier``, whose evidence says more than that nothing has changed."""
        for each in self.changes:
            verdict = self.verdicts[each.ref]
            if verdict.state is State.VERIFIED and not _is_proven(each, earlier):
                yield each.ref, Proof(each.digest, Evidence(_source(self.pod), time, verdict.text))

    def unproven(self, types: frozenset[str] | None = None) -> dict[ResourceRef, str]:
        """Return what is not proven, and why; with ``types`` only of Components of these types that must be loaded."""
        return {
            each.ref: self.verdicts[each.ref].text
            for each in self.changes
            if self.verdicts[each.ref].state is State.UNPROVEN
            if types is None or (each.digest and each.expected.component_type in types)
        }


def judge_workload(workload: Workload, situation: Situation) -> tuple[Judged, ...]:
    """Judge the sidecars of all pods of a workload that run, or will."""
    return tuple(_judge(pod, workload.ref, situation) for pod in live_pods(workload))


def findings_of(workload: Workload, judged: Sequence[Judged], situation: Situation) -> tuple[InstanceFindings, ...]:
    """Return what the instances of a workload found; a missing pod is an instance that is not judged yet."""
    found = [InstanceFindings(each.pod.name, _findings(each, workload, situation)) for each in judged]
    expected = judged[0].changes if judged else situation.changes.seen_by(frozenset({template_scope(workload)}))
    missing = max(0, (workload.desired or 0) - len(found)) if expected else 0
    absent = {each.ref: _finding(Verdict(State.UNPROVEN, "a pod is missing"), "", situation) for each in expected}
    return (*found, *(InstanceFindings("a pod that does not exist yet", absent) for _ in range(missing)))


def template_scope(workload: Workload) -> Scope:
    """Return the scope of the sidecars in a workload's new pods."""
    return Scope(workload.ref.namespace, workload.app_id, workload.configuration)


def _judge(pod: Pod, workload: WorkloadRef, situation: Situation) -> Judged:
    seen = situation.changes.seen_by(frozenset({scope_of(pod)}))
    probed = situation.now.get(pod.uid)
    reason = _why_not_judged(pod, probed)
    if probed is None or reason:
        return Judged(pod, seen, {each.ref: Verdict(State.UNPROVEN, reason) for each in seen})
    return _unless_unready(_judge_probed(pod, seen, probed, workload, situation))


def _unless_unready(judged: Judged) -> Judged:
    """Return what a sidecar proves: nothing while its own container is not ready, whatever it answers."""
    if judged.pod.sidecar is None or judged.pod.sidecar.ready:
        return judged
    note = "but Kubernetes reports its container daprd as not ready"
    verdicts = {
        ref: Verdict(State.UNPROVEN, f"{each.text}; {note}") if each.state is State.VERIFIED else each
        for ref, each in judged.verdicts.items()
    }
    return Judged(judged.pod, judged.changes, verdicts, disturbed=judged.disturbed)


def _why_not_judged(pod: Pod, probed: Probed | None) -> str:
    if pod.sidecar is None:
        return _NO_SIDECAR
    if probed is None:
        return "it has not been queried yet"
    is_silent = probed.status is None and probed.reason and not probed.errors
    return f"the sidecar does not respond: {probed.reason}" if is_silent else ""


def _judge_probed(
    pod: Pod, seen: tuple[Change, ...], probed: Probed, workload: WorkloadRef, situation: Situation
) -> Judged:
    expected, before = [each.expected for each in seen], situation.before.get(pod.uid)
    written = max((situation.written[each.ref] for each in seen if each.ref in situation.written), default=None)
    digest = situation.digests.get(workload, "")
    is_disturbed = _is_disturbed(before or probed, seen, situation)
    now = reading(probed, before, written, digest, disturbed=is_disturbed)
    if now.last_exit is not None and now.last_exit.external_cause:
        return _judge_excused(pod, seen, now, now.last_exit, disturbed=is_disturbed)
    proofs = situation.proofs.get(pod.instance, {})
    rest = [each for each in seen if not _is_proven(each, proofs)]
    if not rest:
        return Judged(pod, seen, judge_unchanged(expected, now, now))
    if before is None or not before.pod.instance or now.started_after_write:
        return Judged(pod, seen, judge_fresh(expected, now))
    kept = [each.expected for each in seen if _is_proven(each, proofs)]
    then, doubts = reading(before, None, written, digest), _doubts(before, pod, rest, situation)
    if may_have_restarted(rest, before) or restarted_for(_reloaded_in(pod, situation), before):
        now = msgspec.structs.replace(now, restarted_in_place=None)
    verdicts = _judge_running(expected, [each.expected for each in rest], kept, then, now, doubts)
    verdicts |= _adopted_unproven(verdicts, situation.adopted)
    components = {each.ref for each in rest if each.digest and each.expected.component_type}
    counted = frozenset(ref for ref in components if verdicts[ref].state is State.VERIFIED)
    if counted and (reason := unexplained_initialisation(seen, components, then, now, _explained(pod, situation))):
        return Judged(pod, seen, {**verdicts, **dict.fromkeys(counted, Verdict(State.UNPROVEN, reason))})
    return Judged(pod, seen, verdicts, counted)


def _is_disturbed(before: Probed, seen: Sequence[Change], situation: Situation) -> bool:
    """Return whether a sidecar may have loaded what another client wrote, and has not proven anything else since."""
    proofs = situation.proofs.get(before.pod.instance, {})
    return any(each.ref in situation.disturbed and not _is_proven(each, proofs) for each in seen)


def _judge_excused(pod: Pod, seen: tuple[Change, ...], now: Reading, ended: SidecarExit, *, disturbed: bool) -> Judged:
    """Judge a sidecar that was killed, or that may have exited for what another client wrote.

    Only its next start in a pod that is newer than the write proves anything.
    """
    verdicts = judge_fresh([each.expected for each in seen], msgspec.structs.replace(now, last_exit=None))
    note = f"{ended.text}, which does not count against the change: the next start must prove it"
    return Judged(
        pod,
        seen,
        {
            ref: Verdict(each.state, f"{each.text}; {note}", final=each.final) if each.state is State.UNPROVEN else each
            for ref, each in verdicts.items()
        },
        disturbed=disturbed,
    )


def _judge_running(
    expected: Sequence[Expected],
    rest: Sequence[Expected],
    kept: Sequence[Expected],
    before: Reading,
    now: Reading,
    doubts: Mapping[ResourceRef, str],
) -> Verdicts:
    """Judge a sidecar that ran before the change; what a running one cannot prove stays unproven, whatever it lists."""
    obstacles = _with_types({**reload_obstacles(rest, expected, before), **doubts}, rest)
    provable = [each for each in rest if each.ref not in obstacles]
    blocked = {ref: Verdict(State.UNPROVEN, reason) for ref, reason in obstacles.items()}
    return {**blocked, **judge_running(provable, kept, before, now)}


def _adopted_unproven(verdicts: Verdicts, adopted: frozenset[ResourceRef]) -> Verdicts:
    """Return the verdicts on adopted resources that a running sidecar does not prove: no later reading changes them."""
    return {
        ref: Verdict(State.UNPROVEN, f"{ADOPTED}: {each.text}; {_PROVING}", final=True)
        for ref, each in verdicts.items()
        if ref in adopted and each.state is State.UNPROVEN
    }


def fresh_proofs(
    probed: Probed, changes: Changes, written: Mapping[ResourceRef, datetime], proofs: Mapping[ResourceRef, Proof]
) -> Iterator[tuple[ResourceRef, Proof]]:
    """Yield what a sidecar proves of the content before a change, because it started after that was written.

    ``proofs`` are those that it has. After the change nothing would prove it, because the sidecar started before that.
    """
    seen = [each for each in changes.seen_by(frozenset({scope_of(probed.pod)})) if each.old_digest]
    unproven = [each for each in seen if not _proves(proofs, each.ref, each.old_digest)]
    if not unproven:
        return
    now = reading(probed, None, max((written[each.ref] for each in seen if each.ref in written), default=None), "")
    expected = [Expected(each.ref, each.expected.old, None, each.expected.unmarked) for each in unproven]
    verdicts = judge_fresh(expected, now)
    for each in unproven:
        if verdicts[each.ref].state is State.VERIFIED:
            evidence = Evidence(_source(probed.pod), probed.time, verdicts[each.ref].text)
            yield each.ref, Proof(each.old_digest, evidence)


def unsettled_types(pod: Pod, changes: Changes, proofs: Mapping[ResourceRef, Proof]) -> frozenset[str]:
    """Return the types of Components whose present content a sidecar has not proven: it may still initialise them."""
    seen = changes.seen_by(frozenset({scope_of(pod)}))
    waiting = (each for each in seen if each.old_digest and not _has_settled(each, proofs))
    return frozenset(each.expected.component_type for each in waiting) - {""}


def _has_settled(change: Change, proofs: Mapping[ResourceRef, Proof]) -> bool:
    """Return whether a sidecar has proven what it had before, or that it has it no more."""
    return _proves(proofs, change.ref, change.old_digest) or (not change.digest and _is_proven(change, proofs))


def _reloaded_in(pod: Pod, situation: Situation) -> list[ForeignResource]:
    """Return the resources of other owners that the sidecar of a pod may have loaded."""
    scope = scope_of(pod)
    return [
        each for each in situation.reloaded if each.is_loaded_by(scope.namespace, scope.app_id, scope.configuration)
    ]


def _doubts(before: Probed, pod: Pod, rest: Iterable[Change], situation: Situation) -> dict[ResourceRef, str]:
    """Return why running sidecars do not prove resources although their counters rise."""
    unsettled = "what it had before was not proven, so the counters may have risen for that"
    reloaded = _reloaded_in(pod, situation)
    others = {
        each.type: f"Component {each.name} of another owner and the same type changed too: the counter proves nothing"
        for each in reloaded
        if each.type
    }
    types = {**others, **dict.fromkeys(situation.unsettled.get(pod.instance, ()), unsettled)}
    cause = restarted_for(reloaded, before)
    anew = f"{cause} of another owner changed too, for which the sidecar restarts within its process" if cause else ""
    found = {
        each.ref: each.stale_secrets or _doubt(each.expected.component_type, types, anew)
        for each in rest
        if each.digest
    }
    return {ref: reason for ref, reason in found.items() if reason}


def _doubt(component_type: str, types: Mapping[str, str], anew: str) -> str:
    """Return why the counter of a Component is worthless, or ``""``; other kinds have none."""
    return (types.get(component_type, "") or anew) if component_type else ""


def _explained(pod: Pod, situation: Situation) -> frozenset[str] | None:
    """Return the component types whose counters others may have raised; None before these are known."""
    others = frozenset(each.type for each in _reloaded_in(pod, situation)) - {""}
    return others | situation.unsettled.get(pod.instance, frozenset()) if situation.is_foreign_known else None


def _with_types(obstacles: Mapping[ResourceRef, str], rest: Sequence[Expected]) -> dict[ResourceRef, str]:
    """Add the changed Components of a type of which another one cannot be proven: they share a counter."""
    types = {each.component_type: obstacles[each.ref] for each in rest if each.ref in obstacles and each.new}
    shared = {each.ref: types[each.component_type] for each in rest if each.component_type in types and each.new}
    return {**{ref: text for ref, text in shared.items() if ref.kind == "Component"}, **obstacles}


def _proves(proofs: Mapping[ResourceRef, Proof], ref: ResourceRef, digest: str) -> bool:
    return ref in proofs and proofs[ref].digest == digest


def _is_proven(change: Change, proofs: Mapping[ResourceRef, Proof]) -> bool:
    return _proves(proofs, change.ref, change.digest)


def _findings(judged: Judged, workload: Workload, situation: Situation) -> dict[ResourceRef, Finding]:
    failure = situation.failures.get(workload.ref)
    found: dict[ResourceRef, Finding] = {}
    for each in judged.changes:
        verdict = _unless_replaced(judged.verdicts[each.ref], judged.pod, workload, situation)
        if failure is not None and verdict.state is not State.VERIFIED:
            # The sidecar's own error, if there is one, says more than that the restart failed.
            own = f": {verdict.text}" if verdict.state is State.FAILED and verdict.text not in failure.text else ""
            verdict = Verdict(State.FAILED, failure.text + own)
        finding = _finding(verdict, situation.waiting.get(workload.ref, ""), situation, _source(judged.pod))
        proofs = situation.proofs.get(judged.pod.instance, {})
        if finding.state is State.VERIFIED and _is_proven(each, proofs):
            finding = msgspec.structs.replace(finding, evidence=(proofs[each.ref].evidence,))
        cause = failure.cause if failure is not None and finding.state is State.FAILED else None
        found[each.ref] = msgspec.structs.replace(finding, cause=cause)
    return found


def _unless_replaced(verdict: Verdict, pod: Pod, workload: Workload, situation: Situation) -> Verdict:
    """Return the verdict, or an open one if a restart replaces the pod: the new pods will fail too, or prove it.

    A sidecar that restarts within its process, for a Resiliency for example, cancels the initialisation of a Component
    that changes with it, and exits.
    """
    is_old = workload.ref in situation.replaced and pod.restart_digest != situation.digests.get(workload.ref, "")
    if verdict.state is not State.FAILED or not is_old:
        return verdict
    return Verdict(State.UNPROVEN, f"its pod is being replaced; it failed before: {verdict.text}")


def _finding(verdict: Verdict, waiting: str, situation: Situation, source: str = "agent") -> Finding:
    """Return a finding; what is not proven yet is applied until nothing more is waited for."""
    is_open = verdict.state is State.UNPROVEN and not verdict.final and not situation.is_over
    text = f"{verdict.text}; {waiting}" if waiting and verdict.state is State.UNPROVEN else verdict.text
    time = max((each.time for each in situation.now.values()), default=_EPOCH)
    return Finding(state=State.APPLIED if is_open else verdict.state, evidence=(Evidence(source, time, text),))


def _source(pod: Pod) -> str:
    return f"pod {pod.name}"
