"""The client of one cluster: requests as bytes, objects by verb, streams line by line.

Waiting for events and keeping what they say is the reflector's; deciding what to write is applyset's.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import msgspec
from yarl import URL

from governor.errors import GovernorError, Kind
from governor.kube.access import Access
from governor.kube.discovery import Discovery
from governor.kube.errors import ApiError, status_of
from governor.kube.objects import ApiResource, Object, ref_of
from governor.kube.transport import JSON, TIMEOUT_S, Answer, Request, Transport
from governor.process.clock import SystemClock

MERGE_PATCH: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML
PAGE: Final = 500

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


__all__ = ["APPLY", "JSON", "MERGE_PATCH", "TIMEOUT_S", "Answer", "Client", "Request", "Transport"]


class _Page(msgspec.Struct, frozen=True):
    items: list[Object]
    metadata: "_PageMetadata"


class _PageMetadata(msgspec.Struct, frozen=True, rename={"more": "continue"}):
    more: str = ""


_decode_page = msgspec.json.Decoder(_Page).decode


class Client:
    """One cluster; cheap while idle, so that a program may hold thousands."""

    def __init__(self, transport: Transport, access: Access) -> None:
        self._transport = transport
        self._access = access
        self._context = _context(access)
        self.discovery = Discovery(self.exchange, SystemClock(), transport.tables)

    async def send(self, request: Request) -> bytes:
        """The body of the answer; a refusal is an ``ApiError``, no answer is UNAVAILABLE or DEADLINE."""
        return (await self.exchange(request)).body

    async def exchange(self, request: Request) -> Answer:
        """The whole answer; a refusal is an ``ApiError``, no answer is UNAVAILABLE or DEADLINE."""
        try:
            async with asyncio.timeout(request.timeout_s), self._open(request) as response:
                body: bytes = await response.read()
        except TimeoutError as error:
            message = f"{request} at {self._access.server}: no answer within {request.timeout_s:g} s"
            raise GovernorError(Kind.DEADLINE, "kube-deadline", message) from error
        except (aiohttp.ClientError, OSError) as error:
            raise GovernorError(
                Kind.UNAVAILABLE, "kube-connect", f"{request} at {self._access.server}: {error}"
            ) from error
        if response.status >= 400:
            raise ApiError(str(request), response.status, status_of(body))
        return Answer(response.status, body, response.headers.get("ETag", ""))

    async def lines(self, request: Request) -> AsyncIterator[bytes]:
        """The lines of a streamed answer as they come; ends when the server ends it."""
        async with self._open(request) as response:
            if response.status >= 400:
                raise ApiError(str(request), response.status, status_of(await response.read()))
            rest = b""
            async for data in response.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    yield line

    async def objects(
        self, resource: ApiResource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Object]:
        """All objects of a kind, in one namespace or in all, that fit the selectors; read page by page."""
        query = {"limit": str(PAGE)}
        query |= {name: text for name, text in (("labelSelector", labels), ("fieldSelector", fields)) if text}
        more = ""
        while True:
            page_query = query | {"continue": more} if more else query
            page = _decode_page(await self.send(Request("GET", resource.path(namespace), page_query)))
            for item in page.items:
                # The server leaves out of a list's items what is the same in all of them.
                yield {"apiVersion": resource.api_version, "kind": resource.kind} | item
            more = page.metadata.more
            if not more:
                return

    async def get(self, resource: ApiResource, name: str, namespace: str = "") -> Object:
        """One object."""
        return _object(await self.send(Request("GET", resource.path(namespace, name))))

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
        return _object(await self.send(request))

    async def replace(
        self, resource: ApiResource, manifest: Object, *, manager: str, subresource: str = "", dry_run: bool = False
    ) -> Object:
        """Replace; with a resourceVersion in the manifest only that version, otherwise CONFLICT."""
        ref = ref_of(manifest)
        path = resource.path(ref.namespace, ref.name, subresource)
        return _object(
            await self.send(Request("PUT", path, _options(manager=manager, dry_run=dry_run), _encode(manifest)))
        )

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
        return _object(await self.send(Request("PATCH", path, query, _encode(manifest), APPLY)))

    async def patch(
        self, resource: ApiResource, name: str, namespace: str, change: Any, *, manager: str, subresource: str = ""
    ) -> Object:
        """Merge a change into one object."""
        path = resource.path(namespace, name, subresource)
        return _object(await self.send(Request("PATCH", path, _options(manager=manager), _encode(change), MERGE_PATCH)))

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
        await self.send(Request("DELETE", resource.path(namespace, name), body=_encode(options)))

    def _open(self, request: Request) -> Any:
        url = URL(self._access.server + request.path, encoded=True)
        headers = {"Accept": request.accept}
        if request.etag:
            headers["If-None-Match"] = request.etag
        if request.body:
            headers["Content-Type"] = request.content_type
        if self._access.token:
            headers["Authorization"] = f"Bearer {self._access.token.reveal()}"
        return self._transport.session.request(
            request.method,
            url.with_query(request.query) if request.query else url,
            data=request.body or None,
            headers=headers,
            ssl=self._context,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )


def _options(*, manager: str, dry_run: bool = False) -> dict[str, str]:
    return {"fieldManager": manager} | ({"dryRun": "All"} if dry_run else {})


def _object(body: bytes) -> Object:
    decoded: Object = _decode(body)
    return decoded


def _context(access: Access) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if access.ca:
        context.load_verify_locations(cadata=access.ca.decode("ascii"))
    else:
        context.load_default_certs()
    if access.client_certificate:
        pair = access.client_certificate
        # OpenSSL reads the pair from a file only; this one is in memory and gone with its descriptor.
        file = os.memfd_create("client-certificate")
        try:
            os.write(file, pair.certificate + b"\n" + pair.key.reveal().encode())
            context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
    return context
