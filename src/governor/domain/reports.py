"""Reports of an agent on one delivery, with evidence. A report acknowledges if everything in it is verified."""

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from governor.domain.documents import ResourceRef
from governor.domain.windows import Instant, Restraint


class State(enum.StrEnum):
    """The progress of a resource or workload with one delivery."""

    RECEIVED = "received"
    PREFLIGHTED = "preflighted"
    APPLIED = "applied"
    VERIFIED = "verified"
    FAILED = "failed"
    UNPROVEN = "unproven"


WORST_FIRST: Final = (
    State.FAILED,
    State.UNPROVEN,
    State.RECEIVED,
    State.PREFLIGHTED,
    State.APPLIED,
    State.VERIFIED,
)
STALLED: Final = frozenset({State.FAILED, State.UNPROVEN})
"""States that are not progress towards VERIFIED."""


class Cause(enum.StrEnum):
    """What a failed or unproven finding is due to."""

    CHANGE = "change"
    """The content of the delivery: a retry of the same content fails again."""
    AGENT = "agent"
    """Trouble of the agent itself, such as a full disk: it retries."""
    RUNTIME = "runtime"
    """The runtime: it became unhealthy after the change was verified, or it drifted."""


def worst(states: Iterable[State]) -> State:
    """Return the worst of some states, VERIFIED if there are none."""
    return min(states, key=WORST_FIRST.index, default=State.VERIFIED)


class Evidence(msgspec.Struct, frozen=True):
    """An observation, with its source and time."""

    source: str
    time: Instant
    text: str


class WorkloadRef(msgspec.Struct, frozen=True, order=True):
    """A reference to a workload of a runtime, such as a Deployment or a sidecar on a machine."""

    namespace: str
    kind: str
    name: str

    def __str__(self) -> str:
        return "/".join(filter(None, (self.namespace, self.kind, self.name)))


SIDECAR: Final = "Sidecar"
"""The kind of a workload that is a sidecar on a machine."""


class Instances(msgspec.Struct, frozen=True):
    """The number of instances of a workload, and how many of them are in each final state."""

    total: int = 0
    verified: int = 0
    failed: int = 0
    unproven: int = 0

    @classmethod
    def count(cls, states: Iterable[State]) -> "Instances":
        """Count instances by their states."""
        found = tuple(states)
        return cls(len(found), *map(found.count, (State.VERIFIED, State.FAILED, State.UNPROVEN)))


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one part of a delivery, with its evidence; ``cause`` is set if it is failed or unproven."""

    state: State
    evidence: tuple[Evidence, ...] = ()
    cause: Cause | None = None

    @property
    def all_evidence(self) -> tuple[Evidence, ...]:
        """Return the evidence of the finding and of its parts, the decisive one last."""
        return self.evidence


class WorkloadFinding(Finding, frozen=True, kw_only=True):
    """The state of one resource in one workload."""

    workload: WorkloadRef


class ResourceReport(Finding, frozen=True, kw_only=True):
    """The state of one resource, the worst of its workloads; a removed resource is verified when it is gone."""

    resource: ResourceRef
    workloads: tuple[WorkloadFinding, ...] = ()

    @property
    def all_evidence(self) -> tuple[Evidence, ...]:
        """Return the evidence on the resource, then that of its workloads, those in its own state last."""
        ordered = sorted(self.workloads, key=lambda each: each.state is self.state)
        return self.evidence + tuple(evidence for each in ordered for evidence in each.evidence)


class WorkloadReport(Finding, frozen=True, kw_only=True):
    """The state of one workload under this delivery, with the counts of its instances."""

    workload: WorkloadRef
    instances: Instances = Instances()


class Check(msgspec.Struct, frozen=True, rename="camel"):
    """Confirms that a report, identified by its numbers, is still true."""

    sequence: int
    attempt: int
    session: int
    n: int


class Report(msgspec.Struct, frozen=True, rename="camel", tag_field="format", tag=2, omit_defaults=True):
    """One report of an agent.

    ``session`` is the number that the server gave to the agent's last watch, ``n`` increases within one process of the
    agent. The report with the highest (session, n) about a delivery and attempt wins. ``restraint`` is set while the
    runtime is held, or a part of the delivery waits.
    """

    runtime: str
    sequence: int
    attempt: int
    digest: str
    session: int
    n: int
    time: Instant
    agent: str
    resources: tuple[ResourceReport, ...]
    workloads: tuple[WorkloadReport, ...]
    restraint: Restraint | None = None

    @property
    def waits_for(self) -> Restraint | None:
        """Return what a part of the delivery waits for, or None."""
        return self.restraint if self.restraint is not None and self.restraint.waits else None

    @property
    def findings(self) -> tuple[ResourceReport | WorkloadReport, ...]:
        """Return the findings on resources and workloads."""
        return (*self.resources, *self.workloads)

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Return what orders reports: a later one is greater. No clock takes part in it."""
        return self.sequence, self.attempt, self.session, self.n

    @property
    def check(self) -> Check:
        """Return the check of this report."""
        return Check(self.sequence, self.attempt, self.session, self.n)


def acknowledged(report: Report) -> bool:
    """Whether every finding is verified and nothing waits; also true without findings."""
    return report.waits_for is None and all(part.state is State.VERIFIED for part in report.findings)


def overall(report: Report) -> State:
    """Return the worst state of a report's findings."""
    return worst(part.state for part in report.findings)
