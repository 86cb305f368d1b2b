"""Custom resources of the kinds that a module defines, and that others have made."""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset import Entries
from governor.kube.applyset.live import get, keep_annotation
from governor.kube.applyset.manifests import kinds_of_crd
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object, ObjectRef, ref_of
from governor.reconciler.core_kinds import CUSTOM_RESOURCE_DEFINITIONS
from governor.reconciler.release.objects import SETTINGS


class CustomResource(msgspec.Struct, frozen=True):
    """A custom resource of a kind that the module defines."""

    resource: ApiResource
    ref: ObjectRef
    uid: str
    owners: frozenset[str]
    """Uids of its owner references."""
    is_terminating: bool


def definitions_in(entries: Entries) -> list[ObjectRef]:
    """Return the definitions among the objects of a module."""
    definition = CUSTOM_RESOURCE_DEFINITIONS
    return sorted(ref for ref in entries if (ref.group, ref.kind) == (definition.group, definition.kind))


async def foreign_resources(client: Client, entries: Entries, hooks: Entries) -> list[CustomResource]:
    """Return the custom resources that others have made of the kinds that a module defines."""
    found: list[CustomResource] = []
    for ref in definitions_in(entries):
        if (kind := await _kind_of(client, ref)) is not None:
            found += [_resource(kind, each) for each in await _list(client, kind)]
    return without_own(found, {each.uid for each in (*entries.values(), *hooks.values())})


async def kept_definitions(client: Client, entries: Entries) -> frozenset[ObjectRef]:
    """Return the definitions of a module with resources that are to be kept: they would be deleted with them."""
    kept: set[ObjectRef] = set()
    for ref in definitions_in(entries):
        kind = await _kind_of(client, ref)
        found = await _list(client, kind) if kind is not None else []
        if any(keep_annotation(each, SETTINGS.keep_annotations) for each in found):
            kept.add(ref)
    return frozenset(kept)


async def _kind_of(client: Client, ref: ObjectRef) -> ApiResource | None:
    """Return the kind of a definition, or None if it is gone."""
    definition = await get(client, CUSTOM_RESOURCE_DEFINITIONS, ref)
    return next(kinds_of_crd(definition), None) if definition else None


async def _list(client: Client, kind: ApiResource) -> list[Object]:
    return [each async for each in client.list(kind, metadata_only=True)]


def without_own(resources: Iterable[CustomResource], own: Collection[str]) -> list[CustomResource]:
    """Return the resources that are neither of the module, by their uids, nor owned by one that is. Pure.

    The owner label does not decide: any user who may write a resource can set it.
    """
    left = {each.uid: each for each in resources if each.uid not in own}
    owned = set(own)
    while dependents := {each.uid for each in left.values() if each.owners and each.owners <= owned}:
        owned |= dependents
        left = {uid: each for uid, each in left.items() if uid not in dependents}
    return sorted(left.values(), key=lambda each: each.ref)


def _resource(kind: ApiResource, found: Object) -> CustomResource:
    metadata = found["metadata"]
    ref = ref_of({**found, "apiVersion": kind.api_version, "kind": kind.kind})
    owners = frozenset(each["uid"] for each in metadata.get("ownerReferences", ()))
    return CustomResource(kind, ref, metadata["uid"], owners, "deletionTimestamp" in metadata)


async def delete_resources(client: Client, resources: Sequence[CustomResource]) -> None:
    """Request the deletion of custom resources, while the operator that finalizes them is there."""
    for each in resources:
        if each.is_terminating:
            continue
        try:
            await client.delete(each.resource, each.ref.name, each.ref.namespace, uid=each.uid)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
