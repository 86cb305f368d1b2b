"""Whether a ModuleInstance may be removed: the absence of its Installation from a cache is not enough.

The API server must confirm that the Installation is gone or no longer selects the cluster. One that vanished with the
definition of Installations was not deleted for itself, even if the definition exists again.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from governor.domain.conditions import Actor
from governor.errors import GovernorError, Kind
from governor.kube.controller import Context
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.kube.reflector import Entry, Unreadable
from governor.reconciler.core_kinds import CUSTOM_RESOURCE_DEFINITIONS
from governor.reconciler.kinds.definition import GROUP
from governor.reconciler.kinds.installation import INSTALLATION, Installation
from governor.reconciler.kinds.module_instance import OWNER_LABEL, ModuleInstance, ModuleInstanceSpec
from governor.reconciler.kinds.state import Problem
from governor.reconciler.resolution.catalogue import Catalogue

INSTALLATION_LOST: Final = "InstallationLost"


class Unconfirmed(msgspec.Struct, frozen=True):
    """A ModuleInstance that must not be removed now, although no cached Installation asks for it."""

    spec: ModuleInstanceSpec
    problem: Problem

    @property
    def is_transient(self) -> bool:
        """Return whether only the watch is late, so that no action is needed."""
        return self.problem.actor is Actor.NOBODY


async def confirm_removal(
    context: Context[Any], catalogue: Catalogue, removed: Sequence[ModuleInstance]
) -> list[Unconfirmed]:
    """Ask the API server whether these ModuleInstances may be removed, and return those that may not."""
    owned = [each for each in removed if OWNER_LABEL in each.metadata.labels]
    if not owned:
        return []
    definition = await _read_metadata(context, CUSTOM_RESOURCE_DEFINITIONS, INSTALLATION.name, "")
    found = []
    for each in owned:
        name, namespace = each.spec.installation, context.key.namespace
        live = await _read_metadata(context, INSTALLATION.resource, name, namespace)
        cached = catalogue.installations.get(ObjectRef(GROUP, INSTALLATION.kind, namespace, name))
        if problem := removal_problem(each.spec, definition, cached, live):
            found.append(Unconfirmed(each.spec, problem))
    return found


def removal_problem(
    spec: ModuleInstanceSpec, definition: Object | None, cached: Entry[Installation] | None, live: Object | None
) -> Problem | None:
    """Return why a ModuleInstance must not be removed, or None; ``definition`` and ``live`` are metadata. Pure."""
    name = spec.installation
    if definition is None or definition.get("deletionTimestamp"):
        message = (
            f"the definition {INSTALLATION.name} is being deleted, and Installation {name} with it: nothing is removed"
        )
        return Problem(INSTALLATION_LOST, message, Actor.OPERATOR)
    # Both times are those of the API server, in the same format, which sorts by time.
    if live is None and definition["creationTimestamp"] > spec.installation_created:
        message = (
            f"Installation {name} is gone since the definition {INSTALLATION.name} was deleted and created again: "
            "create the Installation again, or delete this ModuleInstance"
        )
        return Problem(INSTALLATION_LOST, message, Actor.OPERATOR)
    if _identity(cached) != (live and (live["uid"], live.get("generation", 0))):
        message = f"Installation {name} has changed, but its watch has not delivered that yet"
        return Problem("Outdated", message, Actor.NOBODY)
    return None


def _identity(entry: Entry[Installation] | None) -> tuple[str, int] | None:
    if entry is None:
        return None
    return (entry.metadata.uid, -1 if isinstance(entry, Unreadable) else entry.metadata.generation)


async def _read_metadata(context: Context[Any], resource: ApiResource, name: str, namespace: str) -> Object | None:
    """Return the metadata of an object as the API server has it, or None."""
    try:
        found: Object = (await context.client.get(resource, name, namespace, metadata_only=True))["metadata"]
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        return None
    return found
