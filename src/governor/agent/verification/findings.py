"""Findings: the state and evidence of each resource and workload, as reported. Pure.

A resource is in the worst state that any workload in its scope has for it; without such a workload it is verified. A
workload with an instance that is not judged yet is in that instance's state.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from governor.domain.documents import ResourceRef
from governor.domain.reports import (
    STALLED,
    WORST_FIRST,
    Cause,
    Evidence,
    Finding,
    Instances,
    ResourceReport,
    State,
    WorkloadFinding,
    WorkloadRef,
    WorkloadReport,
    worst,
)
from governor.domain.windows import Restraint

F = TypeVar("F", bound=Finding)

AGENT: Final = "agent"
_FINAL: Final = frozenset({State.VERIFIED, State.FAILED, State.UNPROVEN})
_MAX_NAMED: Final = 3
"""How many instances a summary names; it counts the others."""


class Findings(msgspec.Struct, frozen=True):
    """The content of a report; ``applied`` if any of the delivery reached the sidecars.

    ``unreachable`` if the preflight failed only because a dependency was not reachable. ``restraint`` is what a part of
    the delivery waits for, or the hold under which it was verified. ``restarts_due`` if the agent has still to restart
    workloads for it, as soon as the runtime is fit for that.
    """

    resources: tuple[ResourceReport, ...]
    workloads: tuple[WorkloadReport, ...]
    applied: bool = False
    unreachable: bool = False
    restraint: Restraint | None = None
    restarts_due: bool = False

    @property
    def waits_for(self) -> Restraint | None:
        """What a part of the delivery waits for, or None."""
        return self.restraint if self.restraint is not None and self.restraint.waits else None

    @property
    def failed(self) -> bool:
        """Whether anything failed; unproven is not failed."""
        return any(each.state is State.FAILED for each in (*self.resources, *self.workloads))

    @property
    def verified(self) -> bool:
        """Whether everything is verified and nothing waits."""
        parts = (*self.resources, *self.workloads)
        return self.waits_for is None and all(each.state is State.VERIFIED for each in parts)

    @property
    def rejects_change(self) -> bool:
        """Whether the content of the delivery is the cause of a failure."""
        return any(
            (each.state, each.cause) == (State.FAILED, Cause.CHANGE) for each in (*self.resources, *self.workloads)
        )

    def attributed(self, cause: Cause) -> "Findings":
        """Return the findings with a cause for every failure without one; what is unproven is due to the runtime."""
        causes = {State.FAILED: cause, State.UNPROVEN: Cause.RUNTIME}

        def attribute(each: F) -> F:
            return msgspec.structs.replace(each, cause=each.cause or causes.get(each.state))

        resources = (
            msgspec.structs.replace(attribute(each), workloads=tuple(map(attribute, each.workloads)))
            for each in self.resources
        )
        return msgspec.structs.replace(
            self, resources=tuple(resources), workloads=tuple(map(attribute, self.workloads))
        )

    def equals(self, other: "Findings") -> bool:
        """Return whether both are equal, ignoring the times of the evidence."""
        return _undated(self) == _undated(other)

    @property
    def worst(self) -> Finding:
        """The worst finding; there must be at least one."""
        return min((*self.resources, *self.workloads), key=lambda each: WORST_FIRST.index(each.state))


class InstanceFindings(msgspec.Struct, frozen=True):
    """What one instance of a workload found for the resources in its scope; ``name`` is how texts call it.

    A finding in a state that is not final, such as APPLIED, is one of an instance that is not judged yet.
    """

    name: str
    resources: Mapping[ResourceRef, Finding]


class DriftFindings(msgspec.Struct, frozen=True):
    """How the runtime differs from what was verified, by resource; ``workloads`` are those that may use it.

    ``source`` is that of the evidence. ``is_repairable`` if the agent can repair a part of it. ``is_past`` if all of it
    is as delivered again.
    """

    texts: Mapping[ResourceRef, str]
    workloads: tuple[WorkloadRef, ...]
    source: str
    is_repairable: bool = True
    is_past: bool = False

    def __str__(self) -> str:
        return "; ".join(self.texts.values())


def uniform(
    state: State,
    refs: Iterable[ResourceRef],
    workloads: Mapping[WorkloadRef, int],
    *history: Evidence,
    cause: Cause | None = None,
) -> Findings:
    """Return findings with everything in the same state; ``workloads`` have the numbers of their instances."""
    return Findings(
        tuple(ResourceReport(resource=ref, state=state, evidence=history, cause=cause) for ref in refs),
        tuple(
            WorkloadReport(
                workload=ref, state=state, evidence=history, cause=cause, instances=Instances.count([state] * total)
            )
            for ref, total in workloads.items()
        ),
    )


def rejected(
    reasons: Mapping[ResourceRef, str],
    refs: Iterable[ResourceRef],
    workloads: Mapping[WorkloadRef, int],
    when: datetime,
    *history: Evidence,
) -> Findings:
    """Return the findings of a delivery that was not applied, with the reason by resource."""

    def report(ref: ResourceRef) -> ResourceReport:
        if ref not in reasons:
            return ResourceReport(resource=ref, state=State.RECEIVED, evidence=history)
        evidence = (*history, Evidence(AGENT, when, reasons[ref]))
        return ResourceReport(resource=ref, state=State.FAILED, evidence=evidence)

    unchanged = uniform(State.RECEIVED, (), workloads, *history).workloads
    return Findings(tuple(report(ref) for ref in refs), unchanged)


def waiting(
    restraint: Restraint,
    refs: Iterable[ResourceRef],
    workloads: Mapping[WorkloadRef, int],
    when: datetime,
    *history: Evidence,
) -> Findings:
    """Return the findings of a delivery of which nothing is applied, because of a restraint."""
    found = uniform(State.RECEIVED, refs, workloads, *history, Evidence(AGENT, when, restraint.message))
    return msgspec.structs.replace(found, restraint=restraint)


def beside(found: Findings, current: Findings) -> Findings:
    """Return the findings of a delivery that waits, with what has stalled of the one that is in use."""
    resources = {each.resource: each for each in current.resources if each.state in STALLED}
    workloads = {each.workload: each for each in current.workloads if each.state in STALLED}
    return msgspec.structs.replace(
        found,
        resources=tuple(resources.get(each.resource, each) for each in found.resources),
        workloads=tuple(workloads.get(each.workload, each) for each in found.workloads),
    )


def postponed(found: Mapping[ResourceRef, Finding], restraint: Restraint) -> dict[ResourceRef, Finding]:
    """Return what an instance found, with what only a restart will prove as applied until then."""

    def postpone(each: Finding) -> Finding:
        if each.state not in (State.UNPROVEN, State.APPLIED) or not each.evidence:
            return each
        *earlier, last = each.evidence
        last = msgspec.structs.replace(last, text=f"{last.text}; not restarted: {restraint.message}")
        return msgspec.structs.replace(each, state=State.APPLIED, evidence=(*earlier, last))

    return {ref: postpone(each) for ref, each in found.items()}


def combine(
    refs: Iterable[ResourceRef],
    by_workload: Mapping[WorkloadRef, Sequence[InstanceFindings]],
    when: datetime,
    *history: Evidence,
    resource_notes: Mapping[ResourceRef, str] | None = None,
    workload_notes: Mapping[WorkloadRef, str] | None = None,
) -> Findings:
    """Combine what the instances of each workload found for the resources in their scope.

    The notes are on resources and workloads as such, whatever the instances found.
    """
    on_resources, on_workloads = resource_notes or {}, workload_notes or {}
    return Findings(
        tuple(
            _resource_report(ref, by_workload, when, (*history, *_noted(on_resources.get(ref), when))) for ref in refs
        ),
        tuple(
            _workload_report(workload, found, when, _noted(on_workloads.get(workload), when))
            for workload, found in by_workload.items()
        ),
        applied=True,
    )


def _noted(note: str | None, when: datetime) -> tuple[Evidence, ...]:
    return (Evidence(AGENT, when, note),) if note else ()


def _resource_report(
    ref: ResourceRef,
    by_workload: Mapping[WorkloadRef, Sequence[InstanceFindings]],
    when: datetime,
    history: tuple[Evidence, ...],
) -> ResourceReport:
    inside = []
    for workload, instances in by_workload.items():
        found = [(each.name, each.resources[ref]) for each in instances if ref in each.resources]
        if found:
            one = _summarise(found, when)
            inside.append(WorkloadFinding(workload=workload, state=one.state, evidence=one.evidence, cause=one.cause))
    out_of_scope = Evidence(AGENT, when, "no sidecar is in its scope: nothing to verify")
    state = worst(each.state for each in inside)
    return ResourceReport(
        resource=ref,
        state=state,
        evidence=history if inside else (*history, out_of_scope),
        cause=_cause(state, inside),
        workloads=tuple(inside),
    )


def _workload_report(
    workload: WorkloadRef, instances: Sequence[InstanceFindings], when: datetime, notes: tuple[Evidence, ...]
) -> WorkloadReport:
    nothing = "no resource of this delivery is in its scope" if instances else "it has no instance: nothing to verify"
    default = Finding(state=State.VERIFIED, evidence=(Evidence(AGENT, when, nothing),))
    found = [(each.name, _worst_finding(each) or default) for each in instances]
    one = _summarise(found, when) if any(each.resources for each in instances) else default
    counts = Instances.count(each.state for _, each in found)
    evidence = (*one.evidence, *notes)
    return WorkloadReport(workload=workload, state=one.state, evidence=evidence, cause=one.cause, instances=counts)


def drifted(found: Findings, drift: DriftFindings, when: datetime, note: str = "") -> Findings:
    """Return the findings with drifted resources FAILED and the workloads that load them UNPROVEN."""

    def resource(each: ResourceReport) -> ResourceReport:
        if each.resource not in drift.texts:
            return each
        evidence = Evidence(drift.source, when, drift.texts[each.resource] + note)
        return ResourceReport(
            resource=each.resource, state=State.FAILED, cause=Cause.RUNTIME, evidence=(*each.evidence, evidence)
        )

    def workload(each: WorkloadReport) -> WorkloadReport:
        if each.workload not in drift.workloads:
            return each
        counts = Instances.count([State.UNPROVEN] * each.instances.total)
        evidence = (Evidence(drift.source, when, "a resource that it loads has drifted"),)
        return msgspec.structs.replace(
            each, state=State.UNPROVEN, cause=Cause.RUNTIME, instances=counts, evidence=evidence
        )

    resources, workloads = map(resource, found.resources), map(workload, found.workloads)
    return msgspec.structs.replace(found, resources=tuple(resources), workloads=tuple(workloads))


def rolled_back(found: Findings, when: datetime, text: str) -> Findings:
    """Return the findings of a failed delivery that is no longer in use; ``text`` says what replaced it."""
    now = Evidence(AGENT, when, text)
    resources = tuple(each if each.state is State.FAILED else _received(each, now) for each in found.resources)
    return Findings(
        resources, tuple(_rolled_back_workload(each, now, applied=found.applied) for each in found.workloads)
    )


def deferred(found: Findings, when: datetime, text: str) -> Findings:
    """Return the findings of a delivery whose preflight will be repeated; ``text`` says when and why."""
    now = Evidence(AGENT, when, text)
    resources = tuple(_received(each, now) if each.state is State.FAILED else each for each in found.resources)
    return msgspec.structs.replace(found, resources=resources)


def _rolled_back_workload(report: WorkloadReport, now: Evidence, *, applied: bool) -> WorkloadReport:
    if not applied:
        return msgspec.structs.replace(report, evidence=(*report.evidence, now))
    counts = Instances.count([State.FAILED] * report.instances.total)
    return msgspec.structs.replace(
        report, state=State.FAILED, cause=Cause.CHANGE, instances=counts, evidence=(*report.evidence, now)
    )


def _received(report: ResourceReport, now: Evidence) -> ResourceReport:
    return msgspec.structs.replace(
        report, state=State.RECEIVED, cause=None, evidence=(*report.all_evidence, now), workloads=()
    )


def _cause(state: State, findings: Iterable[Finding]) -> Cause | None:
    """Return the cause that all findings in the worst state have in common, or None."""
    causes = {each.cause for each in findings if each.state is state}
    return causes.pop() if len(causes) == 1 else None


def _worst_finding(instance: InstanceFindings) -> Finding | None:
    """Return the state of an instance with its last evidence and its cause, or None if nothing is in its scope."""
    found = instance.resources.values()
    if not found:
        return None
    state = _state(each.state for each in found)
    evidence = [item for each in found if each.state is state for item in each.evidence]
    return Finding(state=state, evidence=tuple(evidence[-1:]), cause=_cause(state, found))


def _summarise(found: Sequence[tuple[str, Finding]], when: datetime) -> Finding:
    """Return the finding of the only instance, or one with the counts of several that names those which stalled."""
    findings = [each for _, each in found]
    if len(findings) == 1:
        return findings[0]
    state = _state(each.state for each in findings)
    time = max((item.time for each in findings for item in each.evidence), default=when)
    return Finding(state=state, evidence=(Evidence(AGENT, time, _counts(found)),), cause=_cause(state, findings))


def _counts(found: Sequence[tuple[str, Finding]]) -> str:
    verified = sum(each.state is State.VERIFIED for _, each in found)
    stalled = sorted(
        ((name, each) for name, each in found if each.state in STALLED),
        key=lambda item: WORST_FIRST.index(item[1].state),
    )
    named = [f"{name}: {each.evidence[-1].text if each.evidence else each.state}" for name, each in stalled]
    more = [f"and {len(named) - _MAX_NAMED} more"] if len(named) > _MAX_NAMED else []
    return "; ".join([f"{verified} of {len(found)} instances verified", *named[:_MAX_NAMED], *more])


def _state(states: Iterable[State]) -> State:
    """Return the worst state; if some are not final, the worst of these."""
    found = tuple(states)
    pending = [each for each in found if each not in _FINAL]
    return worst(pending or found)


def _undated(found: Findings) -> tuple[object, ...]:
    resources = (
        (each.resource, _content(each), [(one.workload, _content(one)) for one in each.workloads])
        for each in found.resources
    )
    workloads = ((each.workload, each.instances, _content(each)) for each in found.workloads)
    return (found.restraint, *resources, *workloads)


def _content(finding: Finding) -> tuple[object, ...]:
    return finding.state, finding.cause, [(each.source, each.text) for each in finding.evidence]
