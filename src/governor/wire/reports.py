"""Reports on the wire: format 2 is the domain's ``Report``; format 1 is converted from and to it. Pure.

Format 1 names a workload by its name only, has no causes, and orders the processes of an agent by ``boot`` instead of
the server's session.
"""

from typing import Final

import msgspec

from governor.domain.documents import ResourceRef
from governor.domain.reports import (
    SIDECAR,
    Evidence,
    Instances,
    Report,
    ResourceReport,
    State,
    WorkloadRef,
    WorkloadReport,
)
from governor.domain.windows import Instant

FORMATS: Final = (1, 2)


class ResourceReport1(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one resource in format 1."""

    state: State
    evidence: tuple[Evidence, ...] = ()
    resource: ResourceRef


class WorkloadReport1(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one sidecar in format 1."""

    state: State
    evidence: tuple[Evidence, ...] = ()
    workload: str


class Report1(msgspec.Struct, frozen=True, rename="camel", tag_field="format", tag=1):
    """A report in format 1; ``boot`` identifies the process of the agent."""

    runtime: str
    sequence: int
    attempt: int
    digest: str
    boot: str
    n: int
    time: Instant
    agent: str
    resources: tuple[ResourceReport1, ...]
    workloads: tuple[WorkloadReport1, ...]


def to_format_1(report: Report, boot: str) -> Report1:
    """Return a report for a server that reads only format 1."""
    return Report1(
        report.runtime,
        report.sequence,
        report.attempt,
        report.digest,
        boot,
        report.n,
        report.time,
        report.agent,
        tuple(
            ResourceReport1(state=each.state, evidence=each.all_evidence, resource=each.resource)
            for each in report.resources
        ),
        tuple(
            WorkloadReport1(state=each.state, evidence=each.evidence, workload=each.workload.name)
            for each in report.workloads
        ),
    )


def from_format_1(report: Report1, session: int) -> Report:
    """Return the report of an agent that writes only format 1; ``session`` is that of its watch."""
    return Report(
        report.runtime,
        report.sequence,
        report.attempt,
        report.digest,
        session,
        report.n,
        report.time,
        report.agent,
        tuple(map(resource_from_format_1, report.resources)),
        tuple(map(workload_from_format_1, report.workloads)),
    )


def resource_from_format_1(report: ResourceReport1) -> ResourceReport:
    """Return the state of a resource in the current form."""
    return ResourceReport(state=report.state, evidence=report.evidence, resource=report.resource)


def workload_from_format_1(report: WorkloadReport1) -> WorkloadReport:
    """Return the state of a sidecar in the current form."""
    return WorkloadReport(
        state=report.state,
        evidence=report.evidence,
        workload=WorkloadRef("", SIDECAR, report.workload),
        instances=Instances.count([report.state]),
    )
