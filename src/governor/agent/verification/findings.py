"""Findings: the state and evidence of each resource and workload, as reported. Pure.

A resource is in the worst state that any sidecar in its scope has for it; without such a sidecar it is verified.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from governor.domain.documents import ResourceRef
from governor.domain.reports import (
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

F = TypeVar("F", bound=Finding)

AGENT: Final = "agent"
FILE: Final = "file"


class Findings(msgspec.Struct, frozen=True):
    """The content of a report; ``applied`` if any of the delivery reached the sidecars.

    ``unreachable`` if the preflight failed only because a dependency was not reachable.
    """

    resources: tuple[ResourceReport, ...]
    workloads: tuple[WorkloadReport, ...]
    applied: bool = False
    unreachable: bool = False

    @property
    def failed(self) -> bool:
        """Whether anything failed; unproven is not failed."""
        return any(each.state is State.FAILED for each in (*self.resources, *self.workloads))

    @property
    def verified(self) -> bool:
        """Whether everything is verified."""
        return all(each.state is State.VERIFIED for each in (*self.resources, *self.workloads))

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


class DriftFindings(msgspec.Struct, frozen=True):
    """How the runtime differs from what was verified, by resource; ``workloads`` are those that may use it.

    ``is_repairable`` if the agent can repair a part of it.
    """

    texts: Mapping[ResourceRef, str]
    workloads: tuple[WorkloadRef, ...]
    is_repairable: bool = True

    def __str__(self) -> str:
        return "; ".join(self.texts.values())


def uniform(
    state: State,
    refs: Iterable[ResourceRef],
    workloads: Iterable[WorkloadRef],
    *history: Evidence,
    cause: Cause | None = None,
) -> Findings:
    """Return findings with everything in the same state."""
    return Findings(
        tuple(ResourceReport(resource=ref, state=state, evidence=history, cause=cause) for ref in refs),
        tuple(
            WorkloadReport(workload=ref, state=state, evidence=history, cause=cause, instances=Instances.count([state]))
            for ref in workloads
        ),
    )


def rejected(
    reasons: Mapping[ResourceRef, str],
    refs: Iterable[ResourceRef],
    workloads: Iterable[WorkloadRef],
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


def combine(
    refs: Iterable[ResourceRef],
    by_workload: Mapping[WorkloadRef, Mapping[ResourceRef, Finding]],
    when: datetime,
    *history: Evidence,
) -> Findings:
    """Combine what each workload, with one instance, found for the resources in its scope."""
    out_of_scope = Evidence(AGENT, when, "no sidecar is in its scope: nothing to verify")
    resources = []
    for ref in refs:
        inside = tuple(
            WorkloadFinding(
                workload=workload, state=found[ref].state, evidence=found[ref].evidence, cause=found[ref].cause
            )
            for workload, found in by_workload.items()
            if ref in found
        )
        evidence = history if inside else (*history, out_of_scope)
        state = worst(each.state for each in inside)
        cause = _cause(state, inside)
        resources.append(ResourceReport(resource=ref, state=state, evidence=evidence, cause=cause, workloads=inside))
    workloads = []
    for workload, found in by_workload.items():
        nothing = Evidence(AGENT, when, "no resource of this delivery is in its scope")
        state, evidence = _fold(list(found.values()), nothing)
        counts, cause = Instances.count([state]), _cause(state, found.values())
        workloads.append(
            WorkloadReport(workload=workload, state=state, evidence=evidence[-1:], cause=cause, instances=counts)
        )
    return Findings(tuple(resources), tuple(workloads), applied=True)


def drifted(found: Findings, drift: DriftFindings, source: str, when: datetime, note: str = "") -> Findings:
    """Return the findings with drifted resources FAILED and the workloads that load them UNPROVEN."""

    def resource(each: ResourceReport) -> ResourceReport:
        if each.resource not in drift.texts:
            return each
        evidence = Evidence(source, when, drift.texts[each.resource] + note)
        return ResourceReport(
            resource=each.resource, state=State.FAILED, cause=Cause.RUNTIME, evidence=(*each.evidence, evidence)
        )

    def workload(each: WorkloadReport) -> WorkloadReport:
        if each.workload not in drift.workloads:
            return each
        counts = Instances.count([State.UNPROVEN])
        evidence = (Evidence(source, when, "a resource that it loads has drifted"),)
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
    counts = Instances.count([State.FAILED])
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


def _fold(findings: Sequence[Finding], default: Evidence) -> tuple[State, tuple[Evidence, ...]]:
    """Return the worst state and all evidence, that of the worst state last."""
    if not findings:
        return State.VERIFIED, (default,)
    state = worst(each.state for each in findings)
    ordered = sorted(findings, key=lambda each: each.state is state)
    return state, tuple(item for each in ordered for item in each.evidence)


def _undated(found: Findings) -> tuple[object, ...]:
    resources = (
        (each.resource, _content(each), [(one.workload, _content(one)) for one in each.workloads])
        for each in found.resources
    )
    return (*resources, *((each.workload, each.instances, _content(each)) for each in found.workloads))


def _content(finding: Finding) -> tuple[object, ...]:
    return finding.state, finding.cause, [(each.source, each.text) for each in finding.evidence]
