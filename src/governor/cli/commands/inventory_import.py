"""Conversion of a runtime's inventory to a Profile with the resources that no runtime owns yet. Pure.

A sensitive value is imported only as a reference: a resource with an inline one is left out as a whole, because a list
is one value for server-side apply and the item would be removed from it.
"""

import shlex
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from governor.domain.dapr.sensitive import sensitive_paths
from governor.domain.documents import API_VERSION, DocumentRef, ResourceRef
from governor.domain.inventories import FoundResource, Inventory
from governor.errors import GovernorError, Kind
from governor.values.paths import render
from governor.values.trees import Manifest, leaf_at, named_path


class ImportedProfile(msgspec.Struct, frozen=True):
    """A Profile with the resources found, and the field managers that the agent must adopt to take them over."""

    document: Manifest
    managers: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def ref(self) -> DocumentRef:
        """The reference to the Profile."""
        return DocumentRef("Profile", self.document["metadata"]["name"])

    @property
    def notes(self) -> tuple[str, ...]:
        """The warnings, and what the agent needs so that it takes over the resources."""
        value = shlex.quote(f"adoptedManagers={{{','.join(self.managers)}}}")
        needed = f"the agent takes them over only with the setting adopted-managers; with its chart: --set {value}"
        return (*self.warnings, needed)


def import_inventory(runtime: str, inventory: Inventory) -> ImportedProfile:
    """Return the Profile of what was found; PRECONDITION if there is nothing to import."""
    free = [each for each in inventory.resources if not each.owner and each.manifest is not None]
    inline = {each.resource: tuple(_inline_values(each.manifest or {})) for each in free}
    taken = [each for each in free if not inline[each.resource]]
    warnings = (*_foreign(runtime, inventory.resources), *_left_out(inline), *_too_many(inventory))
    if not taken:
        message = f"there is nothing to import from runtime {runtime!r}: {'; '.join(warnings) or 'no free resource'}"
        raise GovernorError(Kind.PRECONDITION, "nothing-to-import", message)
    spec: dict[str, Any] = {"selector": {"runtime": runtime}, "resources": [each.manifest for each in taken]}
    document = {
        "apiVersion": API_VERSION,
        "kind": "Profile",
        "metadata": {"name": f"imported-{runtime}"},
        "spec": spec,
    }
    managers = sorted({manager for each in taken for manager in each.managers})
    return ImportedProfile(document, tuple(managers), warnings)


def _inline_values(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield path and name of each inline sensitive value."""
    for path in sensitive_paths(manifest):
        item = leaf_at(manifest, path[:-1])
        name = item.get("name") if isinstance(item, dict) else None
        yield render(named_path(manifest, path)), str(name or path[-1])


def _left_out(inline: dict[ResourceRef, tuple[tuple[str, str], ...]]) -> Iterator[str]:
    for ref, values in inline.items():
        if values:
            paths = ", ".join(path for path, _ in values)
            name, namespace = shlex.quote(ref.name), shlex.quote(ref.namespace)
            literals = " ".join(shlex.quote(f"--from-literal={key}=VALUE") for _, key in values)
            yield (
                f"{ref} is left out: {paths} is a sensitive value in the resource itself. Put it into a Secret "
                f"(kubectl create secret generic {name} --namespace {namespace} {literals}), refer to that "
                "with secretKeyRef, and import again"
            )


def _foreign(runtime: str, resources: Iterable[FoundResource]) -> Iterator[str]:
    for each in resources:
        if each.owner not in {"", runtime}:
            yield f"{each.resource} is left out: it belongs to runtime {each.owner!r}"
        elif not each.owner and each.manifest is None:
            yield f"{each.resource} is left out: its agent does not know the API version that the cluster prefers"


def _too_many(inventory: Inventory) -> Iterator[str]:
    if inventory.left_out:
        yield (
            f"{inventory.left_out} resources are missing, because the inventory is limited in size: import these first"
        )
