"""Handlers for changes."""

from functools import partial
from typing import cast

from governor.domain.documents import locate
from governor.errors import GovernorError, invalid
from governor.server.api.endpoints import Call, Response, not_found
from governor.server.store.documents import find_change
from governor.values.trees import Manifest
from governor.wire.rest import ChangeRequest
from governor.yamltext import Parsed, load

SOURCE = "request"
"""File name of a request's YAML text in error details."""


async def submit(call: Call) -> Response:
    """Submit a change; errors in YAML text carry line numbers."""
    if isinstance(call.body, ChangeRequest):
        if call.query:
            # A dryRun in the wrong place must not become a real change.
            raise invalid("query-unknown", "a JSON change has all options in its body; remove the query parameters")
        return Response(await call.services.changes.submit(call.body, call.principal.name))
    parsed = await call.services.worker.run(partial(load, call.body, SOURCE))
    try:
        return Response(await call.services.changes.submit(_request(call, parsed), call.principal.name))
    except GovernorError as error:
        raise GovernorError(error.kind, error.code, error.message, locate(error.details, parsed)) from error


def _request(call: Call, parsed: list[Parsed]) -> ChangeRequest:
    return ChangeRequest(
        documents=tuple(cast("Manifest", each.value) for each in parsed),
        message=call.query.get("message", ""),
        dry_run=call.flag("dryRun"),
        allow_deletions=call.flag("allowDeletions"),
    )


async def get(call: Call) -> Response:
    """Return one accepted change."""
    change_id = call.path["change"]
    change = await call.services.store.read(lambda connection: find_change(connection, change_id))
    if change is None:
        raise not_found("change with this id")
    return Response(change)
