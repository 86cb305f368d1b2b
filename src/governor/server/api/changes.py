"""Handlers for changes."""

from functools import partial
from typing import cast

from governor.domain.changes import ChangeState
from governor.domain.documents import locate
from governor.errors import GovernorError, invalid
from governor.server.api.endpoints import Call, Response, not_found
from governor.server.store.documents import find_change
from governor.values.trees import Manifest
from governor.wire.rest import PREFIX, ChangeRequest
from governor.yamltext import Parsed, load

SOURCE = "request"
"""File name of a request's YAML text in error details."""


async def submit(call: Call) -> Response:
    """Submit a change; errors in YAML text carry line numbers."""
    if "if-match" in call.headers:
        # A condition that has no effect must not become an unconditional change.
        message = "the header If-Match has no effect here; send a JSON body, with the versions of documents in ifMatch"
        raise invalid("if-match-header", message)
    if isinstance(call.body, ChangeRequest):
        if call.query:
            # A dryRun in the wrong place must not become a real change.
            raise invalid("query-unknown", "a JSON change has all options in its body; remove the query parameters")
        return await _submit(call, call.body)
    parsed = await call.services.worker.run(partial(load, call.body, SOURCE))
    try:
        return await _submit(call, _request(call, parsed))
    except GovernorError as error:
        raise GovernorError(error.kind, error.code, error.message, locate(error.details, parsed)) from error


async def _submit(call: Call, request: ChangeRequest) -> Response:
    """Submit a change; one that takes long is returned as pending, to be followed by its id."""
    services = call.services
    change = await services.changes.submit(request, call.principal.name, answer_s=services.timing.change_s)
    if change.state is ChangeState.PENDING:
        return Response(change, 202, (("Location", f"{PREFIX}/changes/{change.id}"),))
    return Response(change)


def _request(call: Call, parsed: list[Parsed]) -> ChangeRequest:
    return ChangeRequest(
        documents=tuple(cast("Manifest", each.value) for each in parsed),
        message=call.query.get("message", ""),
        dry_run=call.flag("dryRun"),
        allow_deletions=call.flag("allowDeletions"),
        all_runtimes=call.flag("allRuntimes"),
    )


async def get(call: Call) -> Response:
    """Return one accepted change, or one that is being decided; raise why it was rejected."""
    change_id = call.path["change"]
    pending = call.services.changes.find_pending(change_id)
    if pending is not None:
        return Response(pending)
    change = await call.services.store.read(lambda connection: find_change(connection, change_id))
    if change is None:
        raise not_found("accepted change with this id; if it was pending when the server stopped, submit it again")
    return Response(change)
