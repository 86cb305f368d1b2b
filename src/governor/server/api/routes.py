"""The table of endpoints, the only definition of routing, access and the OpenAPI document."""

from typing import Any, Final

import governor
from governor.domain.changes import Change, Revision
from governor.domain.conditions import RUNTIME_STATES
from governor.domain.documents import DOCUMENT_TYPES
from governor.domain.inventories import Inventory
from governor.domain.reports import Check, Report
from governor.server.api import changes, documents, inventories, openapi, poc, runtimes, tokens
from governor.server.api.endpoints import FLAG, INTEGER, TEXT, Access, Call, Endpoint, Query, Response
from governor.server.watch.progress import MAX_LISTED
from governor.wire.deliveries import SignedDelivery
from governor.wire.events import DELIVERY, NOTICE, PROGRESS
from governor.wire.reports import Report1
from governor.wire.rest import (
    ChangeRequest,
    DocumentView,
    Enrolment,
    EnrolRequest,
    InventoryView,
    PocEntity,
    RevisionProgress,
    RuntimeExplanation,
    RuntimeView,
    ServerStatus,
    TokenCreated,
    TokenRequest,
    TokenView,
)


async def status(call: Call) -> Response:
    """Return the server's version, time and failing checks, and the caller's identity."""
    services, caller = call.services, call.principal
    failing = services.checks.readiness().failing
    return Response(ServerStatus(governor.__version__, services.clock.now(), caller.name, caller.role, failing))


async def describe(_call: Call) -> Response:
    """Return the OpenAPI document of this table."""
    return Response(openapi.document(ENDPOINTS))


def _at_most(maximum: int, minimum: int = 1) -> dict[str, Any]:
    return {**INTEGER, "minimum": minimum, "maximum": maximum}


ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        "POST",
        "/changes",
        changes.submit,
        Access.EDITOR,
        "Submit a change of documents, as JSON or as YAML text; 202 if it takes long: get it by its id",
        body=ChangeRequest,
        response=Change,
        other_statuses=(202,),
        yaml=True,
        query=(
            Query("message", "Message of the change, for a YAML body"),
            Query("dryRun", "Validate and preview without storing, for a YAML body", FLAG),
            Query("allowDeletions", "Allow large deletions, for a YAML body", FLAG),
            Query("allRuntimes", "List every affected runtime, for a YAML body", FLAG),
        ),
    ),
    Endpoint("GET", "/changes/{change}", changes.get, Access.VIEWER, "Get a change by its id", response=Change),
    Endpoint(
        "GET",
        "/documents",
        documents.list_documents,
        Access.VIEWER,
        "List the newest version of each document",
        response=list[DocumentView],
        query=(Query("kind", "Only documents of this kind", {**TEXT, "enum": sorted(DOCUMENT_TYPES)}),),
    ),
    Endpoint(
        "GET",
        "/documents/{kind}/{name}",
        documents.get_document,
        Access.VIEWER,
        "Get a version of a document",
        response=DocumentView,
        query=(Query("version", "Version; the newest if omitted", INTEGER),),
    ),
    Endpoint(
        "GET",
        "/revisions",
        documents.list_revisions,
        Access.VIEWER,
        "List revisions, newest first",
        response=list[Revision],
        query=(
            Query("limit", "Maximum number of revisions", _at_most(documents.MAX_LIMIT)),
            Query("before", "Only revisions before this one", INTEGER),
            Query("document", "Only revisions that touched this document, Kind/name"),
        ),
    ),
    Endpoint(
        "GET", "/revisions/{revision}", documents.get_revision, Access.VIEWER, "Get a revision", response=Revision
    ),
    Endpoint(
        "GET",
        "/revisions/{revision}/progress",
        documents.follow_progress,
        Access.VIEWER,
        "Get or watch the progress of a revision",
        response=RevisionProgress,
        events=(PROGRESS,),
        query=(
            Query("limit", "Maximum number of listed runtimes; counts are of all", _at_most(MAX_LISTED, minimum=0)),
            Query("runtime", "Only this runtime"),
        ),
    ),
    Endpoint(
        "GET",
        "/runtimes",
        runtimes.list_runtimes,
        Access.VIEWER,
        "List runtimes with their status, ordered by name, page by page",
        response=list[RuntimeView],
        query=(
            Query("limit", "Maximum number of runtimes", _at_most(runtimes.MAX_PAGE)),
            Query("after", "Only runtimes after this name; the header Link has the next page"),
            Query("name", "Only runtimes whose name contains this text"),
            Query("selector", "Only runtimes with these labels, for example region=eu,tier!=test"),
            Query(
                "state",
                "Only runtimes in this state, which may be one of several",
                {**TEXT, "enum": list(RUNTIME_STATES)},
            ),
            Query("full", "With reports and evidence", FLAG),
        ),
    ),
    Endpoint(
        "GET",
        "/runtimes/{runtime}",
        runtimes.get_runtime,
        Access.VIEWER_OR_SELF,
        "Get a runtime with its status",
        response=RuntimeView,
    ),
    Endpoint(
        "GET",
        "/runtimes/{runtime}/explain",
        runtimes.explain,
        Access.VIEWER,
        "Explain which profile set each field of a runtime's resources and apply policy",
        response=RuntimeExplanation,
    ),
    Endpoint(
        "POST",
        "/runtimes/{runtime}/retry",
        runtimes.retry,
        Access.EDITOR,
        "Retry a runtime's newest delivery, if it is not verified",
        response=RuntimeView,
    ),
    Endpoint(
        "POST",
        "/runtimes/{runtime}/revoke",
        runtimes.revoke,
        Access.ADMIN,
        "Revoke the key of a runtime's agent and its unused join tokens",
        response=RuntimeView,
    ),
    Endpoint(
        "GET",
        "/runtimes/{runtime}/watch",
        runtimes.watch,
        Access.SELF,
        "Watch the deliveries of a runtime; Last-Event-ID is the id of the last event that the agent stored",
        events=(DELIVERY, NOTICE),
        query=(
            Query("boot", "Identifies the agent process; others are rejected while it watches"),
            Query("host", "Host of the agent, named in the error for a second agent"),
        ),
    ),
    Endpoint(
        "GET",
        "/runtimes/{runtime}/bundles/{sequence}",
        runtimes.get_bundle,
        Access.SELF,
        "Get a delivery, unsealed and signed",
        response=SignedDelivery,
    ),
    Endpoint(
        "POST",
        "/runtimes/{runtime}/reports",
        runtimes.report,
        Access.SELF,
        "Report the state of a delivery",
        body=Report | Report1,
        status=204,
    ),
    Endpoint(
        "POST",
        "/runtimes/{runtime}/checks",
        runtimes.check,
        Access.SELF,
        "Confirm that the last report is still true; kept in memory only",
        body=Check,
        status=204,
        immediate=True,
    ),
    Endpoint(
        "PUT",
        "/runtimes/{runtime}/inventory",
        inventories.put,
        Access.SELF,
        "Store what the agent found in the namespaces of its runtime",
        body=Inventory,
        status=204,
        max_body_bytes=inventories.MAX_BODY_BYTES,
    ),
    Endpoint(
        "GET",
        "/runtimes/{runtime}/inventory",
        inventories.get,
        Access.VIEWER,
        "Get what the agent found in the namespaces of its runtime, without sensitive values",
        response=InventoryView,
    ),
    Endpoint(
        "POST",
        "/tokens",
        tokens.create,
        Access.ADMIN,
        "Create a token for a role, or a one-time join token for a runtime",
        body=TokenRequest,
        response=TokenCreated,
        status=201,
    ),
    Endpoint(
        "GET",
        "/tokens",
        tokens.list_tokens,
        Access.ADMIN,
        "List tokens without their secrets",
        response=list[TokenView],
    ),
    Endpoint("DELETE", "/tokens/{token}", tokens.revoke, Access.ADMIN, "Revoke a token", status=204),
    Endpoint(
        "POST",
        "/enrol",
        tokens.enrol,
        Access.PUBLIC,
        "Enrol an agent's key as the identity of its runtime",
        body=EnrolRequest,
        response=Enrolment,
        max_body_bytes=64 * 1024,
    ),
    Endpoint(
        "GET",
        "/runtimes",
        poc.list_runtimes,
        Access.LEGACY,
        "List runtimes in the format of the proof of concept",
        response=list[PocEntity],
        prefix="",
    ),
    Endpoint(
        "GET",
        "/runtimes/{runtime}",
        poc.get_runtime,
        Access.LEGACY,
        "Get a runtime in the format of the proof of concept",
        response=PocEntity,
        prefix="",
        plain_404=True,
    ),
    Endpoint(
        "GET",
        "/status",
        status,
        Access.VIEWER,
        "Get the server's status and the caller's identity",
        response=ServerStatus,
    ),
    Endpoint("GET", "/openapi.json", describe, Access.PUBLIC, "Get this description", response=dict),
)
