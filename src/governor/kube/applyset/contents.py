"""What a namespace or a definition holds: found by listing every kind that can be listed."""

from collections.abc import Mapping

from governor.errors import GovernorError, Kind
from governor.kube.applyset.get import is_terminating
from governor.kube.applyset.manifests import kinds_of_definition
from governor.kube.applyset.parallel import side_by_side
from governor.kube.applyset.prune_policy import Content, held, others
from governor.kube.applyset.results import Removal, RemovalResult
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object, ObjectRef

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
