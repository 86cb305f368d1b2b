"""The client of one cluster: the API verbs on decoded objects, plus raw requests and streams for other callers."""

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Final, Self, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.client.discovery import Discovery
from governor.kube.client.paging import PageSize
from governor.kube.client.rest import require_one_user
from governor.kube.client.retry import Limits, RetryingClient
from governor.kube.client.transport import JSON, METADATA, METADATA_LIST, Request, Transport
from governor.kube.config.access import Access, Impersonation
from governor.kube.errors import DECODE_ERRORS, ApiError, Status
from governor.kube.objects import ApiResource, ListPage, Object, ref_of

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"  # JSON is YAML
PAGE_TIMEOUT_S: Final = 60.0
"""Timeout of one list page: the server's own for a request, because a page may be large."""

T = TypeVar("T")

_PODS: Final = ApiResource("", "v1", "Pod", "pods", namespaced=True)


class _MetadataOnly(msgspec.Struct, frozen=True):
    metadata: Object


_encode = msgspec.json.Encoder().encode
_objects: Final = msgspec.json.Decoder(Object)
_pages: Final = msgspec.json.Decoder(ListPage[Object])
_metadata_pages: Final = msgspec.json.Decoder(ListPage[_MetadataOnly])
_statuses: Final = msgspec.json.Decoder(Status)


class Client:
    """Client of one cluster. It is small while idle, so a program may hold thousands.

    An error response raises ``ApiError``; a missing response raises UNAVAILABLE or DEADLINE.
    """

    __slots__ = ("_http", "_impersonation", "discovery")

    def __init__(self, transport: Transport, access: Access, limits: Limits = Limits()) -> None:  # noqa: B008 - frozen
        self._http = RetryingClient(transport, access, limits)
        self._impersonation: Impersonation | None = None
        self.discovery = Discovery(self._http.send, transport.clock, transport.discovery_cache)

    def update_access(self, access: Access) -> None:
        """Use another credential for the same server; PRECONDITION if the access is for another one.

        Discovery cache, circuit and rate limit stay as they are. Requests in flight end with the old credential.
        """
        self._http.update_access(access)

    def impersonating(self, user: str) -> Self:
        """Return a client of the same server whose requests impersonate a user, such as a service account.

        It shares the access of this client, even when that is updated, and its circuit, rate limit and discovery, whose
        requests do not impersonate. PRECONDITION if requests of this client impersonate already.
        """
        impersonation = Impersonation(user)
        access = self._http.access
        require_one_user(access.server, self._impersonation or access.impersonation, impersonation)
        client = copy.copy(self)
        client._impersonation = impersonation  # noqa: SLF001 - of the same class
        return client

    async def send(self, request: Request) -> bytes:
        """Send a request and return the response body."""
        return (await self._http.send(self._as_user(request))).body

    def stream_lines(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a streamed response until the server closes it; UNAVAILABLE if the connection is lost.

        There is no read timeout: bound the wait for each line yourself. Close the generator when you leave early.
        """
        return self._http.stream_lines(self._as_user(request))

    async def list(
        self,
        resource: ApiResource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
        cached: bool = False,
    ) -> AsyncIterator[Object]:
        """Yield the objects of a kind that match the selectors, page by page; no namespace means all.

        With ``metadata_only`` an object has only apiVersion, kind and metadata, and the server sends nothing else. With
        ``cached`` the server answers at once with what its cache has, which may be older than the last write.
        """
        given = (("labelSelector", labels), ("fieldSelector", fields), ("resourceVersion", "0" if cached else ""))
        query = {name: text for name, text in given if text}
        accept = METADATA_LIST if metadata_only else JSON
        request = Request("GET", resource.path(namespace), query, timeout_s=PAGE_TIMEOUT_S, accept=accept)
        page_size = PageSize()
        while True:
            body = await self._send_for_page(request, page_size)
            items, continue_token = _decode_page(request, body, metadata_only=metadata_only)
            page_size.observed(len(items), len(body))
            for item in items:
                # The server omits apiVersion and kind from list items.
                yield {"apiVersion": resource.api_version, "kind": resource.kind} | item
            if not continue_token:
                return
            request = msgspec.structs.replace(request, query={**request.query, "continue": continue_token})

    async def _send_for_page(self, request: Request, page_size: PageSize) -> bytes:
        """Request one page, again with a lower limit while it is too large."""
        while True:
            query = {"limit": str(page_size.limit), **request.query}
            try:
                return await self.send(msgspec.structs.replace(request, query=query))
            except GovernorError as error:
                if not page_size.shrink(error):
                    raise

    async def get(
        self, resource: ApiResource, name: str, namespace: str = "", *, metadata_only: bool = False
    ) -> Object:
        """Return one object; with ``metadata_only``, only its apiVersion, kind and metadata."""
        request = Request("GET", resource.path(namespace, name), accept=METADATA if metadata_only else JSON)
        found = await self._send_for_object(request)
        if metadata_only:
            return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": found["metadata"]}
        return found

    async def create(self, resource: ApiResource, manifest: Object, *, manager: str, dry_run: bool = False) -> Object:
        """Create an object; EXISTS if it exists. Not retried after a lost response, which may have been a success."""
        ref = ref_of(manifest)
        resource.require_namespace(ref.namespace)
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
        self,
        resource: ApiResource,
        name: str,
        namespace: str,
        change: Any,
        *,
        manager: str,
        subresource: str = "",
        content_type: str = MERGE_PATCH,
        dry_run: bool = False,
    ) -> Object:
        """Patch one object with a merge patch, or with the kind of patch that ``content_type`` names."""
        path = resource.path(namespace, name, subresource)
        query = _options(manager=manager, dry_run=dry_run)
        return await self._send_for_object(Request("PATCH", path, query, _encode(change), content_type))

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

    async def evict(self, name: str, namespace: str, *, uid: str = "") -> None:
        """Evict a pod, which deletes it unless a disruption budget forbids that now: then EXHAUSTED.

        NOT_FOUND if it does not exist, CONFLICT if ``uid`` is given and is not its uid.
        """
        body: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}} if uid else {},
        }
        # Not retryable: the 429 of a budget has no Retry-After and lasts until other pods are healthy.
        path = _PODS.path(namespace, name, "eviction")
        await self._send_for_object(Request("POST", path, body=_encode(body), retryable=False))

    def _as_user(self, request: Request) -> Request:
        user = self._impersonation
        return msgspec.structs.replace(request, impersonation=user) if user else request

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


def _decode_page(request: Request, body: bytes, *, metadata_only: bool) -> tuple[Sequence[Object], str]:
    """Return the items of a page and its continue token."""
    items: Sequence[Object]
    if metadata_only:
        reduced = _decode(request, body, _metadata_pages)
        items, token = [{"metadata": each.metadata} for each in reduced.items or ()], reduced.metadata.continue_token
    else:
        page = _decode(request, body, _pages)
        items, token = page.items or (), page.metadata.continue_token
    if token and token == request.query.get("continue"):
        raise _unexpected(request, "the list does not advance: its continue token repeats")
    return items, token


def _decode(request: Request, body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except DECODE_ERRORS as error:
        raise _unexpected(request, str(error)) from error


def _unexpected(request: Request, reason: str) -> GovernorError:
    message = f"{request}: the response is not from a Kubernetes API: {reason}; check the server address"
    return GovernorError(Kind.INTERNAL, "kube-answer", message)
