"""Pruning objects of a set in reverse apply order, as far as possible without waiting.

The deletions of a stage are requested and checked once. While one of its objects still exists, the stages after it are
skipped; the next run continues. A namespace or CustomResourceDefinition that contains objects of others is held; its
contents are listed first.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.entries import Entry
from governor.kube.applyset.get import NOT_SERVED, describe_termination, get, is_terminating
from governor.kube.applyset.manifests import kinds_of_crd
from governor.kube.applyset.order import gather_bounded, group_by_stage
from governor.kube.applyset.prune_policy import Content, decide, foreign_contents, held, is_out_of_scope
from governor.kube.applyset.results import PruneOutcome, PruneResult, is_stale, prune_failure
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object, ObjectRef

_NAMESPACE: Final = ("", "Namespace")
_CRD: Final = ("apiextensions.k8s.io", "CustomResourceDefinition")
_ATTEMPTS: Final = 4
_BLOCKING: Final = frozenset({PruneOutcome.TERMINATING, PruneOutcome.FAILED})


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

    def __init__(self, client: Client, owner: Owner, settings: Settings, *, dry_run: bool) -> None:
        self._client = client
        self._owner = owner
        self._settings = settings
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
            targets = await self._prune_stage(stage, pruned)
            results += [target.result for target in targets]
            pruned |= {
                target.entry.ref: target.uid for target in targets if target.result.outcome is PruneOutcome.REMOVED
            }
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
            blocked = await _held_by_contents(self._client, ref, live, pruned, self._settings.concurrency)
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
        try:
            await self._client.delete(resource, metadata["name"], metadata.get("namespace", ""), uid=metadata["uid"])
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:  # deleted meanwhile
                raise

    async def _release(self, resource: ApiResource, live: Object) -> None:
        """Apply an empty manifest: the server removes those of the set's fields that have no other manager."""
        metadata = {key: live["metadata"][key] for key in ("name", "namespace", "uid") if key in live["metadata"]}
        empty = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
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


async def _held_by_contents(
    client: Client, ref: ObjectRef, live: Object, pruned: Mapping[ObjectRef, str], concurrency: int
) -> PruneResult | None:
    """Return HELD for a namespace or CustomResourceDefinition with contents of others, or None."""
    try:
        if (ref.group, ref.kind) == _NAMESPACE:
            contents = await _namespace_contents(client, ref.name, concurrency)
        elif (ref.group, ref.kind) == _CRD:
            contents = await _crd_contents(client, live)
        else:
            return None
    except GovernorError as error:
        return PruneResult(ref, PruneOutcome.HELD, f"its contents cannot be listed: {error.message}")
    foreign = foreign_contents(contents, pruned)
    return held(ref, foreign) if foreign else None


async def _namespace_contents(client: Client, namespace: str, concurrency: int) -> list[Content]:
    await client.discovery.require_ready()  # kinds defined a moment ago count too
    kinds = [
        kind
        for kind in await client.discovery.preferred_resources()
        if kind.namespaced and {"list", "delete"} <= kind.verbs
    ]
    if stale := await client.discovery.stale_groups():
        message = f"the servers of the API groups {', '.join(sorted(stale))} do not respond"
        raise GovernorError(Kind.UNAVAILABLE, "kube-group-stale", message)

    async def list_kind(kind: ApiResource) -> list[Content]:
        return await _list(client, kind, namespace)

    return [each for found in await gather_bounded(kinds, list_kind, concurrency) for each in found]


async def _crd_contents(client: Client, crd: Object) -> list[Content]:
    kind = next(kinds_of_crd(crd), None)
    if kind is None:
        raise GovernorError(Kind.PRECONDITION, "definition-not-served", "none of its versions is served")
    return await _list(client, kind)


async def _list(client: Client, kind: ApiResource, namespace: str = "") -> list[Content]:
    return [_content(kind, live) async for live in client.list(kind, namespace)]


def _content(kind: ApiResource, live: Object) -> Content:
    metadata = live["metadata"]
    ref = ObjectRef(kind.group, kind.kind, metadata.get("namespace", ""), metadata["name"])
    owners = frozenset(owner["uid"] for owner in metadata.get("ownerReferences", ()))
    return Content(ref, metadata["uid"], owners, is_terminating(live))
