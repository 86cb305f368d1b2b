"""The client of one cluster: requests as bytes, objects by verb, streams line by line.

Waiting for events and keeping what they say is the reflector's; deciding what to write is applyset's.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.client.discovery import Discovery
from governor.kube.client.sender import Limits, Sender
from governor.kube.client.transport import JSON, TIMEOUT_S, Request, Transport
from governor.kube.config.access import Access
from governor.kube.errors import UNDECODABLE, ApiError, Status
from governor.kube.objects import ApiResource, Object, ref_of
from governor.kube.pages import PAGE, ListPage

MERGE_PATCH: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML

__all__ = ["APPLY", "JSON", "MERGE_PATCH", "TIMEOUT_S", "Client", "Limits", "Request", "Transport"]

T = TypeVar("T")


_encode = msgspec.json.Encoder().encode
_objects: Final = msgspec.json.Decoder(Object)
_pages: Final = msgspec.json.Decoder(ListPage[Object])
_statuses: Final = msgspec.json.Decoder(Status)


class Client:
    """One cluster; cheap while idle, so that a program may hold thousands."""

    __slots__ = ("_sender", "discovery")

    def __init__(self, transport: Transport, access: Access, limits: Limits = Limits()) -> None:  # noqa: B008 - frozen
        self._sender = Sender(transport, access, limits)
        self.discovery = Discovery(self._sender.exchange, transport.clock, transport.tables)

    async def send(self, request: Request) -> bytes:
        """The body of the answer; a refusal is an ``ApiError``, no answer is UNAVAILABLE or DEADLINE."""
        return (await self._sender.exchange(request)).body

    def stream_lines(self, request: Request) -> AsyncGenerator[bytes, None]:
        """The lines of a streamed answer as they come; ends when the server ends it, UNAVAILABLE if it breaks off.

        Silence is not ended: wait for each line only as long as you are ready to. Close it when you leave early.
        """
        return self._sender.lines(request)

    async def list(
        self, resource: ApiResource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Object]:
        """All objects of a kind, in one namespace or in all, that fit the selectors; read page by page."""
        selectors = (("labelSelector", labels), ("fieldSelector", fields))
        query = {"limit": str(PAGE)} | {name: text for name, text in selectors if text}
        while True:
            request = Request("GET", resource.path(namespace), query)
            page = _page(request, await self.send(request))
            for item in page.items or ():
                # The server leaves out of a list's items what is the same in all of them.
                yield {"apiVersion": resource.api_version, "kind": resource.kind} | item
            if not page.metadata.more:
                return
            query["continue"] = page.metadata.more

    async def get(self, resource: ApiResource, name: str, namespace: str = "") -> Object:
        """One object."""
        return await self._object(Request("GET", resource.path(namespace, name)))

    async def create(self, resource: ApiResource, manifest: Object, *, manager: str, dry_run: bool = False) -> Object:
        """Create; EXISTS if it is there. Not repeated by itself: whether a lost answer meant success is unknown."""
        ref = ref_of(manifest)
        request = Request(
            "POST",
            resource.path(ref.namespace),
            _options(manager=manager, dry_run=dry_run),
            _encode(manifest),
            repeatable=False,
        )
        return await self._object(request)

    async def replace(
        self, resource: ApiResource, manifest: Object, *, manager: str, subresource: str = "", dry_run: bool = False
    ) -> Object:
        """Replace; with a resourceVersion in the manifest only that version, otherwise CONFLICT."""
        ref = ref_of(manifest)
        path = resource.path(ref.namespace, ref.name, subresource)
        return await self._object(Request("PUT", path, _options(manager=manager, dry_run=dry_run), _encode(manifest)))

    async def apply(
        self,
        resource: ApiResource,
        manifest: Object,
        *,
        manager: str,
        force: bool = False,
        dry_run: bool = False,
        subresource: str = "",
    ) -> Object:
        """Server-side apply; without ``force`` a field of another manager is a CONFLICT whose causes name it."""
        ref = ref_of(manifest)
        path = resource.path(ref.namespace, ref.name, subresource)
        query = _options(manager=manager, dry_run=dry_run) | {"force": "true" if force else "false"}
        return await self._object(Request("PATCH", path, query, _encode(manifest), APPLY))

    async def patch(
        self, resource: ApiResource, name: str, namespace: str, change: Any, *, manager: str, subresource: str = ""
    ) -> Object:
        """Merge a change into one object."""
        path = resource.path(namespace, name, subresource)
        return await self._object(Request("PATCH", path, _options(manager=manager), _encode(change), MERGE_PATCH))

    async def delete(
        self,
        resource: ApiResource,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        propagation: str = "Background",
        dry_run: bool = False,
    ) -> None:
        """Ask for its removal; with a uid only that very object, otherwise CONFLICT. NOT_FOUND if it is not there."""
        options: Object = {"propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        if dry_run:
            options["dryRun"] = ["All"]
        await self._object(Request("DELETE", resource.path(namespace, name), body=_encode(options)))

    async def _object(self, request: Request) -> Object:
        body = await self.send(request)
        decoded = _decoded(request, body, _objects)
        if decoded.get("kind") == "Status" and decoded.get("status") == "Failure":
            status = _decoded(request, body, _statuses)
            raise ApiError(str(request), status.code or 500, status)
        if decoded.get("kind") != "Status" and not isinstance(decoded.get("metadata"), dict):
            raise _unreadable(request, "it is an object without metadata")
        return decoded


def _options(*, manager: str, dry_run: bool = False) -> dict[str, str]:
    return {"fieldManager": manager, "dryRun": "All"} if dry_run else {"fieldManager": manager}


def _page(request: Request, body: bytes) -> ListPage[Object]:
    page = _decoded(request, body, _pages)
    if page.metadata.more and page.metadata.more == request.query.get("continue"):
        raise _unreadable(request, "it is no list that goes on")
    return page


def _decoded(request: Request, body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except UNDECODABLE as error:
        raise _unreadable(request, str(error)) from error


def _unreadable(request: Request, why: str) -> GovernorError:
    message = f"{request}: the answer is not what an API server answers: {why}; is the address right?"
    return GovernorError(Kind.INTERNAL, "kube-answer", message)
