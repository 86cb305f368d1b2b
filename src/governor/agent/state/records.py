"""What the agent stores on every platform, and how older versions stored it."""

from typing import Final

import msgspec

from governor.agent.verification.findings import Findings
from governor.domain.reports import Finding, Instances, ResourceReport, WorkloadRef, WorkloadReport
from governor.wire.deliveries import SignedDelivery
from governor.wire.reports import WorkloadReport1, workload_from_format_1
from governor.wire.rest import Enrolment

FIRST_KEY: Final = "identity.key"


class Membership(msgspec.Struct, frozen=True):
    """The server that this agent joined, and its enrolment there.

    ``key`` is the name of the private key that enrolled. ``token`` identifies the last join token that was used or
    rejected. ``former_keys`` are the delivery keys of earlier servers, whose deliveries may still be stored.
    """

    server: str
    ca: str
    enrolment: Enrolment
    key: str = FIRST_KEY
    token: str = ""
    former_keys: tuple[str, ...] = ()


class VerifiedDeliveries(msgspec.Struct, frozen=True):
    """The last fully verified delivery and, while that is on trial, its predecessor."""

    last: SignedDelivery
    before: SignedDelivery | None = None
    on_trial: bool = False


class Trial(msgspec.Struct, frozen=True):
    """A change that was not verified in its window: failed or unproven, with the findings."""

    sequence: int
    attempt: int
    failed: bool
    found: Findings
    incarnation: str = ""


class StoredTrial(msgspec.Struct, frozen=True):
    """A trial as any version of the agent may have stored it: version 0.1 named a workload by its name only."""

    sequence: int
    attempt: int
    failed: bool
    found: "_StoredFindings"
    incarnation: str = ""

    def trial(self) -> Trial:
        """Return the trial in its current form."""
        workloads = tuple(each.workload_report() for each in self.found.workloads)
        found = Findings(self.found.resources, workloads, self.found.applied, self.found.unreachable)
        return Trial(self.sequence, self.attempt, self.failed, found, self.incarnation)


class _StoredWorkload(Finding, frozen=True, kw_only=True):
    workload: WorkloadRef | str
    instances: Instances = Instances()

    def workload_report(self) -> WorkloadReport:
        if isinstance(self.workload, str):
            old = WorkloadReport1(state=self.state, evidence=self.evidence, workload=self.workload)
            return workload_from_format_1(old)
        return WorkloadReport(
            state=self.state,
            evidence=self.evidence,
            cause=self.cause,
            workload=self.workload,
            instances=self.instances,
        )


class _StoredFindings(msgspec.Struct, frozen=True):
    resources: tuple[ResourceReport, ...]
    workloads: tuple[_StoredWorkload, ...]
    applied: bool = False
    unreachable: bool = False
