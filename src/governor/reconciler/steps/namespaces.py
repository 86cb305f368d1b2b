"""The namespace of a module's objects: the first module in it creates it, and the last one removes it.

One that existed before is never changed. When the module that has created it is removed, the ones that remain in it
take it over.
"""

from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset import PruneOutcome, PruneResult
from governor.kube.client import Client
from governor.kube.objects import Object, ObjectRef
from governor.reconciler.core_kinds import CONFIG_MAPS, NAMESPACES
from governor.reconciler.release.objects import SETTINGS, owner_of
from governor.reconciler.steps.step import Work
from governor.reconciler.watch import module_of

NAMESPACE: Final = (NAMESPACES.group, NAMESPACES.kind)


class ModuleNamespace(msgspec.Struct, frozen=True):
    """The namespace of a module in its cluster."""

    is_ours: bool
    """Whether the module creates, keeps and removes it."""
    inherited: frozenset[str] = frozenset()
    """Id of the removed module that has created it, if any."""


async def find_namespace(work: Work) -> ModuleNamespace:
    """Return the namespace of a module, and whose it is. That of a service account exists before the module."""
    client, spec = work.on.place.client, work.instance.spec
    if spec.service_account_name:
        return ModuleNamespace(is_ours=False)
    try:
        found = await client.get(NAMESPACES, spec.namespace, metadata_only=True)
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        return ModuleNamespace(is_ours=True)
    owner = str((found["metadata"].get("labels") or {}).get(SETTINGS.owner_label, ""))
    if await _is_left(work, owner):
        return ModuleNamespace(is_ours=True, inherited=frozenset({owner}))
    return ModuleNamespace(is_ours=owner == owner_of(spec.module, work.on.place.namespace).id)


async def _is_left(work: Work, owner: str) -> bool:
    """Return whether another module of this hub has created the namespace and is gone."""
    place, module = work.on.place, module_of(owner)
    is_of_this_hub = bool(module) and owner == owner_of(module, place.namespace).id
    if not is_of_this_hub or module == work.instance.spec.module or work.on.watch.inventory(owner) is not None:
        return False
    # A module that is being installed has its inventory before its namespace, but the watch may be late.
    return not await _exists(place.client, owner_of(module, place.namespace).name, place.namespace)


async def _exists(client: Client, config_map: str, namespace: str) -> bool:
    try:
        await client.get(CONFIG_MAPS, config_map, namespace, metadata_only=True)
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        return False
    return True


def namespace_manifest(name: str) -> Object:
    """Return the manifest of a module's namespace."""
    return {"apiVersion": NAMESPACES.api_version, "kind": NAMESPACES.kind, "metadata": {"name": name}}


def namespace_ref(name: str) -> ObjectRef:
    """Return the reference of a module's namespace."""
    return ObjectRef(*NAMESPACE, "", name)


def is_held_namespace(result: PruneResult) -> bool:
    """Return whether a namespace stays because it contains objects of others."""
    return result.outcome is PruneOutcome.HELD and (result.ref.group, result.ref.kind) == NAMESPACE
