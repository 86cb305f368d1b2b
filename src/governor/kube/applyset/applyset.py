"""The one way to write to Kubernetes: all objects of one owner in one cluster.

Combines the decisions and actions of the modules beside it.
"""

import asyncio
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.apply import ApplyRun, ApplyTask, Writer, skipped
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
    Entry,
    LiveObjects,
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
from governor.kube.applyset.live import digest_key, find_kinds, without_prerequisites
from governor.kube.applyset.manifests import Desired, expand, kinds_to_discover, validate, with_digest_key
from governor.kube.applyset.order import gather_bounded
from governor.kube.applyset.prune import Pruner
from governor.kube.applyset.reports import ConvergeReport, Plan, PruneReport, UnrecordedError, report_of
from governor.kube.applyset.results import (
    SUCCEEDED,
    ObjectResult,
    Outcome,
    PruneResult,
    Seen,
    apply_failure,
)
from governor.kube.applyset.settings import Claim, Owner, Settings
from governor.kube.client import Client
from governor.kube.objects import Object, ObjectRef
from governor.process.clock import Clock, SystemClock
from governor.values.paths import parse

_KEY_BYTES: Final = 16


class ApplySet:
    """The objects of one owner in one cluster. Cheap to create; remembers between calls only when it took its claim.

    With a claim, only the holder of the newest claim can write: of several owners that share the cluster, of a process
    that was suspended, or of a restored backup. PRECONDITION names the present holder.

    With ``records``, inventory and claim are read and written by that client, and ``client`` needs rights on the
    objects only: it may impersonate a tenant.
    """

    def __init__(
        self,
        client: Client,
        owner: Owner,
        settings: Settings,
        clock: Clock | None = None,
        claim: Claim | None = None,
        *,
        records: Client | None = None,
    ) -> None:
        self._client = client
        self._owner = owner
        self._settings = settings
        self._clock = clock or SystemClock()
        self._inventory = Inventory(records or client, owner, settings)
        self._guard = ClaimGuard(
            records or client,
            self._inventory,
            claim,
            self._clock,
            exclusive=settings.exclusive_claim,
            fresh_s=settings.claim_fresh_s,
        )

    async def inventory(self) -> Entries:
        """Return the applied and not yet pruned objects; PRECONDITION if damaged or of another owner."""
        return (await self._inventory.read()).entries

    async def stored_claim(self) -> Claim | None:
        """Return the claim of the set's present holder, or None."""
        stored = (await self._inventory.read()).claim
        return stored.claim if stored else None

    async def take_claim(self) -> None:
        """Store the claim now, so that the wait of a new holder is over when its first change arrives.

        PRECONDITION if a newer claim is stored, CONFLICT if another writer of the set was faster.
        """
        await self._guard.take(await self._inventory.read())

    async def permit_write(self) -> None:
        """Return when the holder of the claim may write something that belongs to others, such as an annotation.

        PRECONDITION if another holder has claimed the set.
        """
        await self._guard.permit()

    async def converge(
        self,
        manifests: Iterable[Any],
        *,
        drift: DriftMode = DriftMode.ENFORCE,
        repairs: Iterable[Repair] = (),
        allow_empty: bool = False,
        rehearse: bool = False,
        first: Sequence[Collection[ObjectRef]] = (),
        kept: Collection[ObjectRef] = (),
        prune: bool = True,
        removals: Collection[ObjectRef] = (),
        suspects: Collection[ObjectRef] = (),
        unchanged: Mapping[ObjectRef, str] | None = None,
    ) -> ConvergeReport:
        """Bring the cluster to the desired state: apply what changed, repair drift, prune what is no longer desired.

        Prunes only if everything was applied, and waits for no deletion: if the report is ``pending``, call again when
        an object of the set is gone. ``repairs`` are those of the last report. INVALID with all problems before
        anything is written; PRECONDITION if all objects would be pruned and that is not allowed; CONFLICT if another
        writer of the set was faster; ``UnrecordedError`` if the inventory could not be written at last.

        With ``rehearse`` several changed objects are written only if a dry run of all succeeds. Objects of ``first``
        are applied before the others of their stage, one collection after the other. Those of ``kept`` stay in the
        inventory although they are not desired; without ``prune`` all objects do. Those of ``removals`` are pruned even
        if the inventory was lost and does not list them: without the owner label they are not deleted. Those of
        ``suspects`` are compared even if they did not change since they were seen as desired.

        Of ``unchanged`` a watch of the caller says that they are as they were seen last, at these resourceVersions:
        they are not looked at for drift, except for Secrets, whose keys are needed, and written without being read
        first. If the watch was late, the API server rejects that, and they are read.
        """
        history = RepairHistory(repairs, self._settings, self._clock.now())
        survey = await self._survey(manifests, drift, history, suspects, unchanged or {})
        survey = msgspec.structs.replace(
            survey,
            rehearse=rehearse,
            first=tuple(first),
            kept=frozenset(kept) if prune else survey.undesired,
            removals=frozenset(removals),
        )
        if survey.snapshot.entries and not survey.desired and not allow_empty:
            raise self._emptied(survey.snapshot.entries)
        results, pruned, entries = await self._change(survey)
        drifts = [msgspec.structs.replace(each, repair=results.get(each.ref)) for each in survey.drifts]
        updated = history.updated(drifts, (each.ref for each in survey.desired))
        return ConvergeReport(
            report_of(survey.desired, results, survey.first),
            DriftReport(drift, survey.checked, tuple(drifts), updated),
            PruneReport(pruned),
            entries,
        )

    async def find_drift(
        self, manifests: Iterable[Any], repairs: Iterable[Repair] = (), suspects: Collection[ObjectRef] = ()
    ) -> DriftReport:
        """Return how the objects whose manifests did not change differ from them, without writing."""
        repairs = tuple(repairs)
        history = RepairHistory(repairs, self._settings, self._clock.now())
        # In this mode a deleted Secret, and with it the key of its digest, is drift and not a new manifest.
        survey = await self._survey(manifests, DriftMode.ENFORCE, history, suspects)
        return DriftReport(DriftMode.WARN, survey.checked, tuple(survey.drifts), repairs)

    async def delete_all(self, *, dry_run: bool = False) -> PruneReport:
        """Delete all objects of the set, and the inventory if all of them are settled.

        Waits for no deletion: if the report is not complete, call again when an object of the set is gone.
        """
        snapshot = await self._inventory.read()
        if dry_run or not snapshot.uid:
            return PruneReport(await self._prune(snapshot.entries, dry_run=True))
        await self._guard.verify_cluster()
        snapshot = await self._guard.begin(snapshot, before_prune(snapshot.entries, ()))
        report = PruneReport(await self._prune(snapshot.entries))
        if report.complete:
            await self._inventory.delete(snapshot)
        else:
            await self._inventory.write(snapshot, after_prune(snapshot.entries, report.results))
        return report

    async def orphan(self) -> None:
        """Delete the inventory and leave all objects in place."""
        snapshot = await self._inventory.read()
        self._guard.verify(snapshot)
        if snapshot.uid:
            await self._inventory.delete(snapshot)

    async def plan(self, manifests: Iterable[Any], *, drift: DriftMode = DriftMode.ENFORCE) -> Plan:
        """Return what ``converge`` would apply and prune, without writing; of adopted objects also what it removes."""
        survey = await self._survey(manifests, drift, RepairHistory((), self._settings, self._clock.now()))
        unplannable = await without_prerequisites(self._client, [task.desired for task in survey.tasks])
        writer = self._writer(dry_run=True)

        async def plan(task: ApplyTask) -> ObjectResult:
            if task.desired.ref in unplannable:
                return ObjectResult(task.desired.ref, Outcome.CREATED, sent=False)
            return await writer.write(task, None)

        planned = await gather_bounded(survey.tasks, plan, self._settings.concurrency)
        pruned = await self._prune(survey.snapshot.entries, survey.refs, dry_run=True)
        return Plan(report_of(survey.desired, {result.ref: result for result in planned}), PruneReport(pruned))

    async def _survey(
        self,
        manifests: Iterable[Any],
        mode: DriftMode,
        history: RepairHistory,
        suspects: Collection[ObjectRef] = (),
        unchanged: Mapping[ObjectRef, str] = MappingProxyType({}),
    ) -> "_Survey":
        """Return what is to be done: validate, read the inventory, and compare what changed in the cluster."""
        desired = await self._validate(manifests)
        snapshot = await self._inventory.read()
        known = [each for each in desired if each.ref in snapshot.entries and snapshot.entries[each.ref].uid]
        entries = snapshot.entries
        skipped_refs = {each.ref for each in known} if mode is DriftMode.OFF else unchanged
        observer = Observer(self._client, self._owner, self._settings)
        observed = await observer.observe(
            each for each in known if each.ref not in skipped_refs or is_secret(each.manifest)
        )
        desired = tuple(self._with_digest_key(each, observed.get(each.ref)) for each in desired)
        recorded = [each for each in known if mode is DriftMode.ENFORCE and entries[each.ref].digest]
        keyless = {each.ref for each in recorded if self._is_keyless(each, observed.get(each.ref))}
        applied = [each for each in desired if each.ref in keyless or is_applied(each, entries)]
        changed = [each for each in desired if each.ref not in keyless and not is_applied(each, entries)]
        live = self._known_states(changed, entries, observed, unchanged)
        tasks = [self._task(each, pinned=each.ref in live) for each in changed]
        if mode is DriftMode.OFF:
            return _Survey(desired, snapshot, tasks, {**live, **observer.whole})
        check = DriftCheck(self._client, self._writer(dry_run=True), history)

        async def compare(each: Desired) -> ObjectDrift | Seen | None:
            entry = entries[each.ref]
            if each.ref not in observed:
                return None
            if each.ref in keyless or each.ref in suspects:  # the manifest of a keyless one may have changed too
                entry = msgspec.structs.replace(entry, seen=Seen())
            return await check.check(self._task(each), entry, observed[each.ref])

        found = await gather_bounded(applied, compare, self._settings.concurrency)
        drifts = [each for each in found if isinstance(each, ObjectDrift)]
        seen = {each.ref: state for each, state in zip(applied, found, strict=True) if isinstance(state, Seen)}
        if mode is DriftMode.ENFORCE:
            by_ref = {each.ref: each for each in applied}
            tasks += [self._repair_task(by_ref[each.ref], each) for each in drifts if each.repairable]
        return _Survey(desired, snapshot, tasks, {**live, **observer.whole}, drifts, seen, len(applied))

    def _known_states(
        self, changed: Iterable[Desired], entries: Entries, observed: LiveObjects, unchanged: Mapping[ObjectRef, str]
    ) -> dict[ObjectRef, Object]:
        """Return of which objects enough is known to write them: metadata as observed, or as the caller watches it."""
        known: dict[ObjectRef, Object] = {}
        for ref in (each.ref for each in changed if each.ref in entries and not self._task(each).kept):
            live = observed.get(ref)
            if isinstance(live, dict):
                known[ref] = live
            elif ref in unchanged and ref not in observed and entries[ref].uid:
                labels = {self._settings.owner_label: self._owner.id}
                version = {"uid": entries[ref].uid, "resourceVersion": unchanged[ref]}
                known[ref] = {"metadata": {**version, "labels": labels}}
        return known

    def _with_digest_key(self, desired: Desired, live: Object | GovernorError | None) -> Desired:
        if not is_secret(desired.manifest):
            return desired
        key = digest_key(live, self._settings) or secrets.token_urlsafe(_KEY_BYTES)
        return with_digest_key(desired, key, self._settings)

    def _is_keyless(self, desired: Desired, live: Object | GovernorError | None) -> bool:
        """Return whether another client deleted a Secret or the key of its digest: drift, even with a new manifest."""
        has_key = isinstance(live, GovernorError) or digest_key(live, self._settings)
        return is_secret(desired.manifest) and not has_key

    async def _validate(self, manifests: Iterable[Any]) -> tuple[Desired, ...]:
        located = expand(manifests)
        served = await find_kinds(self._client, kinds_to_discover(located))
        return validate(located, served, self._owner, self._settings)

    def _task(self, desired: Desired, *, force: bool = False, pinned: bool = False) -> ApplyTask:
        ignored = patterns_for(desired.ref, self._settings.ignored_fields)
        return ApplyTask(desired, ignored, force=force or self._settings.force_conflicts, pinned=pinned)

    async def _change(
        self, survey: "_Survey"
    ) -> tuple[dict[ObjectRef, ObjectResult], tuple[PruneResult, ...], Entries]:
        """Record the intents, apply, prune if everything was applied, and record the results."""
        snapshot, desired = survey.snapshot, survey.refs | survey.kept
        entries: Entries = {**survey.unlisted, **after_check(snapshot.entries, survey.seen)}
        due = [task.desired for task in survey.tasks]
        if not due and entries.keys() <= desired:
            if survey.seen:
                self._guard.verify(snapshot)
            await self._inventory.write(snapshot, entries)
            return {}, (), entries
        run = ApplyRun(self._client, self._writer(), self._guard, self._settings, self._clock)
        unread = [each for each in due if each.ref not in survey.live]
        read, _ = await asyncio.gather(run.read(unread, entries), self._guard.verify_cluster())
        live = {**survey.live, **read}
        if survey.rehearse and (refused := await self._rehearse(survey, live)):
            return refused, skip_prune(entries, desired, next(iter(refused))), entries
        snapshot = await self._guard.begin(snapshot, before_prune(before_apply(entries, due, live), desired))
        results = await run.run(survey.tasks, live, survey.first)
        entries = after_apply(snapshot.entries, due, results, survey.snapshot.entries.keys())
        blocker = survey.blocker(results)
        pruned = skip_prune(entries, desired, blocker) if blocker else await self._prune(entries, desired)
        entries = after_prune(entries, pruned)
        try:
            await self._inventory.write(snapshot, entries)
        except GovernorError as error:
            raise UnrecordedError(error, report_of(survey.desired, results, survey.first)) from error
        return results, pruned, entries

    async def _rehearse(self, survey: "_Survey", live: LiveObjects) -> dict[ObjectRef, ObjectResult]:
        """Apply the changed objects, if several, in a dry run; if one is refused, return the results of all tasks."""
        changed = survey.changed
        excluded = await without_prerequisites(self._client, [task.desired for task in changed])
        writer = self._writer(dry_run=True)

        async def write(task: ApplyTask) -> ObjectResult:
            state = live.get(task.desired.ref)
            if isinstance(state, GovernorError):
                return apply_failure(task.desired.ref, state)
            return await writer.write(task, state)

        due = [task for task in changed if task.desired.ref not in excluded] if len(changed) > 1 else []
        results = await gather_bounded(due, write, self._settings.concurrency)
        refused = {each.ref: each for each in results if each.outcome not in SUCCEEDED}
        rest = [task for task in survey.tasks if task.desired.ref not in refused]
        return refused | skipped(rest, next(iter(refused))) if refused else {}

    def _writer(self, *, dry_run: bool = False) -> Writer:
        return Writer(self._client, self._owner, self._settings, self._guard, dry_run=dry_run)

    async def _prune(
        self, entries: Entries, desired: Collection[ObjectRef] = (), *, dry_run: bool = False
    ) -> tuple[PruneResult, ...]:
        pruner = Pruner(self._client, self._owner, self._settings, self._guard, dry_run=dry_run)
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
    live: LiveObjects = {}
    """Objects that need not be read again: with their content, or with the metadata that a write needs."""
    drifts: list[ObjectDrift] = []
    seen: Mapping[ObjectRef, Seen] = {}
    """New states of objects that changed and are still as desired."""
    checked: int = 0
    rehearse: bool = False
    first: tuple[Collection[ObjectRef], ...] = ()
    kept: frozenset[ObjectRef] = frozenset()
    removals: frozenset[ObjectRef] = frozenset()

    @property
    def refs(self) -> set[ObjectRef]:
        return {each.ref for each in self.desired}

    @property
    def undesired(self) -> frozenset[ObjectRef]:
        """Entries that are not desired, under any API group."""
        entries, refs = self.snapshot.entries, self.refs
        return frozenset(entries.keys() - refs - {each.ref for each in kept_aliases(entries, refs)})

    @property
    def changed(self) -> list[ApplyTask]:
        """Tasks that are no repairs: one repair does not depend on another."""
        drifted = {drift.ref for drift in self.drifts}
        return [task for task in self.tasks if task.desired.ref not in drifted]

    @property
    def unlisted(self) -> dict[ObjectRef, Entry]:
        """Entries for the objects to be removed that the inventory does not list."""
        return {ref: Entry(ref) for ref in self.removals - self.refs if ref not in self.snapshot.entries}

    def blocker(self, results: Mapping[ObjectRef, ObjectResult]) -> ObjectRef | None:
        """Return an object because of which nothing may be pruned: it was not applied or could not be compared."""
        failed = (ref for ref, result in results.items() if result.outcome not in SUCCEEDED)
        unknown = (drift.ref for drift in self.drifts if drift.error)
        return next(chain(failed, unknown), None)
