"""Which Events a result is worth: only transitions, so that a check that finds nothing new writes none. Pure.

A resource is announced again only when its content or its state changes, a workload when that of any resource in its
scope does: an unchanged resource of a new delivery is no news. That a change is applied is said of the resource only:
of its workloads, which may be many, an Event says what became of it.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

from governor.agent.verification.findings import DriftFindings, Findings
from governor.domain.bundles import Delivery
from governor.domain.documents import ResourceRef, resource_ref
from governor.domain.reports import Cause, Finding, ResourceReport, State, WorkloadRef, WorkloadReport
from governor.kube.controller.events import EventType
from governor.values.digest import digest

APPLIED: Final = "Applied"
VERIFIED: Final = "Verified"
FAILED: Final = "Failed"
UNPROVEN: Final = "Unproven"
DRIFT_FOUND: Final = "DriftFound"
ROLLED_BACK: Final = "RolledBack"

_STALLED: Final = {State.FAILED: FAILED, State.UNPROVEN: UNPROVEN}

Subject: TypeAlias = ResourceRef | WorkloadRef


class Notice(msgspec.Struct, frozen=True):
    """The content of an Event."""

    type: EventType
    reason: str
    message: str


class Current(msgspec.Struct, frozen=True):
    """The state of a resource or workload now: of which content, in which delivery, and what an Event says of it."""

    content: str
    sequence: int
    notice: Notice
    applied: bool = True

    def is_news(self, last: "Current | None") -> bool:
        """Return whether this is a transition; what a new process finds verified is none."""
        if last is None:
            return self.notice.reason != VERIFIED
        if self.content != last.content:
            return True
        reason, before = self.notice.reason, last.notice.reason
        return reason != before and (reason != APPLIED or before == DRIFT_FOUND)

    def undoes(self, last: "Current | None") -> bool:
        """Return whether an older delivery replaces one that was applied and failed."""
        has_failed = last is not None and last.applied and last.notice.type is EventType.WARNING
        return has_failed and last is not None and self.sequence < last.sequence and self.content != last.content


def transitions(
    last: Mapping[Subject, Current], now: Mapping[Subject, Current]
) -> tuple[dict[Subject, Current], list[tuple[Subject, Notice]]]:
    """Return what is to be remembered, and the Events that are due."""
    news = {subject: each for subject, each in now.items() if each.is_news(last.get(subject))}
    first = {subject: each for subject, each in now.items() if subject not in last}
    events = {subject: _event(each, last.get(subject)) for subject, each in news.items()}
    due = [(subject, each) for subject, each in events.items() if not _is_pending(subject, each)]
    return {**last, **first, **news}, due


def _is_pending(subject: Subject, notice: Notice) -> bool:
    return isinstance(subject, WorkloadRef) and notice.reason == APPLIED


def _event(current: Current, last: Current | None) -> Notice:
    if current.notice.type is EventType.WARNING or not current.undoes(last):
        return current.notice
    message = f"rolled back to delivery {current.sequence}: {current.notice.message}"
    return Notice(EventType.NORMAL, ROLLED_BACK, message)


def contents_of(delivery: Delivery, namespace: str) -> dict[Subject, str]:
    """Return what identifies the content of each resource; ``namespace`` is that of manifests without one."""
    return {
        resource_ref(manifest, namespace): f"{digest(manifest)} {delivery.attempt}" for manifest in delivery.resources
    }


def states_of(delivery: Delivery, contents: Mapping[Subject, str], found: Findings) -> dict[Subject, Current]:
    """Return the state of each resource and workload that an Event may announce."""
    resources: dict[Subject, Notice] = {
        each.resource: notice for each in found.resources if (notice := _resource_notice(delivery, each))
    }
    workloads: dict[Subject, Notice] = {
        each.workload: notice for each in found.workloads if (notice := _workload_notice(delivery, each))
    }
    scopes = _scopes(found.resources, contents)
    loaded = {subject: scopes[subject] for subject in workloads if subject in scopes}
    return {
        subject: Current(content, delivery.sequence, notice, found.applied)
        for subject, content in {**contents, **loaded}.items()
        if (notice := resources.get(subject) or workloads.get(subject))
    }


def drift_states(delivery: Delivery, contents: Mapping[Subject, str], drift: DriftFindings) -> dict[Subject, Current]:
    """Return the state of each resource that has drifted."""
    return {
        ref: Current(contents[ref], delivery.sequence, Notice(EventType.WARNING, DRIFT_FOUND, text))
        for ref, text in drift.texts.items()
        if ref in contents
    }


def _scopes(resources: Iterable[ResourceReport], contents: Mapping[Subject, str]) -> dict[Subject, str]:
    """Return the content that each workload loads."""
    loaded: dict[Subject, list[str]] = {}
    for each in resources:
        for one in each.workloads:
            loaded.setdefault(one.workload, []).append(contents.get(each.resource, ""))
    return {workload: digest(sorted(filter(None, several))) for workload, several in loaded.items()}


def _resource_notice(delivery: Delivery, report: ResourceReport) -> Notice | None:
    if report.state is not State.VERIFIED:
        return _pending_notice(delivery, report)
    count = len(report.workloads)
    users = f"in use by {count} workload{'' if count == 1 else 's'}" if count else "no sidecar is in its scope"
    return Notice(EventType.NORMAL, VERIFIED, f"delivery {delivery.sequence}: {users} (digest {delivery.digest})")


def _workload_notice(delivery: Delivery, report: WorkloadReport) -> Notice | None:
    if report.state is not State.VERIFIED:
        return _pending_notice(delivery, report)
    counts = f"{report.instances.verified}/{report.instances.total}"
    return Notice(EventType.NORMAL, VERIFIED, f"{counts} instances use digest {delivery.digest}")


def _pending_notice(delivery: Delivery, finding: Finding) -> Notice | None:
    if finding.state is not State.APPLIED:
        return _stalled_notice(finding)
    text = f"delivery {delivery.sequence} is applied, not verified yet (digest {delivery.digest})"
    return Notice(EventType.NORMAL, APPLIED, text)


def _stalled_notice(finding: Finding) -> Notice | None:
    """Return the warning of a finding without progress; trouble of the agent itself is not the object's."""
    if finding.state not in _STALLED or finding.cause is Cause.AGENT:
        return None
    evidence = finding.all_evidence
    return Notice(
        EventType.WARNING, _STALLED[finding.state], evidence[-1].text if evidence else f"it is {finding.state}"
    )
