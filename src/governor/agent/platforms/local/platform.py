"""Applies one delivery on this machine: observe, plan, preflight, write, restart, verify.

Only the order is here; ``plan`` decides what to do and ``verification`` whether it worked.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from governor.agent.platform import Progress, Superseded
from governor.agent.platforms.local.directory import ResourceDirectory
from governor.agent.platforms.local.drift import (
    DriftedFile,
    as_delivered,
    find_drift,
    find_past_drift,
    was_disturbed,
)
from governor.agent.platforms.local.files import file_key, is_config
from governor.agent.platforms.local.inotify import DirectoryWatch
from governor.agent.platforms.local.plan import (
    Observed,
    ObservedFile,
    ObservedSidecar,
    Plan,
    Rejection,
    SidecarAction,
    affected_sidecars,
    plan,
    restrained,
)
from governor.agent.platforms.local.sidecars.daprd import OWNER_VARIABLE
from governor.agent.platforms.local.sidecars.external import ExternalSidecar
from governor.agent.platforms.local.sidecars.preflight_runner import PreflightRunner, preflight
from governor.agent.platforms.local.sidecars.sidecar import Sidecar
from governor.agent.platforms.local.sidecars.verifier import AnySidecar
from governor.agent.platforms.local.storage import Journal
from governor.agent.platforms.local.verification import Verification
from governor.agent.redaction import Redactor
from governor.agent.verification import findings
from governor.agent.verification.findings import DriftFindings, Findings, InstanceFindings
from governor.agent.verification.preflight_plan import PreflightResult
from governor.agent.verification.verdicts import Reading
from governor.domain.bundles import Delivery
from governor.domain.documents import Drift, ResourceRef, resource_ref
from governor.domain.reports import SIDECAR, Evidence, State, WorkloadRef
from governor.domain.windows import Hold, Restraint
from governor.errors import GovernorError
from governor.process.child import detached
from governor.process.child.child import start_time, start_time_now
from governor.process.clock import Clock
from governor.process.telemetry import logging

_POLL_S: Final = 0.02
_SETTLE_S: Final = 5.0
"""How long to wait for a starting sidecar to become healthy before its state is read."""

_ORPHAN_GRACE_S: Final = 5.0
_FILE: Final = "file"
"""The source of evidence from the agent's files."""
_EVENTS_S: Final = 0.1
"""How long changes of files are collected, at least, before the files are compared again."""

_log = logging.get_logger(__name__)


class LocalPlatform:
    """The resources directory and the sidecars of one agent."""

    def __init__(
        self,
        namespace: str,
        directory: ResourceDirectory,
        sidecars: Sequence[AnySidecar],
        preflight: PreflightRunner,
        clock: Clock,
        *,
        on_change: Callable[[], None],
    ) -> None:
        self._namespace = namespace
        self._preflight = preflight
        self._directory = directory
        self._sidecars = {each.app_id: each for each in sidecars}
        self._managed = {each.app_id: each for each in sidecars if isinstance(each, Sidecar)}
        self._external = [each for each in sidecars if isinstance(each, ExternalSidecar)]
        self._clock = clock
        self._on_change = on_change
        self._watch: DirectoryWatch | None = None
        self._redactor = Redactor()
        self._written: tuple[tuple[int, int], Evidence] | None = None

    @property
    def workloads(self) -> Mapping[WorkloadRef, int]:
        """The sidecars, which are the workloads of a machine, each with one instance."""
        return dict.fromkeys(map(self._workload, self._sidecars), 1)

    def _workload(self, app_id: str) -> WorkloadRef:
        return WorkloadRef(self._namespace, SIDECAR, app_id)

    async def adopt(self, owner: Path) -> None:
        """Adopt the sidecars of an earlier agent and stop its orphans; call before anything else."""
        await asyncio.to_thread(self._directory.sweep)
        config, journal = self._current_config(), self._directory.journal()
        # A process that runs after an interrupted change may have loaded only a part of it.
        is_complete = journal.written and journal.intent is None
        written = journal.written if is_complete else start_time_now()
        for each in self._external:
            each.restore(written)
        await asyncio.gather(*(each.adopt(config, written, journal.drift_ended) for each in self._managed.values()))
        await _stop_orphans(owner, {each.process.pid for each in self._managed.values() if each.process})
        await asyncio.to_thread(self._preflight.sweep)

    def _current_config(self) -> Path | None:
        return self._config_path(next((key for key in self._directory.journal().owned if is_config(key)), None))

    def _config_path(self, key: str | None) -> Path | None:
        return self._directory.path(key) if key else None

    async def run(self) -> None:
        """Supervise the sidecars and watch the files until cancelled."""
        async with asyncio.TaskGroup() as group:
            for each in self._sidecars.values():
                group.create_task(each.run(), name=f"sidecar {each.app_id}")
            group.create_task(self._watch_files(), name="files")
            await asyncio.Event().wait()

    async def _watch_files(self) -> None:
        """Call ``on_change`` when a file is not as the agent last read or wrote it."""
        try:
            self._watch = DirectoryWatch(self._directory.roots)
        except OSError as error:
            _log_unwatched(error)
            return
        try:
            while True:
                if await asyncio.to_thread(self._directory.has_changed):
                    self._on_change()
                await self._clock.sleep(_EVENTS_S)
                await self._watch.wait()
        finally:
            self._watch.close()
            self._watch = None

    def hold(self) -> Hold | None:
        """Return None: a machine is held only by its runtime's document."""
        return None

    def start(self) -> None:
        """Start every sidecar that is held, with the files on disk."""
        config = self._current_config()
        for each in self._managed.values():
            if not each.is_released:
                each.release(config)

    async def converge(
        self, delivery: Delivery, received: Evidence, progress: Progress, superseded: Superseded
    ) -> Findings:
        """Apply a delivery and return the findings; call ``progress`` once it is written."""
        self._redactor.add(delivery.resources)
        refs = self.refs(delivery)
        try:
            outcome = await self._change_if_passed(delivery, superseded)
        except GovernorError:
            self.start()
            raise
        if isinstance(outcome, Rejection):
            self.start()
            return findings.rejected(outcome.reasons, refs, self.workloads, self._clock.now(), received)
        if isinstance(outcome, Restraint):
            self.start()
            return findings.waiting(outcome, refs, self.workloads, self._clock.now(), received)
        planned, result, written = outcome
        if written is None:
            self.start()
            return result.report(refs, self.workloads, received)
        if any(each.action is not SidecarAction.KEEP for each in planned.sidecars):
            progress(findings.uniform(State.APPLIED, refs, self.workloads, received, written))
        verification = Verification(delivery, self._sidecars, self._redactor, superseded, self._clock)
        verified = await verification.run(planned, self._config_path(planned.config))
        found = {self._workload(app_id): [InstanceFindings(app_id, each)] for app_id, each in verified.items()}
        combined = result.prepend_to(findings.combine(refs, found, written.time, received, written))
        return msgspec.structs.replace(combined, restraint=verification.restraint)

    async def _change_if_passed(
        self, delivery: Delivery, superseded: Superseded
    ) -> tuple[Plan, PreflightResult, Evidence | None] | Rejection | Restraint:
        """Plan a delivery, try it, and write it if it passed. The throw-away sidecar starts while the plan is made."""
        journal = await asyncio.to_thread(self._directory.journal)
        may_wait = delivery.restart_restraint(self._clock.now()) is not None
        early = not (journal.holds(delivery.digest) or may_wait)
        async with preflight(self._preflight, delivery, self._sidecars, superseded, early=early) as trial:
            observed = await self._observe(journal)
            if not journal.holds(delivery.digest) and was_disturbed(observed.files, journal):
                # The processes may exit for what was written before this delivery.
                self._mark_drifted()
            if delivery.apply.drift is not Drift.ENFORCE:
                observed = as_delivered(delivery, observed)
            wanted = plan(delivery, observed)
            if isinstance(wanted, Rejection):
                return wanted
            planned = restrained(wanted, delivery, observed, self._clock.now())
            if isinstance(planned, Restraint):
                return planned
            result = await trial.check(planned, observed, self._redactor)
            if not result.passed:
                return planned, result, None
            await self._change(planned)
            return planned, result, self._written_evidence(planned, delivery)

    async def find_drift(self, delivery: Delivery, *, after_failure: bool = False) -> DriftFindings | None:
        """Return how the agent's files differ from a delivery that it has written, or None; store what it finds."""
        journal = await asyncio.to_thread(self._directory.journal)
        is_compared = delivery.apply.drift is not Drift.OFF or after_failure or journal.drifted
        if not (is_compared and journal.holds(delivery.digest)):
            return None
        self._redactor.add(delivery.resources)
        files = await self._read_files()
        found = find_drift(delivery, self._namespace, files, journal)
        if delivery.apply.drift is Drift.OFF:
            found = {key: each for key, each in found.items() if each.changes_content}
        is_past = after_failure and not found
        if is_past:
            found = find_past_drift(delivery, self._namespace, files, journal)
        await self._record_drift(found, files, journal)
        return self._drift_findings(found, is_past=is_past) if found else None

    def _drift_findings(self, found: Mapping[str, DriftedFile], *, is_past: bool) -> DriftFindings:
        texts = {
            each.ref: self._redactor.redact(f"{self._directory.path(key)} {each.text}") for key, each in found.items()
        }
        concerned = [app_id for app_id in self._sidecars if any(each.concerns(app_id) for each in found.values())]
        is_repairable = any(each.is_repairable for each in found.values())
        return DriftFindings(texts, tuple(map(self._workload, concerned)), _FILE, is_repairable, is_past)

    async def release(self) -> None:
        """Do nothing: a file of the delivery before is removed when this one is written."""

    async def _record_drift(
        self, found: Mapping[str, DriftedFile], files: Mapping[str, ObservedFile], journal: Journal
    ) -> None:
        """Drop the sidecars' proofs of changed resources, then record the drift in the journal."""
        changed = {file_key(each.ref): each.ref for each in found.values() if each.changes_content}
        stamps = {key: files[key].stamp if key in files else "" for key in changed}
        if not (changed.keys() <= journal.drifted and stamps.items() <= journal.stamps.items()):
            await asyncio.gather(*(each.drop_proofs(frozenset(changed.values())) for each in self._sidecars.values()))
            await asyncio.to_thread(self._directory.record_drift, stamps)
        if changed or journal.drifted:
            self._mark_drifted()
            for each in self._sidecars.values():
                each.mark_written()

    def _mark_drifted(self) -> None:
        for each in self._managed.values():
            each.mark_drifted()

    def refs(self, delivery: Delivery) -> tuple[ResourceRef, ...]:
        """Return the resources that a delivery sets or removes."""
        delivered = [resource_ref(manifest, self._namespace) for manifest in delivery.resources]
        return tuple(dict.fromkeys([*delivered, *delivery.removals]))

    async def _observe(self, journal: Journal) -> Observed:
        files, sidecars = await asyncio.gather(
            self._read_files(),
            asyncio.gather(*map(self._observe_sidecar, self._sidecars.values())),
        )
        return Observed(self._namespace, files, journal, sidecars)

    async def _read_files(self) -> Mapping[str, ObservedFile]:
        if self._watch is not None:
            # Before the files are read, so that a change of a re-created directory is not missed.
            await asyncio.to_thread(self._directory.prepare)
            try:
                self._watch.arm()
            except OSError as error:
                _log_unwatched(error)
        return await asyncio.to_thread(self._directory.read_files)

    async def _observe_sidecar(self, sidecar: AnySidecar) -> ObservedSidecar:
        before = await self._stable_reading(sidecar)
        managed = self._managed.get(sidecar.app_id)
        return ObservedSidecar(
            sidecar.app_id,
            before,
            proofs=sidecar.proofs(before),
            released=managed is not None and managed.is_released,
            external=managed is None,
        )

    async def _stable_reading(self, sidecar: AnySidecar) -> Reading:
        """Read a sidecar until it is healthy or has no process, at most for ``_SETTLE_S``."""
        deadline = self._clock.monotonic() + _SETTLE_S
        while True:
            reading = await sidecar.read()
            is_healthy = reading.status is not None and reading.status.healthy
            if is_healthy or reading.instance is None or self._clock.monotonic() > deadline:
                return reading
            await self._clock.sleep(_POLL_S)

    async def _change(self, planned: Plan) -> None:
        """Write while the sidecars to restart are stopped, so that none loads a partial change."""
        journal = await asyncio.to_thread(self._directory.journal)
        starting = [self._managed[each.app_id] for each in planned.sidecars if each.action is SidecarAction.START]
        staged = await asyncio.to_thread(self._directory.stage, planned)
        try:
            await asyncio.gather(*(each.hold() for each in starting))
            await asyncio.to_thread(self._directory.apply, planned, staged, journal)
        finally:
            # After an error too, because a part may be written.
            for app_id in affected_sidecars(planned, journal):
                self._sidecars[app_id].mark_written()
            for each in starting:
                each.release(self._config_path(planned.config))
            self._directory.discard(staged)

    def _written_evidence(self, planned: Plan, delivery: Delivery) -> Evidence:
        """Return the evidence of the write; a later reconcile without a write returns the same."""
        attempt = (delivery.sequence, delivery.attempt)
        if self._written is None or self._written[0] != attempt or planned.writes or planned.removals:
            written = len(planned.writes)
            text = f"{written} file{'' if written == 1 else 's'} written, {len(planned.removals)} removed"
            self._written = (attempt, Evidence(_FILE, self._clock.now(), text))
        return self._written[1]


def _log_unwatched(error: OSError) -> None:
    advice = "changes of files are found by the resync only; raise fs.inotify.max_user_instances or max_user_watches"
    _log.warning("cannot watch the resources directory", error=error.strerror, advice=advice)


async def _stop_orphans(owner: Path, adopted: Collection[int]) -> None:
    """Stop every process that carries this agent's mark, except the process groups in ``adopted``."""
    marked = await asyncio.to_thread(lambda: list(detached.pids_with_variable(OWNER_VARIABLE, str(owner))))
    groups = {group for group in map(_process_group, marked) if group in marked and group not in adopted}
    await asyncio.gather(*map(_stop_orphan, groups))


def _process_group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


async def _stop_orphan(pid: int) -> None:
    orphan = detached.adopt(pid, start_time(pid), Path(os.devnull), 0)
    if orphan is not None:
        _log.warning("stopping an orphaned sidecar", pid=pid)
        await orphan.stop(_ORPHAN_GRACE_S)
