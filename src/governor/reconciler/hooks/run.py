"""Runs the hooks of one event: one after another, each recorded before its object is created.

A call waits for no Job, Pod or deletion: the caller repeats it. A hook whose record was written and whose object is
missing is created again, so that every hook runs at least once.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeAlias

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset import ApplySet, DriftMode, Outcome, PruneOutcome, PruneReport
from governor.kube.applyset.live import find_kinds, get
from governor.kube.applyset.results import SETTLED
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object, ObjectRef, ref_of
from governor.process.clock import Clock
from governor.reconciler.hooks.plan import (
    DeletePolicy,
    Step,
    describe,
    hooks_for,
    is_overdue,
    is_removed,
    is_replaced,
    manifest_of,
    name_of,
    next_step,
    runs,
)
from governor.reconciler.hooks.records import Records, records_for
from governor.reconciler.kinds.module_instance import HookRecord, HookState
from governor.reconciler.render.request import Hook

_GONE = frozenset({PruneOutcome.REMOVED, PruneOutcome.ABSENT})
_REJECTED = frozenset({Outcome.REFUSED, Outcome.CONFLICT})


class HookContext(msgspec.Struct, frozen=True):
    """What the hooks of one module run with."""

    objects: ApplySet
    """The hooks' own set. Its ``keep_annotations`` should be empty: Helm removes hooks in spite of them."""
    client: Client
    """Reads the live objects of the hooks."""
    namespace: str
    """Namespace of hooks that name none: the ``default_namespace`` of the set."""
    clock: Clock
    reference: str
    """Digest of the chart and values that the hooks run for."""
    timeout_s: float
    """Time limit of each hook, and of the removal of those that have succeeded."""
    save: Callable[[tuple[HookRecord, ...]], Awaitable[None]]
    """Persists the records; an error stops the run before anything else is written."""


class HooksDone(msgspec.Struct, frozen=True):
    """All hooks of the event have succeeded."""

    records: tuple[HookRecord, ...]


class HooksWaiting(msgspec.Struct, frozen=True):
    """A hook runs, or a deletion is in progress: run the hooks again when one of their objects changes."""

    message: str
    records: tuple[HookRecord, ...]


class HookFailed(msgspec.Struct, frozen=True):
    """A hook has failed, or its object could not be removed after its success. The next run tries that again."""

    hook: str
    """Kind and name of its object."""
    message: str
    records: tuple[HookRecord, ...]


HookResult: TypeAlias = HooksDone | HooksWaiting | HookFailed
_Stop: TypeAlias = HooksWaiting | HookFailed


async def run_hooks(
    context: HookContext, hooks: Sequence[Hook], event: str, records: tuple[HookRecord, ...]
) -> HookResult:
    """Run the hooks of an event, such as pre-install, as far as possible without waiting.

    Records of other references are dropped. INVALID if two hooks of the event are the same object.
    """
    return await _Run(context, event, records).run(hooks_for(hooks, event))


class _Place(msgspec.Struct, frozen=True):
    """Where the object of a hook is."""

    hook: Hook
    name: str
    ref: ObjectRef
    resource: ApiResource


class _Run:
    """One run of the hooks of one event."""

    def __init__(self, context: HookContext, event: str, records: tuple[HookRecord, ...]) -> None:
        self._context = context
        self._objects = context.objects
        self._saved = records
        self._records: Records = records_for(event, context.reference, records)

    async def run(self, hooks: Sequence[Hook]) -> HookResult:
        """Advance each hook that has not succeeded, until one must be waited for or fails."""
        for hook in hooks:
            if self._records.has_succeeded(name_of(hook)):
                continue
            if stop := await self._advance(hook):
                return stop
            self._set(name_of(hook), HookState.SUCCEEDED)  # saved with the start of the next one, or at the end
        await self._save()
        return await self._remove_succeeded(hooks) or HooksDone(self._records.entries)

    async def _advance(self, hook: Hook) -> _Stop | None:
        """Do what the hook needs next; return None if it has succeeded."""
        place = await self._locate(hook)
        if place is None:
            kind, version = hook.object["kind"], hook.object["apiVersion"]
            return await self._failed(name_of(hook), f"the cluster does not serve {kind} in {version}")
        live = await get(self._context.client, place.resource, place.ref)
        record = await self._started(place, live)
        step = next_step(hook, record, live)
        if step is Step.SUCCEED:
            return None
        if step is Step.FAIL:
            return await self._fail(place, describe(live))
        if self._is_overdue(record):
            subject = "the object of an earlier run remains" if step is Step.REMOVE else "it has not ended"
            return await self._fail(place, f"{subject} after {self._context.timeout_s:g} s: {describe(live)}")
        if step is Step.WAIT:
            return await self._waiting(place, describe(live))
        return (await self._remove_earlier(place) if step is Step.REMOVE else None) or await self._apply(place)

    async def _locate(self, hook: Hook) -> _Place | None:
        """Return the place of a hook's object, or None if the cluster does not serve its kind."""
        ref = ref_of(hook.object)
        key = (ref.group, hook.object["apiVersion"].rpartition("/")[2], ref.kind)
        resource = (await find_kinds(self._context.client, {key})).get(key)
        if resource is None:
            return None
        namespace = (ref.namespace or self._context.namespace) if resource.namespaced else ""
        return _Place(hook, name_of(hook), msgspec.structs.replace(ref, namespace=namespace), resource)

    async def _started(self, place: _Place, live: Object | None) -> HookRecord:
        """Return the record of a started hook; save it first, unless the hook has started before."""
        record = self._records.get(place.name)
        if record is None or record.state is HookState.FAILED:
            replaces = str(live["metadata"]["uid"]) if live is not None and is_replaced(place.hook) else ""
            record = self._set(place.name, HookState.STARTED, replaces)
            await self._save()
        return record

    async def _apply(self, place: _Place) -> _Stop | None:
        kept = await self._others([place.ref])
        try:
            report = await self._objects.converge([manifest_of(place.hook)], drift=DriftMode.ENFORCE, kept=kept)
        except GovernorError as error:
            if error.kind is not Kind.INVALID:
                raise
            return await self._fail(place, str(error))
        problems = "; ".join(report.problems())
        if any(result.outcome in _REJECTED for result in report.apply.results):
            return await self._fail(place, problems)
        if not report.ok:
            return await self._waiting(place, problems)
        return await self._waiting(place, "it has started") if runs(place.hook) else None

    async def _remove_earlier(self, place: _Place) -> _Stop | None:
        """Remove the object of an earlier run; return None if it is gone."""
        report = await self._remove([place.ref])
        result = next(each for each in report.results if each.ref == place.ref)
        if result.outcome in _GONE:
            return None
        if result.outcome in SETTLED:
            return await self._fail(
                place, f"an object of its name exists, which is not removed: it {result.reason}; delete it"
            )
        return await self._waiting(place, f"the object of an earlier run is being removed: {result.reason}")

    async def _remove_succeeded(self, hooks: Sequence[Hook]) -> _Stop | None:
        """Remove the objects that are not to stay after their success; return None if they are gone."""
        removed = [hook for hook in hooks if is_removed(hook, DeletePolicy.SUCCEEDED)]
        removed = [hook for hook in removed if self._records.last_used(name_of(hook))]
        if not removed:
            return None
        places = [place for place in [await self._locate(hook) for hook in removed] if place]
        listed = await self._objects.inventory()
        due = [place.ref for place in places if place.ref in listed]
        report = await self._remove(due) if due else PruneReport()
        if report.complete:
            return None
        return await self._removing(places, report)

    async def _removing(self, places: Sequence[_Place], report: PruneReport) -> _Stop:
        result = next(each for each in report.results if each.outcome not in SETTLED)
        place = next(place for place in places if place.ref == result.ref)
        if all(map(self._is_overdue, self._records.of_event())):
            why = f"its object remains {self._context.timeout_s:g} s after its success: {result.reason}"
            return await self._failed(place.name, why)
        return await self._waiting(place, f"its object is being removed: {result.reason}")

    async def _remove(self, refs: Collection[ObjectRef]) -> PruneReport:
        """Request the removal of objects of the set, even of one that its inventory does not list."""
        kept = await self._others(refs)
        report = await self._objects.converge((), drift=DriftMode.OFF, allow_empty=True, kept=kept, removals=refs)
        return report.prune

    async def _others(self, refs: Collection[ObjectRef]) -> set[ObjectRef]:
        """Return the other objects of the set. They stay: of earlier events, and of hooks that the chart had before."""
        return set(await self._objects.inventory()) - set(refs)

    async def _fail(self, place: _Place, why: str) -> HookFailed:
        self._set(place.name, HookState.FAILED)
        result = await self._failed(place.name, why)
        if is_removed(place.hook, DeletePolicy.FAILED):
            await self._remove([place.ref])  # the next run waits until it is gone
        return result

    async def _failed(self, name: str, why: str) -> HookFailed:
        await self._save()
        return HookFailed(name, f"{self._subject(name)} failed: {why}", self._records.entries)

    async def _waiting(self, place: _Place, why: str) -> HooksWaiting:
        await self._save()
        return HooksWaiting(f"waiting for {self._subject(place.name)}: {why}", self._records.entries)

    def _subject(self, name: str) -> str:
        return f"the {self._records.event} hook {name}"

    def _set(self, name: str, state: HookState, replaces: str = "") -> HookRecord:
        self._records = self._records.with_state(name, state, self._context.clock.now(), replaces)
        return self._records.entries[-1]

    def _is_overdue(self, record: HookRecord) -> bool:
        return is_overdue(record, self._context.clock.now(), self._context.timeout_s)

    async def _save(self) -> None:
        if self._records.entries != self._saved:
            await self._context.save(self._records.entries)
            self._saved = self._records.entries
