"""The one way to write to Kubernetes: all objects of one owner in one cluster.

Combines the decisions and actions of the modules beside it.
"""

import secrets
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Any, Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.apply import ApplyRun, ApplyTask, Writer
from governor.kube.applyset.diff import is_secret, patterns_for
from governor.kube.applyset.drift import (
    DriftCheck,
    DriftMode,
    DriftReport,
    ObjectDrift,
    Observer,
    Repair,
    RepairHistory,
)
from governor.kube.applyset.entries import (
    Entries,
    after_apply,
    after_check,
    after_prune,
    before_apply,
    before_prune,
    is_applied,
    kept_aliases,
    skip_prune,
)
from governor.kube.applyset.inventory import ClaimGuard, Inventory, Snapshot
from governor.kube.applyset.live import find_kinds, get
from governor.kube.applyset.manifests import Desired, expand, key_of, kinds_to_discover, validate, with_digest_key
from governor.kube.applyset.order import Stage, gather_bounded, group_by_stage, stage_of
from governor.kube.applyset.prune import Pruner
from governor.kube.applyset.reports import ApplyReport, ConvergeReport, Plan, PruneReport
from governor.kube.applyset.results import SUCCEEDED, ObjectResult, Outcome, PruneResult, Seen
from governor.kube.applyset.settings import Claim, Owner, Settings
from governor.kube.client import Client
from governor.kube.objects import Object, ObjectRef
from governor.process.clock import Clock, SystemClock
from governor.values.paths import parse

_KEY_BYTES: Final = 16


class ApplySet:
    """The objects of one owner in one cluster. Cheap to create; holds no state between calls.

    With a claim, only the holder of the newest claim can write: of several owners that share the cluster, of a process
    that was suspended, or of a restored backup. PRECONDITION names the present holder.
    """

    def __init__(
        self, client: Client, owner: Owner, settings: Settings, clock: Clock | None = None, claim: Claim | None = None
    ) -> None:
        self._client = client
        self._owner = owner
        self._settings = settings
        self._clock = clock or SystemClock()
        self._claim = claim
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
        history = RepairHistory(repairs, self._settings, self._clock.now())
        survey = await self._survey(manifests, drift, history)
        if survey.snapshot.entries and not survey.desired and not allow_empty:
            raise self._emptied(survey.snapshot.entries)
        results, pruned = await self._change(survey)
        drifts = [msgspec.structs.replace(each, repair=results.get(each.ref)) for each in survey.drifts]
        updated = history.updated(drifts, (each.ref for each in survey.desired))
        return ConvergeReport(
            _report(survey.desired, results),
            DriftReport(drift, survey.checked, tuple(drifts), updated),
            PruneReport(pruned),
        )

    async def delete_all(self, *, dry_run: bool = False) -> PruneReport:
        """Delete all objects of the set, and the inventory if all of them are settled.

        Waits for no deletion: if the report is not complete, call again when an object of the set is gone.
        """
        snapshot = await self._inventory.read()
        if dry_run or not snapshot.uid:
            return PruneReport(await self._prune(snapshot.entries, self._guard(), dry_run=True))
        guard = self._guard()
        snapshot = await guard.begin(snapshot, before_prune(snapshot.entries, ()))
        report = PruneReport(await self._prune(snapshot.entries, guard))
        if report.complete:
            await self._inventory.delete(snapshot)
        else:
            await self._inventory.write(snapshot, after_prune(snapshot.entries, report.results))
        return report

    async def orphan(self) -> None:
        """Delete the inventory and leave all objects in place."""
        snapshot = await self._inventory.read()
        self._guard().verify(snapshot)
        if snapshot.uid:
            await self._inventory.delete(snapshot)

    async def plan(self, manifests: Iterable[Any], *, drift: DriftMode = DriftMode.ENFORCE) -> Plan:
        """Return what ``converge`` would apply and prune, without writing.

        Fields that would be removed only because their manager is adopted first are not included.
        """
        survey = await self._survey(manifests, drift, RepairHistory((), self._settings, self._clock.now()))
        unplannable = await self._without_prerequisites(task.desired for task in survey.tasks)
        writer = self._writer(self._guard(), dry_run=True)

        async def plan(task: ApplyTask) -> ObjectResult:
            if task.desired.ref in unplannable:
                return ObjectResult(task.desired.ref, Outcome.CREATED, sent=False)
            return await writer.write(task, None)

        planned = await gather_bounded(survey.tasks, plan, self._settings.concurrency)
        pruned = await self._prune(survey.snapshot.entries, self._guard(), survey.refs, dry_run=True)
        return Plan(_report(survey.desired, {result.ref: result for result in planned}), PruneReport(pruned))

    async def _survey(self, manifests: Iterable[Any], mode: DriftMode, history: RepairHistory) -> "_Survey":
        """Return what is to be done: validate, read the inventory, and compare what changed in the cluster."""
        desired = await self._validate(manifests)
        snapshot = await self._inventory.read()
        known = [each for each in desired if each.ref in snapshot.entries and snapshot.entries[each.ref].uid]
        observed = await Observer(self._client, self._owner, self._settings).observe(
            each for each in known if mode is not DriftMode.OFF or is_secret(each.manifest)
        )
        desired = tuple(self._with_digest_key(each, observed.get(each.ref)) for each in desired)
        entries = snapshot.entries
        recorded = [each for each in known if mode is DriftMode.ENFORCE and entries[each.ref].digest]
        keyless = {each.ref for each in recorded if self._is_keyless(each, observed[each.ref])}
        applied = [each for each in desired if each.ref in keyless or is_applied(each, entries)]
        tasks = [self._task(each) for each in desired if each.ref not in keyless and not is_applied(each, entries)]
        if mode is DriftMode.OFF:
            return _Survey(desired, snapshot, tasks)
        check = DriftCheck(self._client, self._writer(self._guard(), dry_run=True), history)

        async def compare(each: Desired) -> ObjectDrift | Seen | None:
            entry = entries[each.ref]
            if each.ref in keyless:  # its manifest may have changed too
                entry = msgspec.structs.replace(entry, seen=Seen())
            return await check.check(self._task(each), entry, observed[each.ref])

        found = await gather_bounded(applied, compare, self._settings.concurrency)
        drifts = [each for each in found if isinstance(each, ObjectDrift)]
        seen = {each.ref: state for each, state in zip(applied, found, strict=True) if isinstance(state, Seen)}
        if mode is DriftMode.ENFORCE:
            by_ref = {each.ref: each for each in applied}
            tasks += [self._repair_task(by_ref[each.ref], each) for each in drifts if each.repairable]
        return _Survey(desired, snapshot, tasks, drifts, seen, len(applied))

    def _with_digest_key(self, desired: Desired, live: Object | GovernorError | None) -> Desired:
        if not is_secret(desired.manifest):
            return desired
        return with_digest_key(desired, self._digest_key(live) or secrets.token_urlsafe(_KEY_BYTES), self._settings)

    def _is_keyless(self, desired: Desired, live: Object | GovernorError | None) -> bool:
        """Return whether another client deleted a Secret or the key of its digest: drift, even with a new manifest."""
        return is_secret(desired.manifest) and not isinstance(live, GovernorError) and not self._digest_key(live)

    def _digest_key(self, live: Object | GovernorError | None) -> str:
        metadata = live["metadata"] if isinstance(live, dict) else {}
        return str((metadata.get("annotations") or {}).get(self._settings.digest_key_annotation, ""))

    async def _validate(self, manifests: Iterable[Any]) -> tuple[Desired, ...]:
        located = expand(manifests)
        served = await find_kinds(self._client, kinds_to_discover(located))
        return validate(located, served, self._owner, self._settings)

    def _task(self, desired: Desired, *, force: bool = False) -> ApplyTask:
        ignored = patterns_for(desired.ref, self._settings.ignored_fields)
        return ApplyTask(desired, ignored, force=force or self._settings.force_conflicts)

    async def _change(self, survey: "_Survey") -> tuple[dict[ObjectRef, ObjectResult], tuple[PruneResult, ...]]:
        """Record the intents, apply, prune if everything was applied, and record the results."""
        snapshot, desired = survey.snapshot, survey.refs
        entries = after_check(snapshot.entries, survey.seen)
        due = [task.desired for task in survey.tasks]
        guard = self._guard()
        if not due and entries.keys() <= desired:
            if survey.seen:
                guard.verify(snapshot)
            await self._inventory.write(snapshot, entries)
            return {}, ()
        run = ApplyRun(self._client, self._writer(guard), guard, self._settings, self._clock)
        live = await run.read(due, entries)
        snapshot = await guard.begin(snapshot, before_prune(before_apply(entries, due, live), desired))
        results = await run.run(survey.tasks, live)
        entries = after_apply(snapshot.entries, due, results)
        blocker = survey.blocker(results)
        pruned = skip_prune(entries, desired, blocker) if blocker else await self._prune(entries, guard, desired)
        await self._inventory.write(snapshot, after_prune(entries, pruned))
        return results, pruned

    def _guard(self) -> ClaimGuard:
        return ClaimGuard(self._client, self._inventory, self._claim, self._clock)

    def _writer(self, guard: ClaimGuard, *, dry_run: bool = False) -> Writer:
        return Writer(self._client, self._owner, self._settings, guard, dry_run=dry_run)

    async def _prune(
        self, entries: Entries, guard: ClaimGuard, desired: Collection[ObjectRef] = (), *, dry_run: bool = False
    ) -> tuple[PruneResult, ...]:
        pruner = Pruner(self._client, self._owner, self._settings, guard, dry_run=dry_run)
        kept = kept_aliases(entries, desired)
        retained = {*desired, *(result.ref for result in kept)}
        due = [entry for ref, entry in sorted(entries.items()) if ref not in retained]
        return (*kept, *await pruner.prune(due))

    def _emptied(self, entries: Entries) -> GovernorError:
        message = (
            f"none of the {len(entries)} objects in the inventory {self._owner.namespace}/{self._owner.name} is "
            "desired any more; nothing was pruned. Pass allow_empty=True to delete all of them"
        )
        return GovernorError(Kind.PRECONDITION, "set-emptied", message)

    async def _without_prerequisites(self, due: Iterable[Desired]) -> set[ObjectRef]:
        """Return the objects that a dry run cannot apply: their namespace or kind does not exist yet."""
        due = tuple(due)
        namespaces = [each for each in due if stage_of(each.ref) is Stage.NAMESPACES]
        absent = {each.ref.name for each in namespaces if await get(self._client, each.resource, each.ref) is None}
        defined = {key_of(each.resource) for each in due if each.defined_in_set}
        unserved = defined - (await find_kinds(self._client, defined)).keys()
        return {each.ref for each in due if each.ref.namespace in absent or key_of(each.resource) in unserved}

    def _repair_task(self, desired: Desired, drift: ObjectDrift) -> ApplyTask:
        # An object of the same name that replaced a deleted one may be another client's.
        task = self._task(desired, force=not drift.deleted)
        exhausted = tuple(parse(field.difference.path) for field in drift.fields if field.exhausted)
        return msgspec.structs.replace(task, force_if_owned=True, unrepaired=exhausted)


class _Survey(msgspec.Struct, frozen=True):
    """What one run is to do."""

    desired: tuple[Desired, ...]
    snapshot: Snapshot
    tasks: list[ApplyTask]
    """Objects whose manifest changed, and repairs."""
    drifts: list[ObjectDrift] = []
    seen: Mapping[ObjectRef, Seen] = {}
    """New states of objects that changed and are still as desired."""
    checked: int = 0

    @property
    def refs(self) -> set[ObjectRef]:
        return {each.ref for each in self.desired}

    def blocker(self, results: Mapping[ObjectRef, ObjectResult]) -> ObjectRef | None:
        """Return an object because of which nothing may be pruned: it was not applied or could not be compared."""
        failed = (ref for ref, result in results.items() if result.outcome not in SUCCEEDED)
        unknown = (drift.ref for drift in self.drifts if drift.error)
        return next(chain(failed, unknown), None)


def _report(desired: Iterable[Desired], results: dict[ObjectRef, ObjectResult]) -> ApplyReport:
    """Return all results in apply order; objects without one are unchanged."""
    ordered = (each.ref for stage in group_by_stage(desired, lambda each: each.ref) for each in stage)
    return ApplyReport(tuple(results.get(ref) or ObjectResult(ref, Outcome.UNCHANGED, sent=False) for ref in ordered))
