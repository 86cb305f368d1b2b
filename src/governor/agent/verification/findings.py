"""From verdicts to what is reported: the state of each resource and each workload, with its evidence. Pure.

A resource is as far as the sidecar that is least far with it; one that no sidecar is meant to load has nothing to show.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from governor.domain.documents import ResourceRef
from governor.domain.reports import WORST_FIRST, Evidence, Finding, ResourceReport, State, WorkloadReport, worst

AGENT: Final = "agent"


class Findings(msgspec.Struct, frozen=True):
    """The two halves of a report; ``applied`` when the sidecars were given any of it."""

    resources: tuple[ResourceReport, ...]
    workloads: tuple[WorkloadReport, ...]
    applied: bool = False

    @property
    def failed(self) -> bool:
        """Whether anything was seen to go wrong; what is only unproven did not."""
        return any(each.state is State.FAILED for each in (*self.resources, *self.workloads))

    @property
    def verified(self) -> bool:
        """Whether nothing is left to prove."""
        return all(each.state is State.VERIFIED for each in (*self.resources, *self.workloads))

    @property
    def worst(self) -> Finding:
        """What a person should be told first; there must be something."""
        return min((*self.resources, *self.workloads), key=lambda each: WORST_FIRST.index(each.state))


def uniform(state: State, refs: Iterable[ResourceRef], workloads: Iterable[str], *history: Evidence) -> Findings:
    """Everything is in the same state."""
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
    """Nothing was applied, because of these resources."""

    def report(ref: ResourceRef) -> ResourceReport:
        if ref not in reasons:
            return ResourceReport(resource=ref, state=State.RECEIVED, evidence=history)
        return ResourceReport(
            resource=ref, state=State.FAILED, evidence=(*history, Evidence(AGENT, when, reasons[ref]))
        )

    untouched = uniform(State.RECEIVED, (), workloads, *history).workloads
    return Findings(tuple(report(ref) for ref in refs), untouched)


def combine(
    refs: Iterable[ResourceRef],
    by_workload: Mapping[str, Mapping[ResourceRef, Finding]],
    when: datetime,
    *history: Evidence,
) -> Findings:
    """Fold what each workload showed of each resource in its scope."""
    resources = []
    for ref in refs:
        shown = [found[ref] for found in by_workload.values() if ref in found]
        state, evidence = _fold(shown, Evidence(AGENT, when, "no sidecar is in its scope: nothing to verify"))
        resources.append(ResourceReport(resource=ref, state=state, evidence=(*history, *evidence)))
    workloads = []
    for name, found in by_workload.items():
        nothing = Evidence(AGENT, when, "nothing of this delivery is in its scope")
        state, evidence = _fold(list(found.values()), nothing)
        workloads.append(WorkloadReport(workload=name, state=state, evidence=evidence[-1:]))
    return Findings(tuple(resources), tuple(workloads), applied=True)


def rolled_back(found: Findings, when: datetime, text: str) -> Findings:
    """What failed, when nothing of the delivery is in use any more; ``text`` says what is used in its place."""
    now = Evidence(AGENT, when, text)
    resources = tuple(each if each.state is State.FAILED else _received(each, now) for each in found.resources)
    return Findings(resources, tuple(_back(each, now, applied=found.applied) for each in found.workloads))


def _back(report: WorkloadReport, now: Evidence, *, applied: bool) -> WorkloadReport:
    state = State.FAILED if applied else report.state
    return msgspec.structs.replace(report, state=state, evidence=(*report.evidence, now))


def _received(report: ResourceReport, now: Evidence) -> ResourceReport:
    return msgspec.structs.replace(report, state=State.RECEIVED, evidence=(*report.evidence, now))


def _fold(shown: Sequence[Finding], nothing: Evidence) -> tuple[State, tuple[Evidence, ...]]:
    """The worst state; the evidence for it comes last, where a reader looks first."""
    if not shown:
        return State.VERIFIED, (nothing,)
    state = worst(each.state for each in shown)
    ordered = sorted(shown, key=lambda each: each.state is state)
    return state, tuple(item for each in ordered for item in each.evidence)
