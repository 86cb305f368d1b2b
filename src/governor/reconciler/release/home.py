"""The namespace of inventories and records in a cluster. In the hub's own cluster it is the hub namespace.

In any other cluster the first module creates it, and the last one that is removed deletes it.
"""

from typing import Final

from governor.errors import GovernorError, Kind
from governor.kube.client import Client
from governor.reconciler.core_kinds import CONFIG_MAPS, NAMESPACES
from governor.reconciler.release.objects import LABEL_PREFIX, MANAGER, SETTINGS

LABEL: Final = f"{LABEL_PREFIX}/home"


async def ensure_home(client: Client, namespace: str) -> None:
    """Create the namespace unless it exists."""
    metadata = {"name": namespace, "labels": {LABEL: "true"}}
    manifest = {"apiVersion": NAMESPACES.api_version, "kind": NAMESPACES.kind, "metadata": metadata}
    try:
        await client.create(NAMESPACES, manifest, manager=MANAGER)
    except GovernorError as error:
        if error.kind is not Kind.EXISTS:
            raise


async def remove_home(client: Client, namespace: str) -> None:
    """Delete the namespace if a module has created it and no module is left."""
    try:
        found = (await client.get(NAMESPACES, namespace, metadata_only=True))["metadata"]
        if LABEL not in (found.get("labels") or {}):
            return
        labels = SETTINGS.inventory_label
        if [each async for each in client.list(CONFIG_MAPS, namespace, labels=labels, metadata_only=True)]:
            return
        await client.delete(NAMESPACES, namespace, uid=found["uid"])
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
