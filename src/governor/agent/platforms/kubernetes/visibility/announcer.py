"""Announces in the cluster what the agent does: Events, and the status objects. Neither delays nor fails the work."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from governor.agent.platform import Platform, Progress, Superseded
from governor.agent.platforms.kubernetes.visibility.notices import (
    Current,
    Notice,
    Subject,
    contents_of,
    drift_states,
    states_of,
    transitions,
)
from governor.agent.platforms.kubernetes.visibility.runtime_status import statuses_of
from governor.agent.platforms.kubernetes.visibility.status_objects import StatusObjects
from governor.agent.platforms.kubernetes.workloads.workload import Workload
from governor.agent.redaction import Redactor
from governor.agent.verification import findings
from governor.agent.verification.findings import AGENT, DriftFindings, Findings
from governor.domain.bundles import Delivery
from governor.domain.documents import ResourceRef
from governor.domain.reports import Cause, Evidence, State, WorkloadRef
from governor.domain.windows import Hold
from governor.errors import GovernorError
from governor.kube.controller.events import EventRecorder, EventType
from governor.kube.objects import ApiResource, group_of
from governor.kube.reflector import Metadata
from governor.process.clock import Clock
from governor.values.trees import Manifest

RESTARTING: Final = "Restarting"
RESTART_NEEDED: Final = "RestartNeeded"
RESTART_REVERTED: Final = "RestartReverted"

_Version: TypeAlias = tuple[int, int, str]


class Announcer:
    """Events and status objects of one runtime.

    ``uids`` returns those of the runtime's resources, ``workloads`` the observed workloads. An object whose uid is not
    known gets no Event: ``kubectl describe`` would not show it.
    """

    def __init__(
        self,
        recorder: EventRecorder,
        statuses: StatusObjects,
        redactor: Redactor,
        clock: Clock,
        *,
        uids: Callable[[], Mapping[ResourceRef, str]],
        workloads: Callable[[], Iterable[Workload]],
    ) -> None:
        self._recorder = recorder
        self._statuses = statuses
        self._redactor = redactor
        self._clock = clock
        self._uids = uids
        self._workloads = workloads
        self._last: dict[Subject, Current] = {}
        self._restarts: dict[WorkloadRef, tuple[str, str]] = {}
        self._found: tuple[_Version, Findings] | None = None
        self._contents: tuple[_Version, dict[Subject, str]] | None = None

    async def run(self) -> None:
        """Write Events and status objects until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._recorder.run())
            group.create_task(self._statuses.run())

    def report(self, delivery: Delivery, found: Findings) -> None:
        """Announce the findings of a delivery."""
        self._found = _version(delivery), found
        self._forget_others(found)
        self._announce(states_of(delivery, self._contents_of(delivery), found), delivery.resources)
        self._show(delivery, found)

    def report_drift(self, delivery: Delivery, drift: DriftFindings) -> None:
        """Announce that resources have drifted."""
        self._announce(drift_states(delivery, self._contents_of(delivery), drift), delivery.resources)
        if self._found is not None and self._found[0] == _version(delivery):
            self._show(delivery, findings.drifted(self._found[1], drift, self._clock.now()))

    def report_error(self, delivery: Delivery, error: GovernorError, platform: Platform) -> None:
        """Show that the agent itself could not proceed; it retries, so no object gets an Event."""
        evidence = Evidence(AGENT, self._clock.now(), str(error))
        refs, workloads = platform.refs(delivery), platform.workloads
        self._show(delivery, findings.uniform(State.FAILED, refs, workloads, evidence, cause=Cause.AGENT))

    def restarting(self, workload: WorkloadRef, reason: str, digest: str) -> None:
        """Announce that the agent restarts a workload."""
        self._announce_restart(workload, EventType.NORMAL, RESTARTING, f"restarted for {digest}: {reason}", digest)

    def restart_needed(self, workload: WorkloadRef, reason: str, digest: str) -> None:
        """Announce that a workload must be restarted, and not by the agent."""
        self._announce_restart(workload, EventType.WARNING, RESTART_NEEDED, reason, digest)

    def restart_reverted(self, workload: WorkloadRef, reason: str, digest: str) -> None:
        """Announce that another manager reverts the restart of a workload."""
        self._announce_restart(workload, EventType.WARNING, RESTART_REVERTED, reason, digest)

    def _announce_restart(
        self, workload: WorkloadRef, event_type: EventType, reason: str, message: str, digest: str
    ) -> None:
        if self._restarts.get(workload) != (reason, digest):
            self._restarts[workload] = reason, digest
            self._record_on_workload(self._observed().get(workload), Notice(event_type, reason, message))

    def _forget_others(self, found: Findings) -> None:
        """Forget resources and workloads that are gone, such as finished Jobs."""
        workloads = {each.workload for each in found.workloads}
        known: set[Subject] = {*workloads, *(each.resource for each in found.resources)}
        self._last = {subject: each for subject, each in self._last.items() if subject in known}
        self._restarts = {ref: each for ref, each in self._restarts.items() if ref in workloads}

    def _contents_of(self, delivery: Delivery) -> dict[Subject, str]:
        """Return the contents of a delivery, computed once for all its findings."""
        if self._contents is None or self._contents[0] != _version(delivery):
            self._contents = _version(delivery), contents_of(delivery, self._statuses.namespaces[0])
        return self._contents[1]

    def _observed(self) -> dict[WorkloadRef, Workload]:
        return {each.ref: each for each in self._workloads()}

    def _announce(self, states: Mapping[Subject, Current], manifests: Iterable[Manifest]) -> None:
        self._last, due = transitions(self._last, states)
        versions = {each["kind"]: each["apiVersion"] for each in manifests}
        observed, uids = (self._observed(), self._uids()) if due else ({}, {})
        for subject, notice in due:
            if isinstance(subject, WorkloadRef):
                self._record_on_workload(observed.get(subject), notice)
            elif uid := uids.get(subject, ""):
                metadata = Metadata(subject.name, subject.namespace, uid)
                self._record(versions[subject.kind], subject.kind, metadata, notice)

    def _record_on_workload(self, workload: Workload | None, notice: Notice) -> None:
        if workload is not None and workload.uid:
            metadata = Metadata(workload.ref.name, workload.ref.namespace, workload.uid)
            self._record(workload.api_version, workload.ref.kind, metadata, notice)

    def _record(self, api_version: str, kind: str, metadata: Metadata, notice: Notice) -> None:
        # An Event does not contain the plural of the kind.
        resource = ApiResource(group_of(api_version), api_version.rpartition("/")[2], kind, "", namespaced=True)
        self._recorder.record(resource, metadata, notice.type, notice.reason, self._redactor.redact(notice.message))

    def _show(self, delivery: Delivery, found: Findings) -> None:
        now, redact = self._clock.now(), self._redactor.redact
        self._statuses.show(statuses_of(delivery, found, self._statuses.namespaces, now, redact))


def _version(delivery: Delivery) -> _Version:
    return delivery.sequence, delivery.attempt, delivery.digest


class AnnouncedPlatform:
    """A platform whose results are announced in the cluster."""

    def __init__(self, platform: Platform, announcer: Announcer) -> None:
        self._platform = platform
        self._announcer = announcer
        self._waiting = 0
        """Sequence of a delivery that waits, which is what is shown; the one in use is only verified meanwhile."""

    @property
    def workloads(self) -> Mapping[WorkloadRef, int]:
        """The workloads, with the number of their instances."""
        return self._platform.workloads

    def refs(self, delivery: Delivery) -> tuple[ResourceRef, ...]:
        """Return the resources that a delivery sets or removes."""
        return self._platform.refs(delivery)

    def hold(self) -> Hold | None:
        """Return the hold that is set on the platform, or None."""
        return self._platform.hold()

    def start(self) -> None:
        """Start what waits for a first delivery."""
        self._platform.start()

    async def release(self) -> None:
        """Remove what only the delivery before the verified one needed."""
        await self._platform.release()

    async def run(self) -> None:
        """Run the platform's own tasks, and write the announcements, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._platform.run())
            group.create_task(self._announcer.run())

    async def converge(
        self, delivery: Delivery, received: Evidence, progress: Progress, superseded: Superseded
    ) -> Findings:
        """Apply a delivery, verify it, announce and return the findings."""
        if delivery.sequence < self._waiting:
            return await self._platform.converge(delivery, received, progress, superseded)

        def announced(found: Findings) -> None:
            self._announcer.report(delivery, found)
            progress(found)

        try:
            found = await self._platform.converge(delivery, received, announced, superseded)
        except GovernorError as error:
            self._announcer.report_error(delivery, error, self._platform)
            raise
        self._announcer.report(delivery, found)
        self._waiting = delivery.sequence if found.waits_for is not None else 0
        return found

    async def find_drift(self, delivery: Delivery, *, after_failure: bool = False) -> DriftFindings | None:
        """Return and announce how the runtime differs from a delivery that was applied, or None."""
        drift = await self._platform.find_drift(delivery, after_failure=after_failure)
        if drift is not None:
            self._announcer.report_drift(delivery, drift)
        return drift
