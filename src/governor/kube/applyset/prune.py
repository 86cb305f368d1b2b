"""Pruning in reverse apply order, as far as possible without waiting. In case of doubt an object is kept.

The deletions of a stage are requested and checked once. While one of its objects still exists, the stages after it are
skipped; the next run continues. A namespace or CustomResourceDefinition that contains objects of others is held.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.contents import held_by_contents
from governor.kube.applyset.entries import Entry
from governor.kube.applyset.inventory import CLAIM_LOST, ClaimGuard
from governor.kube.applyset.live import (
    NOT_SERVED,
    describe_termination,
    get,
    has_applied,
    is_adoptable,
    is_terminating,
    keep_annotation,
    owner_of,
)
from governor.kube.applyset.order import gather_bounded, group_by_stage
from governor.kube.applyset.results import PruneOutcome, PruneResult, is_stale, prune_failure
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object, ObjectRef

_ATTEMPTS: Final = 4
_DELETED: Final = frozenset({PruneOutcome.REMOVED, PruneOutcome.ABSENT})
_BLOCKING: Final = frozenset({PruneOutcome.TERMINATING, PruneOutcome.FAILED})


def decide(entry: Entry, live: Object | None, owner: Owner, settings: Settings) -> PruneResult:
    """Return the intended outcome: REMOVED and RELEASED are still to be carried out, TERMINATING to be waited for."""
    ref = entry.ref
    if live is None:
        return PruneResult(ref, PruneOutcome.ABSENT)
    if entry.uid and live["metadata"]["uid"] != entry.uid:
        return PruneResult(ref, PruneOutcome.FOREIGN, "was deleted and created again outside this set")
    if annotation := keep_annotation(live, settings.keep_annotations):
        return PruneResult(ref, PruneOutcome.KEPT, f"has the annotation {annotation}")
    if owner_of(live, settings) != owner.id and not (
        _lost_label(entry, live, settings) or is_adoptable(live, settings)
    ):
        return _not_owned(ref, live, settings)
    if is_terminating(live):
        return PruneResult(ref, PruneOutcome.TERMINATING, describe_termination(live))
    return PruneResult(ref, PruneOutcome.REMOVED)


def is_out_of_scope(ref: ObjectRef, settings: Settings) -> bool:
    """Return whether the set may not touch the object, whatever its inventory lists."""
    return settings.allowed_namespaces is not None and ref.namespace not in settings.allowed_namespaces


class _Target(msgspec.Struct, frozen=True):
    """One object and its result so far."""

    entry: Entry
    result: PruneResult
    resource: ApiResource | None = None
    live: Object | None = None

    @property
    def uid(self) -> str:
        return str(self.live["metadata"]["uid"]) if self.live else self.entry.uid

    def with_outcome(self, outcome: PruneOutcome, reason: str = "") -> "_Target":
        return msgspec.structs.replace(self, result=PruneResult(self.entry.ref, outcome, reason))


class Pruner:
    """Prunes objects of one set; with ``dry_run`` it only reads."""

    def __init__(self, client: Client, owner: Owner, settings: Settings, guard: ClaimGuard, *, dry_run: bool) -> None:
        self._client = client
        self._owner = owner
        self._settings = settings
        self._guard = guard
        self._dry_run = dry_run

    async def prune(self, entries: Sequence[Entry]) -> tuple[PruneResult, ...]:
        """Prune the objects that may be pruned; a stage starts only if the one before is gone."""
        results: list[PruneResult] = []
        pruned: dict[ObjectRef, str] = {}
        for stage in reversed(group_by_stage(entries, lambda entry: entry.ref)):
            blocking = next((result.ref for result in results if result.outcome in _BLOCKING), None)
            if blocking:
                reason = f"{blocking} must be gone first"
                results += [PruneResult(entry.ref, PruneOutcome.SKIPPED, reason) for entry in stage]
                continue
            if not self._dry_run:
                await self._guard.before_stage()
            targets = await self._prune_stage(stage, pruned)
            results += [target.result for target in targets]
            pruned |= {target.entry.ref: target.uid for target in targets if target.result.outcome in _DELETED}
        return tuple(results)

    async def _prune_stage(self, stage: Sequence[Entry], pruned: dict[ObjectRef, str]) -> list[_Target]:
        async def prune(entry: Entry) -> _Target:
            return await self._prune_object(entry, pruned)

        targets = await gather_bounded(stage, prune, self._settings.concurrency)
        return targets if self._dry_run else await gather_bounded(targets, self._check, self._settings.concurrency)

    async def _prune_object(self, entry: Entry, pruned: dict[ObjectRef, str]) -> _Target:
        if is_out_of_scope(entry.ref, self._settings):
            allowed = sorted(self._settings.allowed_namespaces or ())
            reason = f"this set may only write in the namespaces {allowed}"
            return _Target(entry, PruneResult(entry.ref, PruneOutcome.REFUSED, reason))
        try:
            for _ in range(_ATTEMPTS):
                try:
                    return await self._attempt(entry, pruned)
                except GovernorError as error:
                    if not is_stale(error):
                        raise
                    last = error
        except GovernorError as error:
            if error.code == CLAIM_LOST:
                raise
            return _Target(entry, prune_failure(entry.ref, error))
        return _Target(entry, prune_failure(entry.ref, last))

    async def _attempt(self, entry: Entry, pruned: dict[ObjectRef, str]) -> _Target:
        ref = entry.ref
        resource = await self._find_kind(ref)
        if resource is not None and resource.namespaced != bool(ref.namespace):
            # The namespace that was checked against the allowed ones is not the object's.
            scope = "namespaced" if resource.namespaced else "cluster-scoped"
            return _Target(
                entry, PruneResult(ref, PruneOutcome.REFUSED, f"its inventory entry is invalid: {ref.kind} is {scope}")
            )
        resource, live = await self._get(ref)
        target = _Target(entry, decide(entry, live, self._owner, self._settings), resource, live)
        if resource is None or live is None:
            return target
        if target.result.outcome is PruneOutcome.REMOVED:
            blocked = await held_by_contents(self._client, ref, live, pruned, self._settings)
            if blocked:
                return msgspec.structs.replace(target, result=blocked)
            if not self._dry_run:
                await self._delete(resource, live)
        elif target.result.outcome is PruneOutcome.RELEASED and not self._dry_run:
            await self._release(resource, live)
        return target

    async def _get(self, ref: ObjectRef) -> tuple[ApiResource | None, Object | None]:
        for last in (False, True):
            resource = await self._find_kind(ref)
            if resource is None:
                break
            try:
                return resource, await get(self._client, resource, ref)
            except GovernorError as error:
                # Discovery was invalidated: if the kind is gone, the next lookup finds that out.
                if last or error.code != NOT_SERVED:
                    raise
        return None, None

    async def _find_kind(self, ref: ObjectRef) -> ApiResource | None:
        """Return the kind, or None if the server certainly no longer serves it: its objects are then gone too."""
        discovery = self._client.discovery
        for verified in (False, True):
            try:
                return await discovery.find(ref.group, ref.kind)
            except GovernorError as error:
                if error.kind is not Kind.NOT_FOUND:
                    raise
            if not verified:
                await discovery.require_ready()
        return None

    async def _delete(self, resource: ApiResource, live: Object) -> None:
        metadata = live["metadata"]
        await self._guard.before_write()
        try:
            await self._client.delete(resource, metadata["name"], metadata.get("namespace", ""), uid=metadata["uid"])
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:  # deleted meanwhile
                raise

    async def _release(self, resource: ApiResource, live: Object) -> None:
        """Apply an empty manifest: the server removes those of the set's fields that have no other manager."""
        metadata = {key: live["metadata"][key] for key in ("name", "namespace", "uid") if key in live["metadata"]}
        empty = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
        await self._guard.before_write()
        await self._client.apply(resource, empty, manager=self._settings.manager)

    async def _check(self, target: _Target) -> _Target:
        """Read a deleted object once: it counts as terminating until a read proves that it is gone."""
        if target.result.outcome not in {PruneOutcome.REMOVED, PruneOutcome.TERMINATING} or target.resource is None:
            return target
        try:
            live = await get(self._client, target.resource, target.entry.ref)
        except GovernorError as error:
            reason = f"deletion was requested, but the object cannot be read: {error.message}"
            return target.with_outcome(PruneOutcome.TERMINATING, reason)
        if live is None or live["metadata"]["uid"] != target.uid:
            return target.with_outcome(PruneOutcome.REMOVED)
        return target.with_outcome(PruneOutcome.TERMINATING, describe_termination(live))


def _lost_label(entry: Entry, live: Object, settings: Settings) -> bool:
    """Return whether the set wrote this very object and only its owner label is gone; a set that shares cannot tell."""
    is_listed = bool(entry.uid) and not owner_of(live, settings)
    return settings.refuse_foreign and is_listed and has_applied(live, settings.manager)


def _not_owned(ref: ObjectRef, live: Object, settings: Settings) -> PruneResult:
    other = owner_of(live, settings)
    if other:
        return PruneResult(ref, PruneOutcome.FOREIGN, f"belongs to {other!r}")
    if has_applied(live, settings.manager):
        return PruneResult(ref, PruneOutcome.RELEASED, "existed before the set, or its owner label was removed")
    return PruneResult(ref, PruneOutcome.FOREIGN, "has neither the owner label nor fields of this set")
