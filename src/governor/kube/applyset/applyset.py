"""The one way to write to Kubernetes: all objects of one owner in one cluster.

Combines the decisions and actions of the modules beside it.
"""

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.apply import ApplyRun, ApplyTask, Writer
from governor.kube.applyset.diff import patterns_for
from governor.kube.applyset.drift import DriftMode, DriftReport, ObjectDrift, Repair, RepairHistory
from governor.kube.applyset.entries import (
    Entries,
    after_apply,
    after_prune,
    before_apply,
    before_prune,
    is_applied,
    kept_aliases,
    skip_prune,
)
from governor.kube.applyset.inventory import Inventory, Snapshot
from governor.kube.applyset.live import get, get_if_served, is_terminating
from governor.kube.applyset.manifests import Desired, GroupVersionKind, expand, kinds_to_discover, validate
from governor.kube.applyset.order import Stage, gather_bounded, group_by_stage, stage_of
from governor.kube.applyset.prune import Pruner
from governor.kube.applyset.reports import ApplyReport, ConvergeReport, Plan, PruneReport
from governor.kube.applyset.results import SUCCEEDED, ObjectResult, Outcome, PruneResult
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

    async def converge(
        self,
        manifests: Iterable[Any],
        *,
        drift: DriftMode = DriftMode.ENFORCE,
        repairs: Iterable[Repair] = (),
        allow_empty: bool = False,
    ) -> ConvergeReport:
        """Bring the cluster to the desired state: apply what changed, repair drift, prune what is no longer desired.

        Prunes only if everything was applied, and waits for no deletion: if the report is ``pending``, call again when
        an object of the set is gone. ``repairs`` are those of the last report. INVALID with all problems before
        anything is written; PRECONDITION if all objects would be pruned and that is not allowed; CONFLICT if another
        writer of the set was faster.
        """
        desired = await self._validate(manifests)
        snapshot = await self._inventory.read()
        if snapshot.entries and not desired and not allow_empty:
            raise self._emptied(snapshot.entries)
        history = RepairHistory(repairs, self._settings, self._clock.now())
        tasks = [self._task(each) for each in desired if not is_applied(each, snapshot.entries)]
        applied = [each for each in desired if is_applied(each, snapshot.entries)]
        drifts = await self._find_drift(applied, history) if drift is not DriftMode.OFF else []
        if drift is DriftMode.ENFORCE:
            by_ref = {each.ref: each for each in applied}
            tasks += [self._repair_task(by_ref[each.ref], each) for each in drifts if each.repairable]
        results, pruned = await self._change(tasks, snapshot, {each.ref for each in desired})
        drifts = [msgspec.structs.replace(each, repair=results.get(each.ref)) for each in drifts]
        checked = len(applied) if drift is not DriftMode.OFF else 0
        updated = history.updated(drifts, (each.ref for each in desired))
        return ConvergeReport(
            _report(desired, results), DriftReport(drift, checked, tuple(drifts), updated), PruneReport(pruned)
        )

    async def delete_all(self, *, dry_run: bool = False) -> PruneReport:
        """Delete all objects of the set, and the inventory if all of them are settled.

        Waits for no deletion: if the report is not complete, call again when an object of the set is gone.
        """
        snapshot = await self._inventory.read()
        if dry_run or not snapshot.uid:
            return PruneReport(await self._prune(snapshot.entries, dry_run=True))
        snapshot = await self._inventory.write(snapshot, before_prune(snapshot.entries, ()))
        report = PruneReport(await self._prune(snapshot.entries))
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
        """Return what ``converge`` would apply and prune, without writing.

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
        pruned = await self._prune(snapshot.entries, {each.ref for each in desired}, dry_run=True)
        return Plan(_report(desired, results), PruneReport(pruned))

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

    async def _change(
        self, tasks: list[ApplyTask], snapshot: Snapshot, desired: set[ObjectRef]
    ) -> tuple[dict[ObjectRef, ObjectResult], tuple[PruneResult, ...]]:
        """Record the intents, apply, prune if everything was applied, and record the results."""
        run = ApplyRun(self._client, Writer(self._client, self._owner, self._settings), self._settings, self._clock)
        due = [task.desired for task in tasks]
        live = await run.read(due, snapshot.entries)
        intents = before_prune(before_apply(snapshot.entries, due, live), desired)
        snapshot = await self._inventory.write(snapshot, intents)
        results = await run.run(tasks, live)
        entries = after_apply(snapshot.entries, due, results)
        failed = next((ref for ref, result in results.items() if result.outcome not in SUCCEEDED), None)
        pruned = skip_prune(entries, desired, failed) if failed else await self._prune(entries, desired)
        await self._inventory.write(snapshot, after_prune(entries, pruned))
        return results, pruned

    async def _prune(
        self, entries: Entries, desired: Collection[ObjectRef] = (), *, dry_run: bool = False
    ) -> tuple[PruneResult, ...]:
        pruner = Pruner(self._client, self._owner, self._settings, dry_run=dry_run)
        kept = kept_aliases(entries, desired)
        retained = {*desired, *(result.ref for result in kept)}
        due = [entry for ref, entry in sorted(entries.items()) if ref not in retained]
        return (*kept, *await pruner.prune(due))

    def _emptied(self, entries: Entries) -> GovernorError:
        message = (
            f"none of the {len(entries)} objects in the set of {self._owner.id!r} is desired any more; "
            "nothing was pruned. If the set is to be emptied, allow that explicitly"
        )
        return GovernorError(Kind.PRECONDITION, "set-emptied", message)

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

    async def _find_drift(self, applied: Iterable[Desired], history: RepairHistory) -> list[ObjectDrift]:
        async def compare(each: Desired) -> ObjectDrift | None:
            return await self._compare(each, history)

        return [each for each in await gather_bounded(applied, compare, self._settings.concurrency) if each]

    async def _compare(self, desired: Desired, history: RepairHistory) -> ObjectDrift | None:
        read = get_if_served if desired.defined_in_set else get
        try:
            live = await read(self._client, desired.resource, desired.ref)
            if live is None or is_terminating(live):
                return history.deletion_drift(desired.ref)
            writer = Writer(self._client, self._owner, self._settings, dry_run=True)
            found = await writer.compare(self._task(desired), live)
        except GovernorError as error:
            return ObjectDrift(desired.ref, error=str(error))
        return history.field_drift(desired.ref, live, found) if found else None

    def _repair_task(self, desired: Desired, drift: ObjectDrift) -> ApplyTask:
        task = self._task(desired, force=True)
        exhausted = tuple(parse(field.difference.path) for field in drift.fields if field.exhausted)
        return msgspec.structs.replace(task, ignored=task.ignored + exhausted)


def _report(desired: Iterable[Desired], results: dict[ObjectRef, ObjectResult]) -> ApplyReport:
    """Return all results in apply order; objects without one are unchanged."""
    ordered = (each.ref for stage in group_by_stage(desired, lambda each: each.ref) for each in stage)
    return ApplyReport(tuple(results.get(ref) or ObjectResult(ref, Outcome.UNCHANGED, sent=False) for ref in ordered))
