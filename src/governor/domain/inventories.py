"""Inventories: what an agent finds in the namespaces of its runtime, of any manager. Pure.

An inventory is no desired state and no proof. It has no sensitive value: an inline one is ``***``.
"""

from typing import Any, Final

import msgspec

from governor.domain.dapr.sensitive import sensitive_paths
from governor.domain.documents import ResourceRef
from governor.domain.reports import WorkloadRef
from governor.values.secret import MASK
from governor.values.trees import Manifest, map_leaves

MAX_BYTES: Final = 1024 * 1024
"""The size of an inventory in JSON; resources beyond it are left out and counted."""

NAMED_PODS: Final = 3
"""How many pods of reloading sidecars an inventory names."""

_CONTENT: Final = ("apiVersion", "kind", "spec", "scopes", "auth")


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Base of every part of an inventory."""


class ReloadingSidecars(_Part, frozen=True):
    """Sidecars of a workload that have reported hot reload, and what decides which changes they load at once."""

    version: str
    app_id: str
    configuration: str = ""
    """The Configuration that their pods name, or ``""``."""
    instances: int = 0
    pods: tuple[str, ...] = ()
    """The names of the first of their pods."""


class FoundWorkload(_Part, frozen=True):
    """A workload with Dapr: its app ids, the versions of its sidecars, and the number of its pods.

    ``reloading`` are those of its sidecars that have reported hot reload; others have not been asked, or have none.
    """

    workload: WorkloadRef
    app_ids: tuple[str, ...] = ()
    dapr_versions: tuple[str, ...] = ()
    instances: int = 0
    reloading: tuple[ReloadingSidecars, ...] = ()


class FoundResource(_Part, frozen=True):
    """A Dapr resource: the runtime that owns it, or ``""``, and its field managers.

    ``manifest`` is None if a runtime owns it, because its content is in the profiles, or if its API version is unknown.
    """

    resource: ResourceRef
    owner: str = ""
    managers: tuple[str, ...] = ()
    manifest: dict[str, Any] | None = None


class Inventory(_Part, frozen=True):
    """What is in the namespaces of a runtime; ``left_out`` is the number of resources that are missing for its size."""

    namespaces: tuple[str, ...]
    workloads: tuple[FoundWorkload, ...] = ()
    resources: tuple[FoundResource, ...] = ()
    left_out: int = 0


def masked_manifest(live: Manifest) -> Manifest:
    """Return what sidecars load of an object, with its name, namespace and labels; inline sensitive values are masked.

    Annotations are left out: kubectl stores whole manifests in one.
    """
    metadata = {key: live["metadata"][key] for key in ("name", "namespace", "labels") if live["metadata"].get(key)}
    manifest: Manifest = {**{key: live[key] for key in _CONTENT if key in live}, "metadata": metadata}
    sensitive = frozenset(sensitive_paths(manifest))
    masked: Manifest = map_leaves(manifest, lambda path, leaf: MASK if path in sensitive else leaf)
    return masked


def limited(inventory: Inventory, max_bytes: int = MAX_BYTES) -> Inventory:
    """Return the inventory without the last resources if it would be larger than allowed."""
    left = max_bytes - len(msgspec.json.encode(msgspec.structs.replace(inventory, resources=())))
    kept: list[FoundResource] = []
    for each in inventory.resources:
        left -= len(msgspec.json.encode(each)) + 1
        if left < 0:
            break
        kept.append(each)
    left_out = len(inventory.resources) - len(kept)
    return msgspec.structs.replace(inventory, resources=tuple(kept), left_out=left_out)
