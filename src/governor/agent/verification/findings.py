"""Findings: the state and evidence of each resource and workload, as reported. Pure.

A resource is in the worst state that any sidecar in its scope has for it; without such a sidecar it is verified.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from governor.domain.documents import ResourceRef
from governor.domain.reports import WORST_FIRST, Evidence, Finding, ResourceReport, State, WorkloadReport, worst

AGENT: Final = "agent"


class Findings(msgspec.Struct, frozen=True):
    """The content of a report; ``applied`` if any of the delivery reached the sidecars."""

    resources: tuple[ResourceReport, ...]
    workloads: tuple[WorkloadReport, ...]
    applied: bool = False

    @property
    def failed(self) -> bool:
        """Whether anything failed; unproven is not failed."""
        return any(each.state is State.FAILED for each in (*self.resources, *self.workloads))

    @property
    def verified(self) -> bool:
        """Whether everything is verified."""
        return all(each.state is State.VERIFIED for each in (*self.resources, *self.workloads))

    @property
    def worst(self) -> Finding:
        """The worst finding; there must be at least one."""
        return min((*self.resources, *self.workloads), key=lambda each: WORST_FIRST.index(each.state))


def uniform(state: State, refs: Iterable[ResourceRef], workloads: Iterable[str], *history: Evidence) -> Findings:
    """Return findings with everything in the same state."""
    return Findings(
        tuple(ResourceReport(resource=ref, state=state, evidence=history) for ref in refs),
        tuple(WorkloadReport(workload=name, state=state, evidence=history) for name in workloads),
    )


def rejected(
    reasons: Mapping[ResourceRef, str],
    refs: Iterable[ResourceRef],
    workloads: Iterable[str],
    when: datetime,
    *history: Evidence,
) -> Findings:
    """Return the findings of a delivery that was not applied, with the reason by resource."""

    def report(ref: ResourceRef) -> ResourceReport:
        if ref not in reasons:
            return ResourceReport(resource=ref, state=State.RECEIVED, evidence=history)
        return ResourceReport(
            resource=ref, state=State.FAILED, evidence=(*history, Evidence(AGENT, when, reasons[ref]))
        )

    unchanged = uniform(State.RECEIVED, (), workloads, *history).workloads
    return Findings(tuple(report(ref) for ref in refs), unchanged)


def combine(
    refs: Iterable[ResourceRef],
    by_workload: Mapping[str, Mapping[ResourceRef, Finding]],
    when: datetime,
    *history: Evidence,
) -> Findings:
    """Combine what each workload found for the resources in its scope."""
    resources = []
    for ref in refs:
        by_sidecar = [found[ref] for found in by_workload.values() if ref in found]
        state, evidence = _fold(by_sidecar, Evidence(AGENT, when, "no sidecar is in its scope: nothing to verify"))
        resources.append(ResourceReport(resource=ref, state=state, evidence=(*history, *evidence)))
    workloads = []
    for name, found in by_workload.items():
        nothing = Evidence(AGENT, when, "no resource of this delivery is in its scope")
        state, evidence = _fold(list(found.values()), nothing)
        workloads.append(WorkloadReport(workload=name, state=state, evidence=evidence[-1:]))
    return Findings(tuple(resources), tuple(workloads), applied=True)


def rolled_back(found: Findings, when: datetime, text: str) -> Findings:
    """Return the findings of a failed delivery that is no longer in use; ``text`` says what replaced it."""
    now = Evidence(AGENT, when, text)
    resources = tuple(each if each.state is State.FAILED else _received(each, now) for each in found.resources)
    return Findings(
        resources, tuple(_rolled_back_workload(each, now, applied=found.applied) for each in found.workloads)
    )


def _rolled_back_workload(report: WorkloadReport, now: Evidence, *, applied: bool) -> WorkloadReport:
    state = State.FAILED if applied else report.state
    return msgspec.structs.replace(report, state=state, evidence=(*report.evidence, now))


def _received(report: ResourceReport, now: Evidence) -> ResourceReport:
    return msgspec.structs.replace(report, state=State.RECEIVED, evidence=(*report.evidence, now))


def _fold(findings: Sequence[Finding], default: Evidence) -> tuple[State, tuple[Evidence, ...]]:
    """Return the worst state and all evidence, that of the worst state last."""
    if not findings:
        return State.VERIFIED, (default,)
    state = worst(each.state for each in findings)
    ordered = sorted(findings, key=lambda each: each.state is state)
    return state, tuple(item for each in ordered for item in each.evidence)
