"""The manifests of a module's apply set: rendered objects, and the namespace that the module needs. Mostly pure."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.live import find_kinds
from governor.kube.applyset.manifests import Located, defined_kinds, kinds_to_discover
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object, ObjectRef, group_of
from governor.reconciler.core_kinds import NAMESPACES
from governor.reconciler.release.objects import SETTINGS
from governor.reconciler.render.request import Rendered

NAMESPACE: Final = ("", "Namespace")


class NamespaceOwner(msgspec.Struct, frozen=True):
    """Whether the namespace of a module exists, and which apply set has created it."""

    exists: bool
    id: str = ""
    """Empty if none has."""


async def namespace_owner(client: Client, name: str) -> NamespaceOwner:
    """Return to which apply set the namespace of a module belongs."""
    try:
        found = await client.get(NAMESPACES, name, metadata_only=True)
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        return NamespaceOwner(exists=False)
    labels = found["metadata"].get("labels") or {}
    return NamespaceOwner(exists=True, id=str(labels.get(SETTINGS.owner_label, "")))


def namespace_manifest(name: str) -> Object:
    """Return the manifest of a module's namespace."""
    return {"apiVersion": NAMESPACES.api_version, "kind": NAMESPACES.kind, "metadata": {"name": name}}


def namespace_ref(name: str) -> ObjectRef:
    """Return the reference of a module's namespace."""
    return ObjectRef(*NAMESPACE, "", name)


async def manifests_of(client: Client, rendered: Rendered) -> list[Object]:
    """Return the rendered definitions and objects as the cluster accepts them."""
    objects = [each.object for each in (*rendered.crds, *rendered.objects)]
    located = [Located("", each) for each in objects]
    served = await find_kinds(client, kinds_to_discover(located))
    known = {**served, **defined_kinds(objects)}
    return [without_namespace(each, known) for each in objects]


def without_namespace(manifest: Object, kinds: Mapping[tuple[str, str, str], ApiResource]) -> Object:
    """Return a manifest without the namespace that charts often give to cluster-scoped objects; Helm ignores it."""
    api_version = manifest["apiVersion"]
    kind = kinds.get((group_of(api_version), api_version.rpartition("/")[2], manifest["kind"]))
    if kind is None or kind.namespaced or "namespace" not in manifest["metadata"]:
        return manifest
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "namespace"}
    return {**manifest, "metadata": metadata}


def is_listed(manifests: Iterable[Object], ref: ObjectRef) -> bool:
    """Return whether the chart itself has the namespace among its objects."""
    return any(
        (group_of(each["apiVersion"]), each["kind"], each["metadata"].get("name")) == (ref.group, ref.kind, ref.name)
        for each in manifests
    )
