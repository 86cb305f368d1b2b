"""The table of endpoints. Routing, access and the OpenAPI document come from here and from nowhere else."""

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
    """How the server is, and as whom it knows the caller."""
    services, caller = call.services, call.principal
    failing = services.checks.readiness().failing
    return Answer(ServerStatus(governor.__version__, services.clock.now(), caller.name, caller.role, failing))


async def describe(_call: Call) -> Answer:
    """The OpenAPI document of this table."""
    return Answer(openapi.document(ENDPOINTS))


ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        "POST",
        "/changes",
        changes.submit,
        Access.EDITOR,
        "Ask for a change of documents, as JSON or as YAML text",
        body=ChangeRequest,
        answer=Change,
        yaml=True,
        query=(
            Query("message", "Why, with a body of YAML"),
            Query("dryRun", "Answer and store nothing, with a body of YAML", "boolean"),
            Query("allowDeletions", "Removing much is meant, with a body of YAML", "boolean"),
        ),
    ),
    Endpoint("GET", "/changes/{change}", changes.get, Access.VIEWER, "One accepted change", answer=Change),
    Endpoint(
        "GET",
        "/documents",
        documents.list_documents,
        Access.VIEWER,
        "The newest version of each document",
        answer=list[DocumentView],
        query=(Query("kind", "Only documents of this kind"),),
    ),
    Endpoint(
        "GET",
        "/documents/{kind}/{name}",
        documents.get_document,
        Access.VIEWER,
        "One version of a document",
        answer=DocumentView,
        query=(Query("version", "Which version; the newest without it", "integer"),),
    ),
    Endpoint(
        "GET",
        "/revisions",
        documents.list_revisions,
        Access.VIEWER,
        "Revisions, newest first",
        answer=list[Revision],
        query=(
            Query("limit", "How many at most", "integer"),
            Query("before", "Only revisions before this one", "integer"),
            Query("document", "Only revisions that touched this document, Kind/name"),
        ),
    ),
    Endpoint("GET", "/revisions/{revision}", documents.get_revision, Access.VIEWER, "One revision", answer=Revision),
    Endpoint(
        "GET",
        "/revisions/{revision}/progress",
        documents.follow_progress,
        Access.VIEWER,
        "How far a revision is out, once or as it moves",
        answer=RevisionProgress,
        events=(PROGRESS,),
    ),
    Endpoint(
        "GET",
        "/runtimes",
        runtimes.list_runtimes,
        Access.VIEWER,
        "All runtimes with their states",
        answer=list[RuntimeView],
    ),
    Endpoint(
        "GET",
        "/runtimes/{runtime}",
        runtimes.get_runtime,
        Access.VIEWER_OR_SELF,
        "One runtime with its state",
        answer=RuntimeView,
    ),
    Endpoint(
        "GET",
        "/runtimes/{runtime}/explain",
        runtimes.explain,
        Access.VIEWER,
        "Each field of a runtime's resources and apply policy, with the profile that decided it",
        answer=RuntimeExplanation,
    ),
    Endpoint(
        "POST",
        "/runtimes/{runtime}/retry",
        runtimes.retry,
        Access.EDITOR,
        "Have a runtime try its newest delivery once more, if it is not verified",
        answer=RuntimeView,
    ),
    Endpoint(
        "POST",
        "/runtimes/{runtime}/revoke",
        runtimes.revoke,
        Access.ADMIN,
        "End the key of a runtime's agent at once, and its unused join tokens",
        answer=RuntimeView,
    ),
    Endpoint(
        "GET",
        "/runtimes/{runtime}/watch",
        runtimes.watch,
        Access.SELF,
        "The newest delivery and each newer one; Last-Event-ID names the one that the agent has",
        events=(DELIVERY, NOTICE),
        query=(
            Query("boot", "Which start of the agent this is; another one is refused while this one watches"),
            Query("host", "Where the agent runs, to be named to another one"),
        ),
    ),
    Endpoint(
        "GET",
        "/runtimes/{runtime}/bundles/{sequence}",
        runtimes.get_bundle,
        Access.SELF,
        "One delivery, opened and signed",
        answer=SignedDelivery,
    ),
    Endpoint(
        "POST",
        "/runtimes/{runtime}/reports",
        runtimes.report,
        Access.SELF,
        "What the agent saw of a delivery",
        body=Report,
        status=204,
    ),
    Endpoint(
        "POST",
        "/tokens",
        tokens.create,
        Access.ADMIN,
        "Make a token for a role, or a one-time token for a runtime to join",
        body=TokenRequest,
        answer=TokenCreated,
        status=201,
    ),
    Endpoint(
        "GET", "/tokens", tokens.list_tokens, Access.ADMIN, "All tokens without their texts", answer=list[TokenView]
    ),
    Endpoint("DELETE", "/tokens/{token}", tokens.revoke, Access.ADMIN, "End a token at once", status=204),
    Endpoint(
        "POST",
        "/enrol",
        tokens.enrol,
        Access.PUBLIC,
        "Make an agent's key the identity of its runtime",
        body=EnrolRequest,
        answer=Enrolment,
    ),
    Endpoint(
        "GET",
        "/runtimes",
        poc.list_runtimes,
        Access.LEGACY,
        "All runtimes as the proof of concept gave them",
        answer=list[PocEntity],
        prefix="",
    ),
    Endpoint(
        "GET",
        "/runtimes/{runtime}",
        poc.get_runtime,
        Access.LEGACY,
        "One runtime as the proof of concept gave it",
        answer=PocEntity,
        prefix="",
    ),
    Endpoint("GET", "/status", status, Access.VIEWER, "How the server is, and who asks", answer=ServerStatus),
    Endpoint("GET", "/openapi.json", describe, Access.PUBLIC, "This description", answer=dict),
)
