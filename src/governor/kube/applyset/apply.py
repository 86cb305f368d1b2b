"""Server-side apply of one object (``Writer``) and of many in stages (``ApplyRun``).

Each write is conditional on the state that was read: where no object was found, only a new one may be created; where
one was found, only that object may be changed. An object created in between is read first and never adopted by
accident.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.diff import comparable, differences, with_live_values, without_fields
from governor.kube.applyset.entries import Entries, LiveObjects, seen_in
from governor.kube.applyset.inventory import CLAIM_LOST, ClaimGuard
from governor.kube.applyset.live import (
    adopt_fields,
    applied_fields,
    describe_termination,
    get,
    is_inherited,
    is_terminating,
    managers_of,
    managers_to_adopt,
    owner_of,
    try_get,
    wait_until_served,
    why_not_recreated,
    will_own,
    with_owner_label,
    without_released_fields,
)
from governor.kube.applyset.manifests import Desired
from governor.kube.applyset.order import Stage, gather_bounded, group_by_stage, stage_of
from governor.kube.applyset.results import (
    FOREIGN,
    SUCCEEDED,
    ObjectResult,
    Outcome,
    Seen,
    apply_failure,
    conflicts_of,
    immutable_fields,
    is_stale,
)
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.client import Client
from governor.kube.client.client import JSON_PATCH
from governor.kube.objects import Object, ObjectRef
from governor.process.clock import Clock
from governor.values.paths import Path
from governor.values.treediff import Difference

_ATTEMPTS: Final = 4
_WRITTEN: Final = frozenset({Outcome.CREATED, Outcome.CHANGED, Outcome.RECREATED})
_NOT_CONTENT: Final = frozenset({"apiVersion", "kind", "metadata", "status"})
_ONLY_IF_ABSENT: Final = "1"
"""A resourceVersion that no object has: the server reports CONFLICT if the object exists, and else ignores it."""


class ApplyTask(msgspec.Struct, frozen=True):
    """One object to apply."""

    desired: Desired
    ignored: tuple[Path, ...] = ()
    """Fields that keep their live values."""
    unrepaired: tuple[Path, ...] = ()
    """Fields that keep their live values although they are not as desired."""
    force: bool = False
    """Whether fields of other managers are taken."""
    force_if_owned: bool = False
    """Whether they are taken if the object has the owner label."""
    pinned: bool = False
    """Whether the first attempt is for the resourceVersion of the live state only, which was not read just now."""

    @property
    def kept(self) -> tuple[Path, ...]:
        """Return all fields that keep their live values."""
        return self.ignored + self.unrepaired


class Writer:
    """Applies objects of one set; with ``dry_run`` the server only computes the result."""

    def __init__(self, client: Client, owner: Owner, settings: Settings, guard: ClaimGuard, *, dry_run: bool) -> None:
        self._client = client
        self._owner = owner
        self._settings = settings
        self._guard = guard
        self._dry_run = dry_run

    async def write(self, task: ApplyTask, live: Object | None) -> ObjectResult:
        """Apply the object onto the live state last read; re-read and retry if that is stale. Errors become results."""
        ref = task.desired.ref
        try:
            for _ in range(_ATTEMPTS):
                try:
                    return await self._attempt(task, live)
                except GovernorError as error:
                    fields = immutable_fields(error) if live else ()
                    # A field conflict concerns an object that was not read yet, or not just now.
                    is_unread = (live is None or task.pinned) and error.kind is Kind.CONFLICT
                    if not (fields or is_stale(error) or is_unread):
                        raise
                    last = error
                before, live = live, await get(self._client, task.desired.resource, ref)
                task = msgspec.structs.replace(task, pinned=False)
                if fields and before and live and before["metadata"]["uid"] == live["metadata"]["uid"]:
                    return await self._recreate(task, live, f"{', '.join(fields)} is immutable")
        except GovernorError as error:
            if error.code == CLAIM_LOST:
                raise
            return apply_failure(ref, error)
        return apply_failure(ref, last)

    async def compare(self, task: ApplyTask, live: Object) -> tuple[Difference, ...]:
        """Return what a forced apply would change."""
        after = await self._apply(task, live, force=True, dry_run=True)
        return _visible_differences(task, live, after)

    def rejection(self, task: ApplyTask, live: Object) -> ObjectResult | None:
        """Return why the live object may not be written: it belongs to another set or manager, or terminates."""
        owner = owner_of(live, self._settings)
        if owner not in {"", self._owner.id, *self._settings.inherited_owners}:
            error = f"belongs to {owner!r}; an object can be in one set only, remove it from one of them"
            return ObjectResult(task.desired.ref, Outcome.REFUSED, error=error, code=FOREIGN)
        if self._settings.refuse_foreign and not will_own(live, self._owner, self._settings):
            others = ", ".join(sorted(managers_of(live))) or "an unknown client"
            error = f"exists already and is managed by {others}; delete it, or adopt it"
            return ObjectResult(task.desired.ref, Outcome.REFUSED, error=error, code=FOREIGN)
        if is_terminating(live):
            return _terminating(task.desired.ref, live)
        return None

    async def _attempt(self, task: ApplyTask, live: Object | None) -> ObjectResult:
        ref = task.desired.ref
        if live is not None and task.kept and not self._dry_run:
            live = await get(self._client, task.desired.resource, ref)  # their values may have changed
        if live is not None and (rejected := self.rejection(task, live)):
            return rejected
        owned = will_own(live, self._owner, self._settings)
        current = live if live is None or self._dry_run else await self._adopt(task, live)
        is_ours = live is not None and owner_of(live, self._settings) == self._owner.id
        force = task.force or (task.force_if_owned and is_ours)
        after = await self._apply(task, current, force=force, dry_run=self._dry_run)
        if is_terminating(after):  # since it was read
            return _terminating(ref, after)
        if live is not None and self._dry_run:
            after = await self._after_adoption(task, live, after)
        changes = _visible_differences(task, live, after) if live and self._dry_run else ()
        return ObjectResult(
            ref,
            self._outcome(live, after, changes),
            uid=str(after["metadata"]["uid"]),
            differences=changes,
            shared=not owned,
            seen=Seen() if task.unrepaired else seen_in(after, task.desired.resource, task.ignored),
        )

    async def _recreate(self, task: ApplyTask, live: Object, reason: str) -> ObjectResult:
        """Delete the object and create it again, if that is permitted by its live state, which was read just now."""
        ref, resource = task.desired.ref, task.desired.resource
        if why_not := why_not_recreated(task.desired, live, self._owner, self._settings):
            return ObjectResult(ref, Outcome.REFUSED, error=f"{reason}; {why_not}")
        if self._dry_run:
            return ObjectResult(ref, Outcome.RECREATED, reason=reason)
        await self._guard.before_write()
        await self._client.delete(resource, ref.name, ref.namespace, uid=live["metadata"]["uid"])
        remaining = await get(self._client, resource, ref)
        if remaining is not None:
            error = f"{reason}; it is created again when it is gone: {describe_termination(remaining)}"
            return ObjectResult(ref, Outcome.TERMINATING, error=error)
        manifest = with_live_values(task.desired.manifest, live, task.kept)
        kept = msgspec.structs.replace(task, desired=msgspec.structs.replace(task.desired, manifest=manifest))
        created = await self._attempt(kept, None)
        return msgspec.structs.replace(created, outcome=Outcome.RECREATED, reason=reason)

    def _outcome(self, before: Object | None, after: Object, changes: tuple[Difference, ...]) -> Outcome:
        if before is None:
            return Outcome.CREATED
        if self._dry_run:
            return Outcome.CHANGED if changes else Outcome.UNCHANGED
        if before["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]:
            return Outcome.UNCHANGED
        # Other clients write too: the resourceVersion alone does not prove a change by this apply.
        manager = self._settings.manager
        same_fields = applied_fields(before, manager) == applied_fields(after, manager)
        return Outcome.UNCHANGED if same_fields and comparable(before) == comparable(after) else Outcome.CHANGED

    async def _adopt(self, task: ApplyTask, live: Object) -> Object:
        """Move the adopted managers' fields and set the owner label in one patch, so that a crash cannot split them."""
        fields = adopt_fields(live, managers_to_adopt(live, self._settings), self._settings.manager)
        # An apply alone cannot replace an inherited label that this manager has by an update.
        if fields is None and not is_inherited(live, self._settings):
            return live
        labels = with_owner_label(live, self._owner, self._settings)["metadata"]["labels"]
        moved = [{"op": "replace", "path": "/metadata/managedFields", "value": fields}] if fields else []
        patch = [
            *moved,
            {"op": "add", "path": "/metadata/labels", "value": labels},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"]},
        ]
        resource, ref, manager = task.desired.resource, task.desired.ref, self._settings.manager
        await self._guard.before_write()
        return await self._client.patch(
            resource, ref.name, ref.namespace, patch, manager=manager, content_type=JSON_PATCH
        )

    async def _after_adoption(self, task: ApplyTask, live: Object, after: Object) -> Object:
        """Return the result of a dry run as it is after an adoption, which also removes fields, with its defaults."""
        adopted, ref = managers_to_adopt(live, self._settings) & managers_of(live), task.desired.ref
        manager = self._settings.manager
        expected = without_released_fields(live, after, adopted, manager)
        if expected == after:
            return after
        return await self._client.patch(
            task.desired.resource,
            ref.name,
            ref.namespace,
            _replacement(live, expected),
            manager=manager,
            content_type=JSON_PATCH,
            dry_run=True,
        )

    async def _apply(self, task: ApplyTask, live: Object | None, *, force: bool, dry_run: bool) -> Object:
        manifest = self._manifest(task, live, dry_run=dry_run)
        resource, manager = task.desired.resource, self._settings.manager
        if not dry_run:
            await self._guard.before_write()
        try:
            return await self._client.apply(resource, manifest, manager=manager, force=force, dry_run=dry_run)
        except GovernorError as error:
            # A dry run does not adopt first, so conflicts with adopted managers do not count.
            conflicting = {conflict.manager for conflict in conflicts_of(error)}
            adopts_all = live and conflicting and conflicting <= managers_to_adopt(live, self._settings)
            if force or not (dry_run and adopts_all):
                raise
        return await self._client.apply(resource, manifest, manager=manager, force=True, dry_run=True)

    def _manifest(self, task: ApplyTask, live: Object | None, *, dry_run: bool) -> Object:
        manifest = task.desired.manifest
        if will_own(live, self._owner, self._settings):
            manifest = with_owner_label(manifest, self._owner, self._settings)
        if live is None:
            precondition = {"resourceVersion": _ONLY_IF_ABSENT}
        else:
            manifest = with_live_values(manifest, live, task.kept)
            # Live values of ignored fields are written only onto the state that they were read from.
            is_pinned = task.pinned or (task.kept and not dry_run)
            keys = ("uid", "resourceVersion") if is_pinned else ("uid",)
            precondition = {key: live["metadata"][key] for key in keys}
        return {**manifest, "metadata": {**manifest["metadata"], **precondition}}


class ApplyRun:
    """Applies objects stage by stage."""

    def __init__(self, client: Client, writer: Writer, guard: ClaimGuard, settings: Settings, clock: Clock) -> None:
        self._client = client
        self._writer = writer
        self._guard = guard
        self._settings = settings
        self._clock = clock

    async def run(
        self, tasks: Sequence[ApplyTask], live: LiveObjects, first: Sequence[Collection[ObjectRef]] = ()
    ) -> dict[ObjectRef, ObjectResult]:
        """Apply all objects of each stage, in it those of ``first`` before the others, until something fails.

        The claim was stored a moment ago: it is not read before the first stage.
        """
        results: dict[ObjectRef, ObjectResult] = {}
        last: dict[ObjectRef, ObjectResult] = {}
        for stage in group_by_stage(tasks, lambda task: task.desired.ref, first):
            failed = next((result.ref for result in results.values() if result.outcome not in SUCCEEDED), None)
            if failed:
                results |= skipped(stage, failed)
            else:
                if last:
                    await self._begin_stage(last)
                last = await self._apply_stage(stage, live)
                results |= last
        if any(stage_of(ref) is Stage.OTHERS and each.outcome in _WRITTEN for ref, each in last.items()):
            await self._clock.sleep(self._settings.quiet_s)
        return results

    async def _begin_stage(self, last: Mapping[ObjectRef, ObjectResult]) -> None:
        """Read the claim, and wait until controllers know what the stage before has created."""
        began_s = self._clock.monotonic()
        await self._guard.before_stage()
        left_s = began_s + self._settings.settle_s - self._clock.monotonic()
        if left_s > 0 and any(result.outcome is Outcome.CREATED for result in last.values()):
            await self._clock.sleep(left_s)

    async def read(self, due: Sequence[Desired], entries: Entries) -> LiveObjects:
        """Read the objects that the inventory lists; others are assumed to be new until the server rejects that."""
        known = [desired for desired in due if desired.ref in entries and entries[desired.ref].uid]
        found = await gather_bounded(known, self._get, self._settings.concurrency)
        return {desired.ref: live for desired, live in zip(known, found, strict=True)}

    async def _get(self, desired: Desired) -> Object | GovernorError | None:
        return await try_get(self._client, desired)

    async def _apply_stage(self, stage: Sequence[ApplyTask], objects: LiveObjects) -> dict[ObjectRef, ObjectResult]:
        async def apply(task: ApplyTask) -> ObjectResult:
            live = objects.get(task.desired.ref)
            if isinstance(live, GovernorError):
                return apply_failure(task.desired.ref, live)
            result = await self._writer.write(task, live)
            return await self._wait_if_crd(task.desired, result)

        return {result.ref: result for result in await gather_bounded(stage, apply, self._settings.concurrency)}

    async def _wait_if_crd(self, desired: Desired, result: ObjectResult) -> ObjectResult:
        if stage_of(desired.ref) is not Stage.CRDS or result.outcome not in SUCCEEDED:
            return result
        try:
            why = await wait_until_served(self._client, desired, self._clock, self._settings.served_timeout_s)
        except GovernorError as error:
            return apply_failure(desired.ref, error)
        return ObjectResult(desired.ref, Outcome.FAILED, error=why) if why else result


def _replacement(live: Object, expected: Object) -> list[Object]:
    """Return the JSON patch that gives a live object another content; the server decides on the rest."""
    content = {key: value for key, value in expected.items() if key not in _NOT_CONTENT}
    removed = [key for key in live if key not in {*expected, *_NOT_CONTENT}]
    metadata = {f"metadata/{key}": expected["metadata"].get(key) or {} for key in ("labels", "annotations")}
    changes = [{"op": "add", "path": f"/{key}", "value": value} for key, value in (content | metadata).items()]
    return [*changes, *({"op": "remove", "path": f"/{key}"} for key in removed)]


def _visible_differences(task: ApplyTask, live: Object, after: Object) -> tuple[Difference, ...]:
    return differences(without_fields(live, task.ignored), without_fields(after, task.ignored))


def _terminating(ref: ObjectRef, live: Object) -> ObjectResult:
    error = f"{describe_termination(live)}; it is applied again when it is gone"
    return ObjectResult(ref, Outcome.TERMINATING, error=error)


def skipped(stage: Sequence[ApplyTask], failed: ObjectRef) -> dict[ObjectRef, ObjectResult]:
    """Return SKIPPED for all objects, because one could not be applied."""
    return {
        task.desired.ref: ObjectResult(
            task.desired.ref, Outcome.SKIPPED, error=f"{failed} must be applied first", sent=False
        )
        for task in stage
    }
