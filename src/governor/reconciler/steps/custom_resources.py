"""Custom resources of the kinds that a module defines, and that others have made."""

from collections.abc import Iterable, Sequence

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset import Entries
from governor.kube.applyset.live import get, keep_annotation
from governor.kube.applyset.manifests import kinds_of_crd
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object, ObjectRef, ref_of
from governor.reconciler.core_kinds import CUSTOM_RESOURCE_DEFINITIONS
from governor.reconciler.release.objects import SETTINGS


class ForeignResource(msgspec.Struct, frozen=True):
    """A custom resource that the module has not applied itself."""

    resource: ApiResource
    ref: ObjectRef
    uid: str
    is_terminating: bool


def definitions_in(entries: Entries) -> list[ObjectRef]:
    """Return the definitions among the objects of a module."""
    definition = CUSTOM_RESOURCE_DEFINITIONS
    return sorted(ref for ref in entries if (ref.group, ref.kind) == (definition.group, definition.kind))


async def foreign_resources(client: Client, entries: Entries, module: str) -> list[ForeignResource]:
    """Return the custom resources that others have made of the kinds that a module defines."""
    found: list[ForeignResource] = []
    for ref in definitions_in(entries):
        if (kind := await _kind_of(client, ref)) is not None:
            found += [_foreign(kind, each) for each in await _list(client, kind) if not _is_own(each, module)]
    return sorted(found, key=lambda each: each.ref)


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


def _is_own(found: Object, module: str) -> bool:
    owner = (found["metadata"].get("labels") or {}).get(SETTINGS.owner_label, "")
    return str(owner).partition(".")[0] == module


def _foreign(kind: ApiResource, found: Object) -> ForeignResource:
    metadata = found["metadata"]
    ref = ref_of({**found, "apiVersion": kind.api_version, "kind": kind.kind})
    return ForeignResource(kind, ref, metadata["uid"], "deletionTimestamp" in metadata)


async def delete_resources(client: Client, resources: Sequence[ForeignResource]) -> None:
    """Request the deletion of custom resources, while the operator that finalizes them is there."""
    for each in _due(resources):
        try:
            await client.delete(each.resource, each.ref.name, each.ref.namespace, uid=each.uid)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise


def _due(resources: Iterable[ForeignResource]) -> list[ForeignResource]:
    return [each for each in resources if not each.is_terminating]
