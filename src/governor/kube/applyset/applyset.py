"""The one way to write to Kubernetes: all objects of one owner in one cluster.

Combines the decisions and actions of the modules beside it.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.apply import ApplyRun, ApplyTask, Writer
from governor.kube.applyset.diff import patterns_for
from governor.kube.applyset.drift import DriftMode, DriftReport, ObjectDrift, Repair, RepairHistory
from governor.kube.applyset.entries import Entries, after_prune, before_prune, is_applied, kept_aliases
from governor.kube.applyset.get import get, get_if_served
from governor.kube.applyset.inventory import Inventory, Snapshot
from governor.kube.applyset.manifests import Desired, GroupVersionKind, expand, kinds_to_discover, validate
from governor.kube.applyset.order import Stage, gather_bounded, group_by_stage, stage_of
from governor.kube.applyset.prune import Pruner
from governor.kube.applyset.results import ApplyReport, ObjectResult, Outcome, Plan, PruneReport
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.client import Client
from governor.kube.objects import ApiResource, ObjectRef
from governor.process.clock import Clock, SystemClock
from governor.values.paths import parse


class ApplySet:
    """The objects of one owner in one cluster. Cheap to create; holds no state between calls."""

    def __init__(self, client: Client, owner: Owner, settings: Settings, clock: Clock | None = None) -> None:
        self._client = client
        self._owner = owner
        self._settings = settings
        self._clock = clock or SystemClock()
        self._inventory = Inventory(client, owner, settings)

    async def inventory(self) -> Entries:
        """Return the applied and not yet pruned objects; PRECONDITION if damaged or of another owner."""
        return (await self._inventory.read()).entries

    async def apply(self, manifests: Iterable[Any], *, full: bool = False) -> ApplyReport:
        """Apply all objects whose manifest changed since the last apply, or with ``full`` all; prune nothing.

        INVALID with all problems before anything is written; CONFLICT if another writer of the set was faster.
        """
        desired = await self._validate(manifests)
        snapshot = await self._inventory.read()
        due = [each for each in desired if full or not is_applied(each, snapshot.entries)]
        results = await self._run([self._task(each) for each in due], snapshot) if due else {}
        return _report(desired, results)

    async def prune(self, manifests: Iterable[Any], *, allow_empty: bool = False) -> PruneReport:
        """Delete inventory objects that are not in the manifests; PRECONDITION if that would delete all of them."""
        desired = {each.ref for each in await self._validate(manifests)}
        snapshot = await self._inventory.read()
        if snapshot.entries and not desired and not allow_empty:
            message = (
                f"none of the {len(snapshot.entries)} objects in the set of {self._owner.id!r} is desired any more; "
                "nothing was pruned. If the set is to be emptied, allow that explicitly"
            )
            raise GovernorError(Kind.PRECONDITION, "set-emptied", message)
        snapshot = await self._inventory.write(snapshot, before_prune(snapshot.entries, desired))
        report = await self._prune(snapshot, desired)
        await self._inventory.write(snapshot, after_prune(snapshot.entries, report.results))
        return report

    async def delete_all(self, *, dry_run: bool = False) -> PruneReport:
        """Delete all objects of the set; the inventory is deleted only once all of them are settled."""
        snapshot = await self._inventory.read()
        if dry_run or not snapshot.uid:
            return await self._prune(snapshot, set(), dry_run=True)
        snapshot = await self._inventory.write(snapshot, before_prune(snapshot.entries, ()))
        report = await self._prune(snapshot, set())
        if report.complete:
            await self._inventory.delete(snapshot)
        else:
            await self._inventory.write(snapshot, after_prune(snapshot.entries, report.results))
        return report

    async def orphan(self) -> None:
        """Delete the inventory and leave all objects in place."""
        snapshot = await self._inventory.read()
        if snapshot.uid:
            await self._inventory.delete(snapshot)

    async def plan(self, manifests: Iterable[Any], *, full: bool = False) -> Plan:
        """Return what ``apply`` and then ``prune`` would do, without writing.

        Fields that would be removed only because their manager is adopted first are not included.
        """
        desired = await self._validate(manifests)
        snapshot = await self._inventory.read()
        due = [each for each in desired if full or not is_applied(each, snapshot.entries)]
        unplannable = await self._without_prerequisites(due)
        writer = Writer(self._client, self._owner, self._settings, dry_run=True)

        async def plan(each: Desired) -> ObjectResult:
            if each.ref in unplannable:
                return ObjectResult(each.ref, Outcome.CREATED, sent=False)
            return await writer.write(self._task(each), None)

        results = {result.ref: result for result in await gather_bounded(due, plan, self._settings.concurrency)}
        pruned = await self._prune(snapshot, {each.ref for each in desired}, dry_run=True)
        return Plan(_report(desired, results), pruned)

    async def drift(self, manifests: Iterable[Any], mode: DriftMode, repairs: Iterable[Repair] = ()) -> DriftReport:
        """Report changed and deleted objects, and repair them if enforced. ``repairs`` are those of the last report."""
        if mode is DriftMode.OFF:
            return DriftReport(mode)
        desired = await self._validate(manifests)
        history = RepairHistory(repairs, self._settings, self._clock.now())

        async def compare(each: Desired) -> ObjectDrift | None:
            return await self._compare(each, history)

        found = [each for each in await gather_bounded(desired, compare, self._settings.concurrency) if each]
        if mode is DriftMode.ENFORCE:
            found = await self._repair(found, {each.ref: each for each in desired})
        return DriftReport(mode, len(desired), tuple(found), history.updated(found, (each.ref for each in desired)))

    async def _validate(self, manifests: Iterable[Any]) -> tuple[Desired, ...]:
        located = expand(manifests)
        served: dict[GroupVersionKind, ApiResource] = {}
        missing = kinds_to_discover(located)
        for retry in (False, True):
            if missing and retry:
                await self._client.discovery.require_ready()  # the kind may have been defined a moment ago
            for key in sorted(missing):
                if kind := await self._find_kind(key):
                    served[key] = kind
            missing -= served.keys()
        return validate(located, served, self._owner, self._settings, self._inventory.reserves)

    async def _find_kind(self, key: GroupVersionKind) -> ApiResource | None:
        group, version, kind = key
        try:
            return await self._client.discovery.find(group, kind, version)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return None

    def _task(self, desired: Desired, *, force: bool = False) -> ApplyTask:
        ignored = patterns_for(desired.ref, self._settings.ignored_fields)
        return ApplyTask(desired, ignored, force or self._settings.force_conflicts)

    async def _run(self, tasks: list[ApplyTask], snapshot: Snapshot) -> dict[ObjectRef, ObjectResult]:
        writer = Writer(self._client, self._owner, self._settings)
        run = ApplyRun(self._client, self._inventory, writer, self._settings, self._clock)
        return await run.run(tasks, snapshot)

    async def _prune(self, snapshot: Snapshot, desired: set[ObjectRef], *, dry_run: bool = False) -> PruneReport:
        pruner = Pruner(self._client, self._owner, self._settings, self._clock, dry_run=dry_run)
        kept = kept_aliases(snapshot.entries, desired)
        retained = desired.union(result.ref for result in kept)
        entries = [entry for ref, entry in sorted(snapshot.entries.items()) if ref not in retained]
        return PruneReport((*kept, *await pruner.prune(entries)))

    async def _without_prerequisites(self, due: Iterable[Desired]) -> set[ObjectRef]:
        """Return the objects that a dry run cannot apply: their namespace or kind does not exist yet."""
        due = tuple(due)
        namespaces = [each for each in due if stage_of(each.ref) is Stage.NAMESPACES]
        absent = {each.ref.name for each in namespaces if await get(self._client, each.resource, each.ref) is None}
        unserved = {
            kind for kind in {each.resource for each in due if each.defined_in_set} if not await self._serves(kind)
        }
        return {each.ref for each in due if each.ref.namespace in absent or each.resource in unserved}

    async def _serves(self, kind: ApiResource) -> bool:
        return await self._find_kind((kind.group, kind.version, kind.kind)) is not None

    async def _compare(self, desired: Desired, history: RepairHistory) -> ObjectDrift | None:
        read = get_if_served if desired.defined_in_set else get
        try:
            live = await read(self._client, desired.resource, desired.ref)
            if live is None:
                return history.deletion_drift(desired.ref)
            writer = Writer(self._client, self._owner, self._settings, dry_run=True)
            found = await writer.compare(self._task(desired), live)
        except GovernorError as error:
            return ObjectDrift(desired.ref, error=str(error))
        return history.field_drift(desired.ref, live, found) if found else None

    async def _repair(self, drifts: list[ObjectDrift], desired: dict[ObjectRef, Desired]) -> list[ObjectDrift]:
        """Apply the objects that drifted, except fields whose repair limit is reached."""
        tasks = [self._repair_task(desired[drift.ref], drift) for drift in drifts if drift.repairable]
        if not tasks:
            return drifts
        results = await self._run(tasks, await self._inventory.read())
        return [msgspec.structs.replace(drift, repair=results.get(drift.ref)) for drift in drifts]

    def _repair_task(self, desired: Desired, drift: ObjectDrift) -> ApplyTask:
        task = self._task(desired, force=True)
        exhausted = tuple(parse(field.difference.path) for field in drift.fields if field.exhausted)
        return msgspec.structs.replace(task, ignored=task.ignored + exhausted)


def _report(desired: Iterable[Desired], results: dict[ObjectRef, ObjectResult]) -> ApplyReport:
    """Return all results in apply order; objects without one are unchanged."""
    ordered = (each.ref for stage in group_by_stage(desired, lambda each: each.ref) for each in stage)
    return ApplyReport(tuple(results.get(ref) or ObjectResult(ref, Outcome.UNCHANGED, sent=False) for ref in ordered))
