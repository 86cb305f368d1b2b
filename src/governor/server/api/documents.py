"""Handlers for documents and revisions."""

from typing import Final

import msgspec

from governor.domain.documents import DOCUMENT_TYPES, DocumentRef
from governor.errors import invalid
from governor.server.api.endpoints import EVENTS, JSON, Call, Events, Produced, Response, not_found, parse_integer
from governor.server.services import Services
from governor.server.store.documents import DocumentVersion, document_version, find_revisions, newest_versions
from governor.server.watch.followers import topic_of
from governor.server.watch.progress import MAX_LISTED
from governor.values.trees import masked
from governor.wire import events
from governor.wire.events import Event, encode
from governor.wire.rest import DocumentView, RevisionProgress

MAX_LIMIT: Final = 500
_DEFAULT_LIMIT: Final = 50


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
    if not 0 < limit <= MAX_LIMIT:
        raise invalid("limit", f"limit must be from 1 to {MAX_LIMIT}")
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
    limit = call.number("limit")
    if limit is not None and not 0 <= limit <= MAX_LISTED:
        raise invalid("limit", f"limit must be from 0 to {MAX_LISTED}")
    services, number, only = call.services, _number(call), call.query.get("runtime")
    targets = await services.progress.targets(number)
    feed = _ProgressFeed(services, number, targets, MAX_LISTED if limit is None else limit, only)
    if JSON in call.headers.get("accept", "") and EVENTS not in call.headers["accept"]:
        return Response(await feed.read())
    topic = topic_of(number, only)
    following = services.progress.follow(number, targets, feed.limit, only)
    return Events(topic, feed.produce, services.timing.progress_pause_s, following=following)


class _ProgressFeed:
    """Source of progress events; skips a state that was sent last."""

    def __init__(self, services: Services, number: int, targets: frozenset[str], limit: int, only: str | None) -> None:
        self._services = services
        self._number = number
        self._targets = targets
        self.limit = limit
        self._only = only
        self._sent: RevisionProgress | None = None

    async def read(self) -> RevisionProgress:
        return await self._services.progress.read(self._number, self._targets, self.limit, self._only)

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
    return msgspec.structs.replace(progress, runtimes=runtimes, seconds=0)


def _view(version: DocumentVersion) -> DocumentView:
    return DocumentView(version.kind, version.name, version.version, version.revision, masked(version.tree))


def _ref(text: str) -> DocumentRef:
    kind, slash, name = text.partition("/")
    if not slash:
        raise invalid("document-reference", "write the document as Kind/name, for example Profile/orders")
    return DocumentRef(kind, name)


def _number(call: Call) -> int:
    return parse_integer(call.path["revision"], "the revision")
