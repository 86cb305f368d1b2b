"""Removing objects of a set, stage by stage against the order of writing, and waiting until they are gone."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.entries import Entry
from governor.kube.applyset.get import NOT_SERVED, is_terminating, look, waits_for
from governor.kube.applyset.manifests import kinds_of_definition
from governor.kube.applyset.order import in_stages, side_by_side
from governor.kube.applyset.prune_policy import Content, held, judge, others, out_of_bounds
from governor.kube.applyset.results import Removal, RemovalResult, outdated, removal_failure_of
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.process.clock import Clock

_LOOKS: Final = 4
_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_BLOCKING: Final = frozenset({Removal.TERMINATING, Removal.FAILED})


class _Case(msgspec.Struct, frozen=True):
    """One object and what became, or shall become, of it."""

    entry: Entry
    result: RemovalResult
    resource: ApiResource | None = None
    live: Object | None = None

    @property
    def uid(self) -> str:
        return str(self.live["metadata"]["uid"]) if self.live else self.entry.uid


class Remover:
    """Removes objects of one set; with ``dry_run`` it only looks."""

    def __init__(self, client: Client, owner: Owner, settings: Settings, clock: Clock, *, dry_run: bool) -> None:
        self._client = client
        self._owner = owner
        self._settings = settings
        self._clock = clock
        self._dry_run = dry_run

    async def remove(self, entries: Sequence[Entry]) -> tuple[RemovalResult, ...]:
        """Remove what may be removed; a stage begins only when all of the one before is gone."""
        results: list[RemovalResult] = []
        removed: dict[ObjectRef, str] = {}
        for stage in reversed(in_stages(entries, lambda entry: entry.ref)):
            blocking = next((result.ref for result in results if result.outcome in _BLOCKING), None)
            if blocking:
                reason = f"{blocking} has to go first"
                results += [RemovalResult(entry.ref, Removal.SKIPPED, reason) for entry in stage]
                continue
            cases = await self._stage(stage, removed)
            results += [case.result for case in cases]
            removed |= {case.entry.ref: case.uid for case in cases if case.result.outcome is Removal.REMOVED}
        return tuple(results)

    async def _stage(self, stage: Sequence[Entry], removed: dict[ObjectRef, str]) -> list[_Case]:
        async def begin(entry: Entry) -> _Case:
            return await self._begin(entry, removed)

        cases = await side_by_side(stage, begin, self._settings.at_once)
        return cases if self._dry_run else await self._until_gone(cases)

    async def _begin(self, entry: Entry, removed: dict[ObjectRef, str]) -> _Case:
        if out_of_bounds(entry.ref, self._settings):
            reason = f"is not in {sorted(self._settings.allowed_namespaces or ())}, where this set may write"
            return _Case(entry, RemovalResult(entry.ref, Removal.REFUSED, reason))
        try:
            for _ in range(_LOOKS):
                try:
                    return await self._attempt(entry, removed)
                except GovernorError as error:
                    if not outdated(error):
                        raise
                    last = error
        except GovernorError as error:
            return _Case(entry, removal_failure_of(entry.ref, error))
        return _Case(entry, removal_failure_of(entry.ref, last))

    async def _attempt(self, entry: Entry, removed: dict[ObjectRef, str]) -> _Case:
        ref = entry.ref
        resource = await self._resource(ref)
        if resource is not None and resource.namespaced != bool(ref.namespace):
            # The bounds of the set were held against a namespace that the object is not in.
            return _Case(entry, RemovalResult(ref, Removal.REFUSED, f"a {ref.kind} cannot be in such a place"))
        resource, live = await self._look(ref)
        case = _Case(entry, judge(entry, live, self._owner, self._settings), resource, live)
        if resource is None or live is None:
            return case
        if case.result.outcome is Removal.REMOVED:
            held = await hold_of_others(self._client, ref, live, removed, self._settings.at_once)
            if held:
                return msgspec.structs.replace(case, result=held)
            if not self._dry_run:
                await self._delete(resource, live)
        elif case.result.outcome is Removal.RELEASED and not self._dry_run:
            await self._release(resource, live)
        return case

    async def _look(self, ref: ObjectRef) -> tuple[ApiResource | None, Object | None]:
        for last in (False, True):
            resource = await self._resource(ref)
            if resource is None:
                break
            try:
                return resource, await look(self._client, resource, ref)
            except GovernorError as error:
                # If the kind went since it was asked for, the server says so when asked again.
                if last or error.code != NOT_SERVED:
                    raise
        return None, None

    async def _resource(self, ref: ObjectRef) -> ApiResource | None:
        """Its kind, or None if the server surely no longer has that: then the object is gone with it."""
        discovery = self._client.discovery
        for settled in (False, True):
            try:
                return await discovery.find(ref.group, ref.kind)
            except GovernorError as error:
                if error.kind is not Kind.NOT_FOUND:
                    raise
            if not settled:
                await discovery.require_ready()
        return None

    async def _delete(self, resource: ApiResource, live: Object) -> None:
        metadata = live["metadata"]
        try:
            await self._client.delete(resource, metadata["name"], metadata.get("namespace", ""), uid=metadata["uid"])
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:  # gone meanwhile
                raise

    async def _release(self, resource: ApiResource, live: Object) -> None:
        """Apply nothing: the server removes those of our fields that nobody else manages."""
        metadata = {key: live["metadata"][key] for key in ("name", "namespace", "uid") if key in live["metadata"]}
        nothing = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
        await self._client.apply(resource, nothing, manager=self._settings.manager)

    async def _until_gone(self, cases: list[_Case]) -> list[_Case]:
        deadline = self._clock.monotonic() + self._settings.removed_within_s
        pause_s = _PAUSE_S
        # What was asked to go is going until it is seen to be gone.
        cases = [_going(case) for case in cases]
        while True:
            cases = await side_by_side(cases, self._again, self._settings.at_once)
            if not any(_is_going(case) for case in cases) or self._clock.monotonic() >= deadline:
                return cases
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _again(self, case: _Case) -> _Case:
        if not _is_going(case) or case.resource is None:
            return case
        try:
            live = await look(self._client, case.resource, case.entry.ref)
        except GovernorError as error:
            reason = f"was asked to go, but cannot be seen: {error.message}"
            return _with(case, Removal.TERMINATING, reason)
        if live is None or live["metadata"]["uid"] != case.uid:
            return _with(case, Removal.REMOVED)
        return _with(case, Removal.TERMINATING, waits_for(live))


def _is_going(case: _Case) -> bool:
    return case.result.outcome is Removal.TERMINATING


def _going(case: _Case) -> _Case:
    return _with(case, Removal.TERMINATING) if case.result.outcome is Removal.REMOVED else case


def _with(case: _Case, outcome: Removal, reason: str = "") -> _Case:
    return msgspec.structs.replace(case, result=RemovalResult(case.entry.ref, outcome, reason))


NAMESPACE = ("", "Namespace")
DEFINITION = ("apiextensions.k8s.io", "CustomResourceDefinition")


async def hold_of_others(
    client: Client, ref: ObjectRef, live: Object, removed: Mapping[ObjectRef, str], at_once: int
) -> RemovalResult | None:
    """Why a namespace or definition must stay; None if it may go, or is neither."""
    try:
        if (ref.group, ref.kind) == NAMESPACE:
            contents = await _in_namespace(client, ref.name, at_once)
        elif (ref.group, ref.kind) == DEFINITION:
            contents = await _of_definition(client, live)
        else:
            return None
    except GovernorError as error:
        return RemovalResult(ref, Removal.HELD, f"it cannot be seen what it holds: {error.message}")
    foreign = others(contents, removed)
    return held(ref, foreign) if foreign else None


async def _in_namespace(client: Client, namespace: str, at_once: int) -> list[Content]:
    await client.discovery.require_ready()  # a kind that came a moment ago counts too
    kinds = [
        kind
        for kind in await client.discovery.preferred_resources()
        if kind.namespaced and {"list", "delete"} <= kind.verbs
    ]
    if unknown := await client.discovery.stale_groups():
        message = f"the servers of the API groups {', '.join(sorted(unknown))} do not answer"
        raise GovernorError(Kind.UNAVAILABLE, "kube-group-stale", message)

    async def listed(kind: ApiResource) -> list[Content]:
        return await _contents(client, kind, namespace)

    return [each for found in await side_by_side(kinds, listed, at_once) for each in found]


async def _of_definition(client: Client, definition: Object) -> list[Content]:
    kind = next(kinds_of_definition(definition), None)
    if kind is None:
        raise GovernorError(Kind.PRECONDITION, "definition-not-served", "no version of it is served")
    return await _contents(client, kind)


async def _contents(client: Client, kind: ApiResource, namespace: str = "") -> list[Content]:
    return [_content(kind, live) async for live in client.list(kind, namespace)]


def _content(kind: ApiResource, live: Object) -> Content:
    metadata = live["metadata"]
    ref = ObjectRef(kind.group, kind.kind, metadata.get("namespace", ""), metadata["name"])
    owners = frozenset(owner["uid"] for owner in metadata.get("ownerReferences", ()))
    return Content(ref, metadata["uid"], owners, is_terminating(live))
