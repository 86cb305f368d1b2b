"""The client of one cluster: the API verbs on decoded objects, plus raw requests and streams for other callers."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.client.discovery import Discovery
from governor.kube.client.retry import Limits, RetryingClient
from governor.kube.client.transport import Request, Transport
from governor.kube.config.access import Access
from governor.kube.errors import DECODE_ERRORS, ApiError, Status
from governor.kube.objects import PAGE_SIZE, ApiResource, ListPage, Object, ref_of

MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"  # JSON is YAML

T = TypeVar("T")


_encode = msgspec.json.Encoder().encode
_objects: Final = msgspec.json.Decoder(Object)
_pages: Final = msgspec.json.Decoder(ListPage[Object])
_statuses: Final = msgspec.json.Decoder(Status)


class Client:
    """Client of one cluster. It is small while idle, so a program may hold thousands.

    An error response raises ``ApiError``; a missing response raises UNAVAILABLE or DEADLINE.
    """

    __slots__ = ("_http", "discovery")

    def __init__(self, transport: Transport, access: Access, limits: Limits = Limits()) -> None:  # noqa: B008 - frozen
        self._http = RetryingClient(transport, access, limits)
        self.discovery = Discovery(self._http.send, transport.clock, transport.discovery_cache)

    async def send(self, request: Request) -> bytes:
        """Send a request and return the response body."""
        return (await self._http.send(request)).body

    def stream_lines(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a streamed response until the server closes it; UNAVAILABLE if the connection is lost.

        There is no read timeout: bound the wait for each line yourself. Close the generator when you leave early.
        """
        return self._http.stream_lines(request)

    async def list(
        self, resource: ApiResource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Object]:
        """Yield the objects of a kind that match the selectors, page by page; no namespace means all."""
        selectors = (("labelSelector", labels), ("fieldSelector", fields))
        query = {"limit": str(PAGE_SIZE)} | {name: text for name, text in selectors if text}
        while True:
            request = Request("GET", resource.path(namespace), query)
            page = _decode_page(request, await self.send(request))
            for item in page.items or ():
                # The server omits apiVersion and kind from list items.
                yield {"apiVersion": resource.api_version, "kind": resource.kind} | item
            if not page.metadata.continue_token:
                return
            query["continue"] = page.metadata.continue_token

    async def get(self, resource: ApiResource, name: str, namespace: str = "") -> Object:
        """Return one object."""
        return await self._send_for_object(Request("GET", resource.path(namespace, name)))

    async def create(self, resource: ApiResource, manifest: Object, *, manager: str, dry_run: bool = False) -> Object:
        """Create an object; EXISTS if it exists. Not retried after a lost response, which may have been a success."""
        ref = ref_of(manifest)
        request = Request(
            "POST",
            resource.path(ref.namespace),
            _options(manager=manager, dry_run=dry_run),
            _encode(manifest),
            retryable=False,
        )
        return await self._send_for_object(request)

    async def replace(
        self, resource: ApiResource, manifest: Object, *, manager: str, subresource: str = "", dry_run: bool = False
    ) -> Object:
        """Replace an object; CONFLICT if the manifest has a resourceVersion that is not the current one."""
        ref = ref_of(manifest)
        path = resource.path(ref.namespace, ref.name, subresource)
        query = _options(manager=manager, dry_run=dry_run)
        return await self._send_for_object(Request("PUT", path, query, _encode(manifest)))

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
        """Server-side apply a manifest; without ``force`` a field of another manager is a CONFLICT that names it."""
        ref = ref_of(manifest)
        path = resource.path(ref.namespace, ref.name, subresource)
        query = _options(manager=manager, dry_run=dry_run) | {"force": "true" if force else "false"}
        return await self._send_for_object(Request("PATCH", path, query, _encode(manifest), APPLY_PATCH))

    async def patch(
        self, resource: ApiResource, name: str, namespace: str, change: Any, *, manager: str, subresource: str = ""
    ) -> Object:
        """Merge-patch one object."""
        path = resource.path(namespace, name, subresource)
        query = _options(manager=manager)
        return await self._send_for_object(Request("PATCH", path, query, _encode(change), MERGE_PATCH))

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
        """Delete an object; NOT_FOUND if it does not exist, CONFLICT if ``uid`` is given and is not its uid."""
        options: Object = {"propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        if dry_run:
            options["dryRun"] = ["All"]
        await self._send_for_object(Request("DELETE", resource.path(namespace, name), body=_encode(options)))

    async def _send_for_object(self, request: Request) -> Object:
        body = await self.send(request)
        decoded = _decode(request, body, _objects)
        if decoded.get("kind") == "Status" and decoded.get("status") == "Failure":
            status = _decode(request, body, _statuses)
            raise ApiError(str(request), status.code or 500, status)
        if decoded.get("kind") != "Status" and not isinstance(decoded.get("metadata"), dict):
            raise _unexpected(request, "the object has no metadata")
        return decoded


def _options(*, manager: str, dry_run: bool = False) -> dict[str, str]:
    return {"fieldManager": manager, "dryRun": "All"} if dry_run else {"fieldManager": manager}


def _decode_page(request: Request, body: bytes) -> ListPage[Object]:
    page = _decode(request, body, _pages)
    token = page.metadata.continue_token
    if token and token == request.query.get("continue"):
        raise _unexpected(request, "the list does not advance: its continue token repeats")
    return page


def _decode(request: Request, body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except DECODE_ERRORS as error:
        raise _unexpected(request, str(error)) from error


def _unexpected(request: Request, reason: str) -> GovernorError:
    message = f"{request}: the response is not from a Kubernetes API: {reason}; check the server address"
    return GovernorError(Kind.INTERNAL, "kube-answer", message)
