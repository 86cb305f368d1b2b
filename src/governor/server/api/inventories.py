"""Handlers for inventories: an agent sends what it found in its runtime's namespaces, users read it."""

from typing import Final

import sqlalchemy as sa

from governor.domain.documents import DocumentRef
from governor.domain.inventories import Inventory
from governor.errors import GovernorError, Kind
from governor.server.api.endpoints import Call, Response, not_found
from governor.server.store.documents import document_version
from governor.server.store.runtime_states import find_inventory, put_inventory
from governor.wire.rest import InventoryView

MAX_BODY_BYTES: Final = 2 * 1024 * 1024
"""An agent sends at most half of it."""


async def put(call: Call) -> Response:
    """Store the inventory of a runtime; an unchanged one is not written."""
    inventory, runtime, now = call.body, call.path["runtime"], call.services.clock.now()
    assert isinstance(inventory, Inventory)  # noqa: S101 - guaranteed by the endpoint's body type
    known = await call.services.store.read(lambda connection: find_inventory(connection, runtime))
    if known is None or known[1] != inventory:
        await call.services.store.write(lambda connection: put_inventory(connection, runtime, inventory, now))
    return Response(status=204)


async def get(call: Call) -> Response:
    """Return the inventory of a runtime."""
    runtime = call.path["runtime"]
    found = await call.services.store.read(lambda connection: _read(connection, runtime))
    return Response(found)


def _read(connection: sa.Connection, runtime: str) -> InventoryView:
    found = find_inventory(connection, runtime)
    if found is not None:
        return InventoryView(runtime, *found)
    found_runtime = document_version(connection, DocumentRef("Runtime", runtime))
    if found_runtime is None or found_runtime.tree is None:
        raise not_found(f"runtime {runtime!r}")
    message = (
        f"the agent of runtime {runtime!r} has sent no inventory: agents send one on the platform kubernetes, "
        "within a minute after they connect"
    )
    raise GovernorError(Kind.NOT_FOUND, "inventory-missing", message)
