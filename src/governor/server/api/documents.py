"""Handlers for documents and revisions."""

import msgspec

from governor.domain.documents import DOCUMENT_TYPES, DocumentRef
from governor.errors import invalid
from governor.server.api.endpoints import EVENTS, JSON, Call, Events, Produced, Response, not_found, parse_integer
from governor.server.store.documents import DocumentVersion, document_version, find_revisions, newest_versions
from governor.server.watch.hub import PROGRESS
from governor.server.watch.status import read_progress, revision_progress
from governor.values.trees import masked
from governor.wire import events
from governor.wire.events import Event, encode
from governor.wire.rest import DocumentView, RevisionProgress

_DEFAULT_LIMIT = 50
_MAX_LIMIT = 500


async def list_documents(call: Call) -> Response:
    """Return the newest version of each existing document."""
    kind = call.query.get("kind")
    if kind is not None and kind not in DOCUMENT_TYPES:
        raise invalid("kind-unknown", f"unknown kind; known kinds: {', '.join(sorted(DOCUMENT_TYPES))}")
    found = await call.services.store.read(lambda connection: newest_versions(connection, kind))
    return Response([_view(version) for version in found.values() if version.tree is not None])


async def get_document(call: Call) -> Response:
    """Return one version of a document; a deleted document is found only by version."""
    ref, version = DocumentRef(call.path["kind"], call.path["name"]), call.number("version")
    found = await call.services.store.read(lambda connection: document_version(connection, ref, version))
    if found is None or (found.tree is None and version is None):
        raise not_found(f"document {ref}" if version is None else f"version {version} of document {ref}")
    return Response(_view(found), headers=(("ETag", f'"{found.version}"'),))


async def list_revisions(call: Call) -> Response:
    """Return revisions, newest first."""
    requested, before = call.number("limit"), call.number("before")
    limit = _DEFAULT_LIMIT if requested is None else requested
    if not 0 < limit <= _MAX_LIMIT:
        raise invalid("limit", f"limit must be from 1 to {_MAX_LIMIT}")
    document = _ref(call.query["document"]) if "document" in call.query else None
    return Response(
        await call.services.store.read(
            lambda connection: find_revisions(connection, limit=limit, before=before, document=document)
        )
    )


async def get_revision(call: Call) -> Response:
    """Return one revision."""
    number = _number(call)
    found = await call.services.store.read(lambda connection: find_revisions(connection, number=number))
    if not found:
        raise not_found(f"revision {number}")
    return Response(found[0])


async def follow_progress(call: Call) -> Response | Events:
    """Return the progress of a revision: once as JSON, or as events until it is complete."""
    await get_revision(call)
    feed = _ProgressFeed(call, _number(call))
    if JSON in call.headers.get("accept", "") and EVENTS not in call.headers["accept"]:
        return Response(await feed.read())
    return Events(PROGRESS, feed.produce, call.services.timing.progress_pause_s)


class _ProgressFeed:
    """Source of progress events; skips a state that was sent last."""

    def __init__(self, call: Call, number: int) -> None:
        self._services = call.services
        self._number = number
        self._sent: RevisionProgress | None = None

    async def read(self) -> RevisionProgress:
        facts = await self._services.store.read(lambda connection: read_progress(connection, self._number))
        return revision_progress(self._number, facts, self._services.hub.presence, self._services.clock.now())

    async def produce(self) -> Produced:
        progress = await self.read()
        if self._sent is not None and _without_seconds(progress) == _without_seconds(self._sent):
            return Produced()
        self._sent = progress
        event = Event(events.PROGRESS, msgspec.json.encode(progress).decode())
        return Produced(encode(event), last=progress.complete)


def _without_seconds(progress: RevisionProgress) -> RevisionProgress:
    """Ignore elapsed time when comparing."""
    runtimes = tuple(msgspec.structs.replace(each, seconds=0) for each in progress.runtimes)
    return msgspec.structs.replace(progress, runtimes=runtimes)


def _view(version: DocumentVersion) -> DocumentView:
    return DocumentView(version.kind, version.name, version.version, version.revision, masked(version.tree))


def _ref(text: str) -> DocumentRef:
    kind, slash, name = text.partition("/")
    if not slash:
        raise invalid("document-reference", "write the document as Kind/name, for example Profile/orders")
    return DocumentRef(kind, name)


def _number(call: Call) -> int:
    return parse_integer(call.path["revision"], "the revision")
