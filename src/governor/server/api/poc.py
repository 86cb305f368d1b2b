"""Handlers for the proof of concept's API, ``{"id", "data"}``, kept for agents that still poll it."""

from typing import Any, Final

import sqlalchemy as sa

from governor.domain.bundles import Delivery
from governor.domain.documents import DocumentRef
from governor.domain.roles import Role
from governor.server.api.endpoints import PLAIN, Call, Response
from governor.server.sources.poc_format import VERSION
from governor.server.store.bundles import Contents
from governor.server.store.deliveries import find_delivery, newest_deliveries
from governor.server.store.documents import document_version
from governor.values.digest import digest
from governor.values.trees import Manifest, masked
from governor.wire.rest import PocEntity

# The response may contain unsealed values, which no cache may store.
_HEADERS: Final = (("Cache-Control", "no-store"),)


async def list_runtimes(call: Call) -> Response:
    """Return all runtimes, or only the caller if it is a runtime."""
    contents, own = call.services.contents, call.principal.runtime
    names = [name for name in sorted(call.services.catalogues.committed.runtimes) if own in (None, name)]
    newest = await call.services.store.read(lambda connection: newest_deliveries(connection, contents, names))
    return Response([_entity(call, name, newest.get(name)) for name in names], headers=_HEADERS)


async def get_runtime(call: Call) -> Response:
    """Return one runtime, or the plain-text 404 of the proof of concept."""
    name = call.path["runtime"]
    found = await call.services.store.read(lambda connection: _read(connection, call.services.contents, name))
    if name not in found:
        return Response(b"entity not found", 404, _HEADERS, f"{PLAIN}; charset=utf-8")
    return Response(_entity(call, name, found[name]), headers=_HEADERS)


def _read(connection: sa.Connection, contents: Contents, name: str) -> dict[str, Delivery | None]:
    version = document_version(connection, DocumentRef("Runtime", name))
    return {} if version is None or version.tree is None else {name: find_delivery(connection, contents, name)}


def _entity(call: Call, name: str, delivery: Delivery | None) -> PocEntity:
    resources: tuple[Manifest, ...] = ()
    if delivery is not None:
        shown = call.services.signer.unseal(delivery) if _may_read_values(call) else masked(delivery.resources)
        resources = tuple(shown)
    stamp = delivery.digest if delivery else digest([])
    return PocEntity(name, entity_data(resources, stamp))


def _may_read_values(call: Call) -> bool:
    """Return whether the caller gets plain values: agents need them to configure Dapr, viewers and editors do not."""
    principal = call.principal
    return principal.role is Role.ADMIN or principal.runtime is not None or principal.is_legacy


def entity_data(resources: tuple[Manifest, ...], stamp: str) -> dict[str, Any]:
    """Return a single object as is, otherwise a List; polling agents compare the stamp to detect changes."""
    stamped = [_stamped(manifest, stamp) for manifest in resources]
    if len(stamped) == 1:
        return stamped[0]
    return _stamped({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": stamped}, stamp)


def _stamped(manifest: Manifest, stamp: str) -> Manifest:
    metadata = manifest["metadata"]
    return {**manifest, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), VERSION: stamp}}}
