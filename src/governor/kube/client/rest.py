"""One HTTP request to one API server, and the only place that translates aiohttp's errors.

Redirects are not followed: a credential is sent only to the configured server. Retries and rate limiting are
``retry``.
"""

import contextlib
import functools
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
from yarl import URL

import governor
from governor.errors import GovernorError, Kind, invalid
from governor.kube.client.body import MAX_BODY_BYTES, ContentEncodingError, LineSplitter, TooLargeError
from governor.kube.client.connections import HTTP_ERRORS, Exchange, Target
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
_USER_AGENT: Final = f"governor/{governor.__version__}"
_TARGET: Final = re.compile(r"/[!-~]*")
_ERRORS: Final = (*HTTP_ERRORS, TooLargeError, ContentEncodingError)
_CONNECT_ERRORS: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)


class _Authentication:
    """Headers and connection target derived from one credential."""

    __slots__ = ("credential", "headers", "target")

    def __init__(self, access: Access, credential: Credential, keepalive_s: float) -> None:
        url = URL(access.server)
        tls = TlsConfig(credential.ca, credential.certificate, credential.key, access.tls_server_name, access.insecure)
        headers = (
            ("Host", url.host_port_subcomponent or ""),
            ("User-Agent", _USER_AGENT),
            *_impersonation_headers(access.impersonation),
            *_authorization_headers(credential.token),
        )
        self.credential = credential
        self.headers = _render(headers)
        self.target = Target(access.server, tls if url.scheme == "https" else None, access.proxy, keepalive_s)


class RestClient:
    """Sends single requests to one API server."""

    __slots__ = ("_accept_gzip", "_access", "_authentication", "_keepalive_s", "_path_prefix", "_transport")

    def __init__(self, transport: Transport, access: Access, keepalive_s: float) -> None:
        self._transport = transport
        self._access = access
        self._keepalive_s = keepalive_s
        url = URL(access.server)
        self._path_prefix = url.raw_path.rstrip("/")
        # On loopback gzip costs both sides more time than it saves. The server compresses no small body anyway.
        self._accept_gzip = not is_loopback(url.host or "")
        self._authentication: _Authentication | None = None

    async def send(self, request: Request, credential: Credential) -> Response:
        """Send once and return the complete response; an error response is an ``ApiError``."""
        accept_gzip = self._accept_gzip and request.method == "GET"
        try:
            async with await self._exchange(request, credential, accept_gzip=accept_gzip) as response:
                if response.status < 300 or response.status == NOT_MODIFIED:
                    body = await response.read_body(MAX_BODY_BYTES)
                    return Response(response.status, body, response.headers.get("ETag", ""))
                raise await self._api_error(request, credential, response)
        except _ERRORS as error:
            raise self._translate(request, error) from error

    async def open_stream(self, request: Request, credential: Credential) -> Exchange:
        """Send once and return the open response; the caller reads it with ``read_lines`` and closes it."""
        try:
            response = await self._exchange(request, credential, accept_gzip=False)
            if response.status < 300:
                return response
            async with response:
                raise await self._api_error(request, credential, response)
        except _ERRORS as error:
            raise self._translate(request, error) from error

    async def read_lines(self, request: Request, response: Exchange, splitter: LineSplitter) -> list[bytes] | None:
        """Read one chunk of a stream and return the lines that it completes; None at the end of the stream."""
        try:
            chunk = await response.read_chunk()
            return splitter.feed(chunk) if chunk else None
        except _ERRORS as error:
            raise self._translate(request, error) from error

    async def _exchange(self, request: Request, credential: Credential, *, accept_gzip: bool) -> Exchange:
        authentication = self._authentication
        if authentication is None or authentication.credential is not credential:
            authentication = self._authentication = _Authentication(self._access, credential, self._keepalive_s)
        headers = authentication.headers
        if request.impersonation:
            require_one_user(self._access.server, self._access.impersonation, request.impersonation)
            headers += _render(_impersonation_headers(request.impersonation))
        message = self._message(request, headers, accept_gzip=accept_gzip)
        return await self._transport.connections.send(authentication.target, message, is_retryable=request.retryable)

    def _message(self, request: Request, headers: str, *, accept_gzip: bool) -> bytes:
        """Return the request as sent."""
        query = f"?{_encode_query(tuple(request.query.items()))}" if request.query else ""
        target = f"{self._path_prefix}{request.path}{query}"
        if not _TARGET.fullmatch(target):
            raise invalid("kube-path", f"{target!r} is not the path of a URL")
        head = f"{request.method} {target} HTTP/1.1\r\n{headers}Accept: {request.accept}\r\n"
        if request.body:
            head += f"Content-Type: {request.content_type}\r\nContent-Length: {len(request.body)}\r\n"
        if accept_gzip:
            head += "Accept-Encoding: gzip\r\n"
        if request.etag:
            head += f"If-None-Match: {request.etag}\r\n"
        return f"{head}\r\n".encode("utf-8", "surrogateescape") + request.body

    async def _api_error(self, request: Request, credential: Credential, response: Exchange) -> ApiError:
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


def require_one_user(server: str, present: Impersonation | None, user: Impersonation) -> None:
    """Raise PRECONDITION if requests impersonate another user already."""
    if present:
        message = (
            f"requests to {server} cannot impersonate {user.user!r}, because they already impersonate "
            f"{present.user!r}; use an access without impersonation"
        )
        raise GovernorError(Kind.PRECONDITION, "kube-impersonation", message)


@functools.lru_cache(maxsize=512)
def _encode_query(query: tuple[tuple[str, str], ...]) -> str:
    """Return the encoded query; cached because a program repeats the same few."""
    return urlencode(query)


async def _read_error_body(response: Exchange) -> bytes:
    """Return the body of an error response; empty if it is unreadable, because the status code suffices."""
    try:
        return await response.read_body(_MAX_ERROR_BYTES)
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


def _render(headers: Iterable[tuple[str, str]]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers)


def _impersonation_headers(user: Impersonation | None) -> list[tuple[str, str]]:
    if user is None:
        return []
    headers = [("Impersonate-User", user.user), *(("Impersonate-Group", group) for group in user.groups)]
    if user.uid:
        headers.append(("Impersonate-Uid", user.uid))
    return headers + [(f"Impersonate-Extra-{quote(name, safe='')}", value) for name, value in user.extra]
