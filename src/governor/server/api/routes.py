"""The table of endpoints, the only definition of routing, access and the OpenAPI document."""

from typing import Final

import governor
from governor.domain.changes import Change, Revision
from governor.domain.reports import Report
from governor.server.api import changes, documents, openapi, poc, runtimes, tokens
from governor.server.api.endpoints import Access, Answer, Call, Endpoint, Query
from governor.wire.events import DELIVERY, NOTICE, PROGRESS
from governor.wire.rest import (
    ChangeRequest,
    DocumentView,
    Enrolment,
    EnrolRequest,
    PocEntity,
    RevisionProgress,
    RuntimeExplanation,
    RuntimeView,
    ServerStatus,
    SignedDelivery,
    TokenCreated,
    TokenRequest,
    TokenView,
)


async def status(call: Call) -> Answer:
    """Return the server's version, time and failing checks, and the caller's identity."""
    services, caller = call.services, call.principal
    failing = services.checks.readiness().failing
    return Answer(ServerStatus(governor.__version__, services.clock.now(), caller.name, caller.role, failing))


async def describe(_call: Call) -> Answer:
    """Return the OpenAPI document of this table."""
    return Answer(openapi.document(ENDPOINTS))


ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        "POST",
        "/changes",
        changes.submit,
        Access.EDITOR,
        "Submit a change of documents, as JSON or as YAML text",
        body=ChangeRequest,
        answer=Change,
        yaml=True,
        query=(
            Query("message", "Message of the change, for a YAML body"),
            Query("dryRun", "Validate and preview without storing, for a YAML body", "boolean"),
            Query("allowDeletions", "Allow large deletions, for a YAML body", "boolean"),
        ),
    ),
    Endpoint("GET", "/changes/{change}", changes.get, Access.VIEWER, "Get an accepted change", answer=Change),
    Endpoint(
        "GET",
        "/documents",
        documents.list_documents,
        Access.VIEWER,
        "List the newest version of each document",
        answer=list[DocumentView],
        query=(Query("kind", "Only documents of this kind"),),
    ),
    Endpoint(
        "GET",
        "/documents/{kind}/{name}",
        documents.get_document,
        Access.VIEWER,
        "Get a version of a document",
        answer=DocumentView,
        query=(Query("version", "Version; the newest if omitted", "integer"),),
    ),
    Endpoint(
        "GET",
        "/revisions",
        documents.list_revisions,
        Access.VIEWER,
        "List revisions, newest first",
        answer=list[Revision],
        query=(
            Query("limit", "Maximum number of revisions", "integer"),
            Query("before", "Only revisions before this one", "integer"),
            Query("document", "Only revisions that touched this document, Kind/name"),
        ),
    ),
    Endpoint("GET", "/revisions/{revision}", documents.get_revision, Access.VIEWER, "Get a revision", answer=Revision),
    Endpoint(
        "GET",
        "/revisions/{revision}/progress",
        documents.follow_progress,
        Access.VIEWER,
        "Get or watch the progress of a revision",
        answer=RevisionProgress,
        events=(PROGRESS,),
    ),
    Endpoint(
        "GET",
        "/runtimes",
        runtimes.list_runtimes,
        Access.VIEWER,
        "List runtimes with their status",
        answer=list[RuntimeView],
    ),
    Endpoint(
        "GET",
        "/runtimes/{runtime}",
        runtimes.get_runtime,
        Access.VIEWER_OR_SELF,
        "Get a runtime with its status",
        answer=RuntimeView,
    ),
    Endpoint(
        "GET",
        "/runtimes/{runtime}/explain",
        runtimes.explain,
        Access.VIEWER,
        "Explain which profile set each field of a runtime's resources and apply policy",
        answer=RuntimeExplanation,
    ),
    Endpoint(
        "POST",
        "/runtimes/{runtime}/retry",
        runtimes.retry,
        Access.EDITOR,
        "Retry a runtime's newest delivery, if it is not verified",
        answer=RuntimeView,
    ),
    Endpoint(
        "POST",
        "/runtimes/{runtime}/revoke",
        runtimes.revoke,
        Access.ADMIN,
        "Revoke the key of a runtime's agent and its unused join tokens",
        answer=RuntimeView,
    ),
    Endpoint(
        "GET",
        "/runtimes/{runtime}/watch",
        runtimes.watch,
        Access.SELF,
        "Watch the deliveries of a runtime; Last-Event-ID is the sequence that the agent has",
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
        answer=SignedDelivery,
    ),
    Endpoint(
        "POST",
        "/runtimes/{runtime}/reports",
        runtimes.report,
        Access.SELF,
        "Report the state of a delivery",
        body=Report,
        status=204,
    ),
    Endpoint(
        "POST",
        "/tokens",
        tokens.create,
        Access.ADMIN,
        "Create a token for a role, or a one-time join token for a runtime",
        body=TokenRequest,
        answer=TokenCreated,
        status=201,
    ),
    Endpoint(
        "GET", "/tokens", tokens.list_tokens, Access.ADMIN, "List tokens without their secrets", answer=list[TokenView]
    ),
    Endpoint("DELETE", "/tokens/{token}", tokens.revoke, Access.ADMIN, "Revoke a token", status=204),
    Endpoint(
        "POST",
        "/enrol",
        tokens.enrol,
        Access.PUBLIC,
        "Enrol an agent's key as the identity of its runtime",
        body=EnrolRequest,
        answer=Enrolment,
    ),
    Endpoint(
        "GET",
        "/runtimes",
        poc.list_runtimes,
        Access.LEGACY,
        "List runtimes in the format of the proof of concept",
        answer=list[PocEntity],
        prefix="",
    ),
    Endpoint(
        "GET",
        "/runtimes/{runtime}",
        poc.get_runtime,
        Access.LEGACY,
        "Get a runtime in the format of the proof of concept",
        answer=PocEntity,
        prefix="",
    ),
    Endpoint(
        "GET",
        "/status",
        status,
        Access.VIEWER,
        "Get the server's status and the caller's identity",
        answer=ServerStatus,
    ),
    Endpoint("GET", "/openapi.json", describe, Access.PUBLIC, "Get this description", answer=dict),
)
