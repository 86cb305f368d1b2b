"""Contents of a namespace or CustomResourceDefinition: it is deleted only if no object of another owner goes with it.

In case of doubt it is kept. Only the metadata of the contents is read.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.live import is_terminating
from governor.kube.applyset.manifests import kinds_of_crd
from governor.kube.applyset.order import gather_bounded
from governor.kube.applyset.results import PruneOutcome, PruneResult
from governor.kube.applyset.settings import Settings, ToleratedContent
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object, ObjectRef

_NAMESPACE: Final = ("", "Namespace")
_CRD: Final = ("apiextensions.k8s.io", "CustomResourceDefinition")
_EXAMPLES: Final = 5


class Content(msgspec.Struct, frozen=True):
    """An object that deleting a namespace or CustomResourceDefinition would delete too."""

    ref: ObjectRef
    uid: str
    owners: frozenset[str] = frozenset()
    """Uids of its owner references."""
    owner_kinds: frozenset[tuple[str, str]] = frozenset()
    """Groups and kinds of its owner references."""
    markers: frozenset[str] = frozenset()
    """Keys of its labels and annotations."""
    terminating: bool = False


async def held_by_contents(
    client: Client, ref: ObjectRef, live: Object, pruned: Mapping[ObjectRef, str], settings: Settings
) -> PruneResult | None:
    """Return HELD for a namespace or CustomResourceDefinition with contents of others, or None."""
    try:
        if (ref.group, ref.kind) == _NAMESPACE:
            contents = await _namespace_contents(client, ref.name, settings.concurrency)
        elif (ref.group, ref.kind) == _CRD:
            contents = await _crd_contents(client, live)
        else:
            return None
    except GovernorError as error:
        return PruneResult(ref, PruneOutcome.HELD, f"its contents cannot be listed: {error.message}")
    foreign = foreign_contents(contents, pruned, settings.tolerated_contents)
    return held(ref, foreign) if foreign else None


def foreign_contents(
    contents: Iterable[Content], pruned: Mapping[ObjectRef, str], tolerated: Collection[ToleratedContent]
) -> tuple[ObjectRef, ...]:
    """Return the contents that do not belong to the set.

    Pruned objects (given with their uids), their dependents, tolerated objects and terminating objects are excluded.
    """
    contents = tuple(contents)
    refs = {each.uid: each.ref for each in contents}
    # The uid of an absent object comes from the inventory alone: it must not stand for another object.
    own = {uid for ref, uid in pruned.items() if refs.get(uid, ref) == ref}
    grown = True
    while grown:
        dependents = {each.uid for each in contents if each.uid not in own and each.owners and each.owners <= own}
        own |= dependents
        grown = bool(dependents)
    return tuple(
        sorted(
            each.ref
            for each in contents
            if not (each.uid in own or each.terminating or _is_tolerated(each, tolerated) or _is_derived(each, pruned))
        )
    )


def owners_to_find(contents: Collection[Content], kinds: Collection[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Return the kinds, of those in a namespace, of owners that are missing beside their dependents."""
    present = {each.uid for each in contents}
    dangling = [each for each in contents if each.owners and not each.owners & present]
    return frozenset(kind for each in dangling for kind in each.owner_kinds) & frozenset(kinds)


def without_collected(
    contents: Iterable[Content], later: Iterable[Content], owners: Collection[tuple[str, str]]
) -> list[Content]:
    """Return the contents without those that the garbage collector deletes: their owners no longer exist.

    ``later`` are all objects of the kinds ``owners``, listed after the contents. A ReplicaSet, for example, is deleted
    before its pods.
    """
    contents = list(contents)
    present = {each.uid for each in (*contents, *later)}

    def is_collected(each: Content) -> bool:
        return bool(each.owners) and not each.owners & present and each.owner_kinds <= set(owners)

    return [each for each in contents if not is_collected(each)]


def held(ref: ObjectRef, foreign: tuple[ObjectRef, ...]) -> PruneResult:
    """Return the result for a namespace or CustomResourceDefinition that contains objects of others."""
    named = ", ".join(map(str, foreign[:_EXAMPLES]))
    more = f" and {len(foreign) - _EXAMPLES} more" if len(foreign) > _EXAMPLES else ""
    reason = f"contains objects outside this set: {named}{more}"
    return PruneResult(ref, PruneOutcome.HELD, reason, foreign[:_EXAMPLES])


def _is_tolerated(content: Content, tolerated: Collection[ToleratedContent]) -> bool:
    return any(each.matches(content.ref, content.markers) for each in tolerated)


def _is_derived(content: Content, pruned: Mapping[ObjectRef, str]) -> bool:
    """Return whether these are the Endpoints of a pruned Service, which have its name and no owner reference."""
    ref = content.ref
    return (ref.group, ref.kind) == ("", "Endpoints") and ObjectRef("", "Service", ref.namespace, ref.name) in pruned


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

    async def list_kinds(kinds: Collection[ApiResource]) -> list[Content]:
        found = await gather_bounded(kinds, lambda kind: _list(client, kind, namespace), concurrency)
        return [each for several in found for each in several]

    contents = await list_kinds(kinds)
    owners = owners_to_find(contents, {(kind.group, kind.kind) for kind in kinds})
    # Listed after their dependents: an owner that is missing now does not come back.
    later = await list_kinds([kind for kind in kinds if (kind.group, kind.kind) in owners])
    return without_collected(contents, later, owners)


async def _crd_contents(client: Client, crd: Object) -> list[Content]:
    kind = next(kinds_of_crd(crd), None)
    if kind is None:
        raise GovernorError(Kind.PRECONDITION, "definition-not-served", "none of its versions is served")
    return await _list(client, kind)


async def _list(client: Client, kind: ApiResource, namespace: str = "") -> list[Content]:
    return [_content(kind, live) async for live in client.list(kind, namespace, metadata_only=True)]


def _content(kind: ApiResource, live: Object) -> Content:
    metadata = live["metadata"]
    ref = ObjectRef(kind.group, kind.kind, metadata.get("namespace", ""), metadata["name"])
    references = metadata.get("ownerReferences", ())
    owners = frozenset(each["uid"] for each in references)
    owner_kinds = frozenset((_group(each["apiVersion"]), each["kind"]) for each in references)
    markers = frozenset({*(metadata.get("labels") or ()), *(metadata.get("annotations") or ())})
    return Content(ref, metadata["uid"], owners, owner_kinds, markers, is_terminating(live))


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]
