"""One HTTP request to one API server, and the only place that translates aiohttp's errors.

Redirects are not followed: a credential is sent only to the configured server. Retries and rate limiting are
``retry``.
"""

import contextlib
import functools
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
from yarl import URL

from governor.errors import GovernorError, Kind, invalid
from governor.kube.client.body import (
    MAX_BODY_BYTES,
    BodyBuffer,
    ContentEncodingError,
    LineSplitter,
    TooLargeError,
    decompress,
)
from governor.kube.client.paging import TOO_LARGE
from governor.kube.client.transport import NOT_MODIFIED, Request, Response, Transport
from governor.kube.config.access import Access, Credential, Impersonation
from governor.kube.config.tls_context import TlsConfig
from governor.kube.errors import ApiError, Status, parse_status, retry_after_s
from governor.process.tls import is_loopback
from governor.values.secret import MASK, Secret

UNREACHABLE: Final = "kube-unreachable"
"""Error code of failures before the request was sent."""
CONNECTION_LOST: Final = "kube-connection-lost"
"""Error code of failures after which the request may or may not have been executed."""
_MAX_ERROR_BYTES: Final = 1024 * 1024
_MIN_MASKED_TOKEN: Final = 8
_HTTP_ERRORS: Final = (aiohttp.ClientError, OSError, TooLargeError, ContentEncodingError)
_CONNECT_ERRORS: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)


class _Authentication:
    """Headers and TLS configuration derived from one credential."""

    __slots__ = ("credential", "headers", "tls")

    def __init__(self, access: Access, credential: Credential) -> None:
        self.credential = credential
        self.headers = [*_impersonation_headers(access.impersonation), *_authorization_headers(credential.token)]
        self.tls = TlsConfig(
            credential.ca, credential.certificate, credential.key, access.tls_server_name, access.insecure
        )


class RestClient:
    """Sends single requests to one API server."""

    __slots__ = ("_accept_gzip", "_access", "_authentication", "_secure", "_transport")

    def __init__(self, transport: Transport, access: Access) -> None:
        self._transport = transport
        self._access = access
        url = URL(access.server)
        self._secure = url.scheme == "https"
        # On loopback gzip costs both sides more time than it saves. The server compresses no small body anyway.
        self._accept_gzip = not is_loopback(url.host or "")
        self._authentication: _Authentication | None = None

    async def send(self, request: Request, credential: Credential) -> Response:
        """Send once and return the complete response; an error response is an ``ApiError``."""
        accept_gzip = self._accept_gzip and request.method == "GET"
        try:
            async with self._request(request, credential, accept_gzip=accept_gzip) as response:
                if response.status < 300 or response.status == NOT_MODIFIED:
                    body = await _read_body(response, MAX_BODY_BYTES)
                    return Response(response.status, body, response.headers.get("ETag", ""))
                raise await self._api_error(request, credential, response)
        except _HTTP_ERRORS as error:
            raise self._translate(request, error) from error

    async def open_stream(self, request: Request, credential: Credential) -> aiohttp.ClientResponse:
        """Send once and return the open response; the caller reads it with ``read_lines`` and closes it."""
        try:
            response: aiohttp.ClientResponse = await self._request(request, credential, accept_gzip=False)
            if response.status < 300:
                return response
            async with response:
                raise await self._api_error(request, credential, response)
        except _HTTP_ERRORS as error:
            raise self._translate(request, error) from error

    async def read_lines(
        self, request: Request, response: aiohttp.ClientResponse, splitter: LineSplitter
    ) -> list[bytes] | None:
        """Read one chunk of a stream and return the lines that it completes; None at the end of the stream."""
        try:
            chunk = await response.content.readany()
            return splitter.feed(chunk) if chunk else None
        except _HTTP_ERRORS as error:
            raise self._translate(request, error) from error

    def _request(self, request: Request, credential: Credential, *, accept_gzip: bool) -> Any:
        authentication = self._authentication
        if authentication is None or authentication.credential is not credential:
            authentication = self._authentication = _Authentication(self._access, credential)
        headers = [("Accept", request.accept), *authentication.headers]
        if request.body:
            headers.append(("Content-Type", request.content_type))
        if accept_gzip:
            headers.append(("Accept-Encoding", "gzip"))
        if request.etag:
            headers.append(("If-None-Match", request.etag))
        query = f"?{_encode_query(tuple(request.query.items()))}" if request.query else ""
        return self._transport.session.request(
            request.method,
            URL(f"{self._access.server}{request.path}{query}", encoded=True),
            data=request.body or None,
            headers=headers,
            allow_redirects=False,
            ssl=self._transport.tls_contexts.get(authentication.tls) if self._secure else True,
            server_hostname=self._access.tls_server_name or None,
            **self._proxy_options(),
        )

    def _proxy_options(self) -> dict[str, Any]:
        proxy = self._access.proxy
        if proxy is None:
            return {}
        headers = {"Proxy-Authorization": proxy.authorization.reveal()} if proxy.authorization else None
        return {"proxy": proxy.url, "proxy_headers": headers}

    async def _api_error(self, request: Request, credential: Credential, response: aiohttp.ClientResponse) -> ApiError:
        operation = f"{request} at {self._access.server}"
        if response.status < 400:
            return ApiError(operation, response.status, _redirect_status(response.headers.get("Location", "")))
        status = parse_status(_mask_token(await _read_error_body(response), credential.token))
        wait_s = retry_after_s(response.headers.get("Retry-After", ""), status, self._transport.clock.now())
        return ApiError(operation, response.status, status, wait_s)

    def _translate(self, request: Request, error: Exception) -> GovernorError:
        where = f"{request} at {self._access.server}"
        if isinstance(error, TooLargeError):
            message = f"{where}: the response is too large: {error}; request less at a time"
            return GovernorError(Kind.EXHAUSTED, TOO_LARGE, message)
        if isinstance(error, ContentEncodingError):
            message = f"{where}: the response cannot be decompressed: {error}"
            return GovernorError(Kind.UNAVAILABLE, CONNECTION_LOST, message)
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            reason = error.certificate_error
            message = f"{where}: its certificate is not trusted: {reason}; check the cluster's certificate authority"
            return GovernorError(Kind.UNAUTHENTICATED, "kube-tls-untrusted", message)
        if isinstance(error, _CONNECT_ERRORS):
            message = f"{where}: cannot connect: {_reason(error)}; check the address and that the server runs"
            return GovernorError(Kind.UNAVAILABLE, UNREACHABLE, message)
        return GovernorError(Kind.UNAVAILABLE, CONNECTION_LOST, f"{where}: connection lost: {_reason(error)}")


@functools.lru_cache(maxsize=512)
def _encode_query(query: tuple[tuple[str, str], ...]) -> str:
    """Return the encoded query; cached because a program repeats the same few."""
    return urlencode(query)


async def _read_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    buffer, content = BodyBuffer(max_bytes), response.content
    while not content.at_eof():
        buffer.add(await content.readany())
    encoding = response.headers.get("Content-Encoding", "")
    return decompress(buffer.value(), encoding, max_bytes) if encoding else buffer.value()


async def _read_error_body(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of an error response; empty if it is unreadable, because the status code suffices."""
    try:
        return await _read_body(response, _MAX_ERROR_BYTES)
    except (TooLargeError, ContentEncodingError):
        return b""


def _mask_token(body: bytes, token: Secret | None) -> bytes:
    """Return the body without the token, which an intermediary may echo."""
    text = token.reveal() if token else ""
    return body.replace(text.encode(), MASK.encode()) if len(text) >= _MIN_MASKED_TOKEN else body


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy responded {error.status} {error.message}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__


def _redirect_status(location: str) -> Status:
    target = "another path"
    with contextlib.suppress(ValueError):
        url = urlsplit(location)
        if url.scheme and url.hostname:
            target = f"{url.scheme}://{url.hostname}"
    return Status(message=f"the server redirects to {target}, which is not followed; correct the server address")


def _authorization_headers(token: Secret | None) -> list[tuple[str, str]]:
    if token is None:
        return []
    text = token.reveal()
    if not text.isascii() or not text.isprintable() or " " in text:
        message = "the cluster's token is not a bearer token: it contains spaces, control or non-ASCII characters"
        raise invalid("kube-token", message)
    return [("Authorization", f"Bearer {text}")]


def _impersonation_headers(user: Impersonation | None) -> list[tuple[str, str]]:
    if user is None:
        return []
    headers = [("Impersonate-User", user.user), *(("Impersonate-Group", group) for group in user.groups)]
    if user.uid:
        headers.append(("Impersonate-Uid", user.uid))
    return headers + [(f"Impersonate-Extra-{quote(name, safe='')}", value) for name, value in user.extra]
