"""The API server of one cluster: one request to it over HTTP, and the one spot that translates foreign failures.

Redirects are not followed: a credential goes only where it was meant to go. Repeating and limiting is the sender's.
"""

import contextlib
import functools
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
from yarl import URL

from governor.errors import GovernorError, Kind, invalid
from governor.kube.client.streams import MOST_BODY_BYTES, Body, BrokenError, Lines, TooLargeError, unpacked
from governor.kube.client.transport import NOT_MODIFIED, Answer, Request, Transport
from governor.kube.config.access import Access, Credential, Impersonation
from governor.kube.config.trust import Trust
from governor.kube.errors import ApiError, Status, retry_after_s, status_of
from governor.process.tls import is_loopback
from governor.values.secret import MASK, Secret

UNREACHABLE: Final = "kube-unreachable"
"""The code of failures before anything was sent."""
LOST: Final = "kube-connection-lost"
"""The code of failures after which nobody knows what the server did."""
_MOST_REFUSAL_BYTES: Final = 1024 * 1024
_LEAST_TOKEN: Final = 8
_FOREIGN: Final = (aiohttp.ClientError, OSError, TooLargeError, BrokenError)
_UNSENT: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)


class _Shown:
    """What every request of one credential has."""

    __slots__ = ("credential", "headers", "trust")

    def __init__(self, access: Access, credential: Credential) -> None:
        self.credential = credential
        self.headers = [*_impersonating(access.impersonation), *_bearing(credential.token)]
        self.trust = Trust(
            credential.ca, credential.certificate, credential.key, access.tls_server_name, access.insecure
        )


class Endpoint:
    """Sends to one API server."""

    __slots__ = ("_access", "_packs", "_secure", "_shown", "_transport")

    def __init__(self, transport: Transport, access: Access) -> None:
        self._transport = transport
        self._access = access
        url = URL(access.server)
        self._secure = url.scheme == "https"
        # Packing costs both sides more than loopback does; the server packs nothing small anyway.
        self._packs = not is_loopback(url.host or "")
        self._shown: _Shown | None = None

    async def exchange(self, request: Request, credential: Credential) -> Answer:
        """One attempt: a whole answer, a refusal as ``ApiError``, or UNAVAILABLE."""
        packs = self._packs and request.method == "GET"
        try:
            async with self._request(request, credential, packs=packs) as response:
                if response.status < 300 or response.status == NOT_MODIFIED:
                    body = await _read(response, MOST_BODY_BYTES)
                    return Answer(response.status, body, response.headers.get("ETag", ""))
                raise await self._refusal(request, credential, response)
        except _FOREIGN as error:
            raise self._failure(request, error) from error

    async def open(self, request: Request, credential: Credential) -> aiohttp.ClientResponse:
        """The begun answer of a stream, to be read by ``more`` and closed by the caller."""
        try:
            response: aiohttp.ClientResponse = await self._request(request, credential, packs=False)
            if response.status < 300:
                return response
            async with response:
                raise await self._refusal(request, credential, response)
        except _FOREIGN as error:
            raise self._failure(request, error) from error

    async def more(self, request: Request, response: aiohttp.ClientResponse, lines: Lines) -> list[bytes] | None:
        """The lines that the next piece of a stream ends; None at the end of the stream."""
        try:
            piece = await response.content.readany()
            return lines.feed(piece) if piece else None
        except _FOREIGN as error:
            raise self._failure(request, error) from error

    def _request(self, request: Request, credential: Credential, *, packs: bool) -> Any:
        shown = self._shown
        if shown is None or shown.credential is not credential:
            shown = self._shown = _Shown(self._access, credential)
        headers = [("Accept", request.accept), *shown.headers]
        if request.body:
            headers.append(("Content-Type", request.content_type))
        if packs:
            headers.append(("Accept-Encoding", "gzip"))
        if request.etag:
            headers.append(("If-None-Match", request.etag))
        query = f"?{_encoded(tuple(request.query.items()))}" if request.query else ""
        return self._transport.session.request(
            request.method,
            URL(f"{self._access.server}{request.path}{query}", encoded=True),
            data=request.body or None,
            headers=headers,
            allow_redirects=False,
            ssl=self._transport.contexts.get(shown.trust) if self._secure else True,
            server_hostname=self._access.tls_server_name or None,
            **self._through(),
        )

    def _through(self) -> dict[str, Any]:
        proxy = self._access.proxy
        if proxy is None:
            return {}
        headers = {"Proxy-Authorization": proxy.authorization.reveal()} if proxy.authorization else None
        return {"proxy": proxy.url, "proxy_headers": headers}

    async def _refusal(self, request: Request, credential: Credential, response: aiohttp.ClientResponse) -> ApiError:
        doing = f"{request} at {self._access.server}"
        if response.status < 400:
            return ApiError(doing, response.status, _redirected(response.headers.get("Location", "")))
        body = _masked(await _read_refusal(response), credential.token)
        status = status_of(body)
        wait_s = retry_after_s(response.headers.get("Retry-After", ""), status, self._transport.clock.now())
        return ApiError(doing, response.status, status, wait_s)

    def _failure(self, request: Request, error: Exception) -> GovernorError:
        where = f"{request} at {self._access.server}"
        if isinstance(error, TooLargeError):
            message = f"{where}: the answer is too large: {error}; ask for less at a time"
            return GovernorError(Kind.EXHAUSTED, "kube-answer-size", message)
        if isinstance(error, BrokenError):
            return GovernorError(Kind.UNAVAILABLE, LOST, f"{where}: the answer cannot be unpacked: {error}")
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            reason = error.certificate_error
            message = f"{where}: its certificate is not trusted: {reason}; check the cluster's certificate authority"
            return GovernorError(Kind.UNAUTHENTICATED, "kube-tls-untrusted", message)
        if isinstance(error, _UNSENT):
            message = f"{where}: cannot connect: {_reason(error)}; check that it runs and that the address is right"
            return GovernorError(Kind.UNAVAILABLE, UNREACHABLE, message)
        return GovernorError(Kind.UNAVAILABLE, LOST, f"{where}: the connection broke: {_reason(error)}")


@functools.lru_cache(maxsize=512)
def _encoded(query: tuple[tuple[str, str], ...]) -> str:
    """Kept, because a program asks the same few questions all the time."""
    return urlencode(query)


async def _read(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    body, content = Body(most_bytes), response.content
    while not content.at_eof():
        body.add(await content.readany())
    encoding = response.headers.get("Content-Encoding", "")
    return unpacked(body.whole(), encoding, most_bytes) if encoding else body.whole()


async def _read_refusal(response: aiohttp.ClientResponse) -> bytes:
    """Nothing if it cannot be read: the status counts, whatever comes with it."""
    try:
        return await _read(response, _MOST_REFUSAL_BYTES)
    except (TooLargeError, BrokenError):
        return b""


def _masked(body: bytes, token: Secret | None) -> bytes:
    """Something between may show what was sent to it."""
    text = token.reveal() if token else ""
    return body.replace(text.encode(), MASK.encode()) if len(text) >= _LEAST_TOKEN else body


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy answered {error.status} {error.message}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__


def _redirected(location: str) -> Status:
    place = "another path"
    with contextlib.suppress(ValueError):
        there = urlsplit(location)
        if there.scheme and there.hostname:
            place = f"{there.scheme}://{there.hostname}"
    return Status(message=f"it redirects to {place}, which is not followed: correct the server's address")


def _bearing(token: Secret | None) -> list[tuple[str, str]]:
    if token is None:
        return []
    text = token.reveal()
    if not text.isascii() or not text.isprintable() or " " in text:
        raise invalid("kube-token", "the token of the cluster has characters that no token has: is it a token?")
    return [("Authorization", f"Bearer {text}")]


def _impersonating(whom: Impersonation | None) -> list[tuple[str, str]]:
    if whom is None:
        return []
    headers = [("Impersonate-User", whom.user), *(("Impersonate-Group", group) for group in whom.groups)]
    if whom.uid:
        headers.append(("Impersonate-Uid", whom.uid))
    return headers + [(f"Impersonate-Extra-{quote(name, safe='')}", value) for name, value in whom.extra]
