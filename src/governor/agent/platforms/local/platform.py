"""Applies one delivery on this machine: observe, plan, preflight, write, restart, verify.

Only the order is here; ``plan`` decides what to do and ``verification`` whether it worked.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from governor.agent.platforms.local.daprd import OWNER_VARIABLE
from governor.agent.platforms.local.directory import ResourceDirectory
from governor.agent.platforms.local.drift import as_delivered, find_drift
from governor.agent.platforms.local.files import file_key, is_config
from governor.agent.platforms.local.inotify import DirectoryWatch
from governor.agent.platforms.local.plan import (
    Observed,
    ObservedFile,
    ObservedSidecar,
    Plan,
    Rejection,
    SidecarAction,
    SidecarPlan,
    plan,
)
from governor.agent.platforms.local.preflight_runner import PreflightRunner
from governor.agent.platforms.local.sidecar import Sidecar
from governor.agent.platforms.local.verifier import AnySidecar, SidecarFindings, SidecarVerifier, Superseded
from governor.agent.redaction import Redactor
from governor.agent.verification import findings
from governor.agent.verification.findings import DriftFindings, Findings
from governor.agent.verification.verdicts import Process, Reading
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, Drift, ResourceRef, resource_ref
from governor.domain.reports import SIDECAR, Evidence, Finding, State, WorkloadRef
from governor.errors import GovernorError
from governor.process.child import detached
from governor.process.child.child import start_time, started_after
from governor.process.clock import Clock
from governor.process.telemetry import logging

_POLL_S: Final = 0.02
_SETTLE_S: Final = 5.0
"""How long to wait for a starting sidecar to become healthy before its state is read."""

_ORPHAN_GRACE_S: Final = 5.0
_EVENTS_S: Final = 0.1
"""How long changes of files are collected, at least, before the files are compared again."""

_log = logging.get_logger(__name__)

Progress: TypeAlias = Callable[[Findings], None]


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
        self._clock = clock
        self._on_change = on_change
        self._watch: DirectoryWatch | None = None
        self._redactor = Redactor()
        self._written_at: dict[str, int] = {}
        self._written: tuple[tuple[int, int], Evidence] | None = None

    @property
    def workloads(self) -> tuple[WorkloadRef, ...]:
        """The sidecars, which are the workloads of a machine."""
        return tuple(map(self._workload, self._sidecars))

    def _workload(self, app_id: str) -> WorkloadRef:
        return WorkloadRef(self._namespace, SIDECAR, app_id)

    async def adopt(self, owner: Path) -> None:
        """Adopt the sidecars of an earlier agent and stop its orphans; call before anything else."""
        await asyncio.to_thread(self._directory.sweep)
        config = self._current_config()
        await asyncio.gather(*(each.adopt(config) for each in self._managed.values()))
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
        observed = await self._observe()
        if delivery.apply.drift is not Drift.ENFORCE:
            observed = as_delivered(delivery, observed)
        planned = plan(delivery, observed)
        if isinstance(planned, Rejection):
            self.start()
            return findings.rejected(planned.reasons, refs, self.workloads, self._clock.now(), received)
        try:
            result = await self._preflight.check(planned, observed, delivery, self._redactor, superseded)
        except GovernorError:
            self.start()
            raise
        if not result.passed:
            self.start()
            return result.report(refs, self.workloads, received)
        await self._change(planned)
        written = self._written_evidence(planned, delivery)
        if any(each.action is not SidecarAction.KEEP for each in planned.sidecars):
            progress(findings.uniform(State.APPLIED, refs, self.workloads, received, written))
        verified = await self._verify(planned, delivery.apply, superseded)
        found = {self._workload(app_id): each for app_id, each in verified.items()}
        return result.prepend_to(findings.combine(refs, found, written.time, received, written))

    async def find_drift(self, delivery: Delivery) -> DriftFindings | None:
        """Return how the agent's files differ from a delivery that it has written, or None; store what it finds."""
        if delivery.apply.drift is Drift.OFF:
            return None
        journal = await asyncio.to_thread(self._directory.journal)
        if not journal.holds(delivery.digest):
            return None
        self._redactor.add(delivery.resources)
        found = find_drift(delivery, self._namespace, await self._read_files(), journal)
        changed = {file_key(each.ref): each.ref for each in found.values() if each.changes_content}
        if not changed.keys() <= journal.drifted:
            await self._record_drift(changed)
        texts = {
            each.ref: self._redactor.redact(f"{self._directory.path(key)} {each.text}") for key, each in found.items()
        }
        concerned = [app_id for app_id in self._sidecars if any(each.concerns(app_id) for each in found.values())]
        is_repairable = any(each.is_repairable for each in found.values())
        return DriftFindings(texts, tuple(map(self._workload, concerned)), is_repairable) if found else None

    async def _record_drift(self, changed: Mapping[str, ResourceRef]) -> None:
        """Drop the sidecars' proofs of these resources, then record the drift in the journal."""
        refs = frozenset(changed.values())
        await asyncio.gather(*(each.drop_proofs(refs) for each in self._sidecars.values()))
        await asyncio.to_thread(self._directory.record_drift, changed.keys())
        self._written_at = {each.app_id: each.starts for each in self._managed.values()}

    def refs(self, delivery: Delivery) -> tuple[ResourceRef, ...]:
        """Return the resources that a delivery sets or removes."""
        delivered = [resource_ref(manifest, self._namespace) for manifest in delivery.resources]
        return tuple(dict.fromkeys([*delivered, *delivery.removals]))

    async def _observe(self) -> Observed:
        files = await self._read_files()
        journal = await asyncio.to_thread(self._directory.journal)
        sidecars = await asyncio.gather(
            *(self._observe_sidecar(each, journal.written) for each in self._sidecars.values())
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

    async def _observe_sidecar(self, sidecar: AnySidecar, written: str) -> ObservedSidecar:
        before = await self._stable_reading(sidecar)
        managed = self._managed.get(sidecar.app_id)
        return ObservedSidecar(
            sidecar.app_id,
            before,
            current=self._is_current(sidecar.app_id, before.process, written),
            proofs=sidecar.proofs(before),
            released=managed is not None and managed.is_released,
            external=managed is None,
        )

    def _is_current(self, app_id: str, process: Process | None, written: str) -> bool:
        """Return whether a process started after the last write, by start number or by kernel time."""
        if process is None:
            return False
        return process.number > self._written_at.get(app_id, 0) or started_after(process.start_time, written)

    async def _stable_reading(self, sidecar: AnySidecar) -> Reading:
        """Read a sidecar until it is healthy or has no process, at most for ``_SETTLE_S``."""
        deadline = self._clock.monotonic() + _SETTLE_S
        while True:
            reading = await sidecar.read()
            is_healthy = reading.status is not None and reading.status.healthy
            if is_healthy or reading.process is None or self._clock.monotonic() > deadline:
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
            if planned.writes or planned.removals or journal.drifted:
                self._written_at = {each.app_id: each.starts for each in self._managed.values()}
        finally:
            for each in starting:
                each.release(self._config_path(planned.config))
            self._directory.discard(staged)

    def _written_evidence(self, planned: Plan, delivery: Delivery) -> Evidence:
        """Return the evidence of the write; a later reconcile without a write returns the same."""
        attempt = (delivery.sequence, delivery.attempt)
        if self._written is None or self._written[0] != attempt or planned.writes or planned.removals:
            text = f"{len(planned.writes)} files written, {len(planned.removals)} removed"
            self._written = (attempt, Evidence(findings.FILE, self._clock.now(), text))
        return self._written[1]

    async def _verify(self, planned: Plan, policy: ApplyPolicy, superseded: Superseded) -> dict[str, SidecarFindings]:
        async def verify(each: SidecarPlan, after: int | None = None) -> SidecarFindings:
            verifier = SidecarVerifier(self._sidecars[each.app_id], policy, superseded, self._clock)
            number = self._written_at.get(each.app_id, 0) if after is None else after
            return await verifier.verify(each, number, self._redactor)

        rolling = [each for each in planned.sidecars if each.action is SidecarAction.ROLL]
        others = [each for each in planned.sidecars if each.action is not SidecarAction.ROLL]
        found = dict(zip((each.app_id for each in others), await asyncio.gather(*map(verify, others)), strict=True))
        for each in rolling:
            unverified = next((app_id for app_id, each_found in found.items() if not _all_verified(each_found)), None)
            if unverified is not None or superseded():
                found[each.app_id] = self._not_restarted(each, unverified)
                continue
            restarted = await self._managed[each.app_id].restart(self._config_path(planned.config))
            found[each.app_id] = await verify(each, restarted)
        return found

    def _not_restarted(self, planned: SidecarPlan, unverified: str | None) -> SidecarFindings:
        reason = f"the change is not verified in {unverified}" if unverified else "a newer delivery has arrived"
        evidence = Evidence(f"sidecar {planned.app_id}", self._clock.now(), f"not restarted: {reason}")
        return {each.ref: Finding(state=State.UNPROVEN, evidence=(evidence,)) for each in planned.expected}


def _log_unwatched(error: OSError) -> None:
    advice = "changes of files are found by the resync only; raise fs.inotify.max_user_instances or max_user_watches"
    _log.warning("cannot watch the resources directory", error=error.strerror, advice=advice)


def _all_verified(found: SidecarFindings) -> bool:
    return all(each.state is State.VERIFIED for each in found.values())


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
