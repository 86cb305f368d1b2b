"""One HTTP session with one server: URL, TLS, credential, and the one place that translates foreign exceptions.

Plain HTTP is allowed only on loopback. Redirects are not followed, so that a token is sent only to the given server.
"""

import asyncio
import functools
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TypeVar

import aiohttp
import msgspec
from yarl import URL

import governor
from governor.errors import GovernorError, Kind, invalid
from governor.process import tls
from governor.process.address import Address
from governor.process.proxy import environment_proxy, open_tunnel
from governor.values.secret import Secret
from governor.wire.problems import Problem, error_of
from governor.wire.rest import PREFIX

T = TypeVar("T")

IDLE_TIMEOUT_S: Final = 45.0
"""A stream without data, even without a keep-alive, for this long counts as lost."""

_SUCCESS: Final = range(200, 300)
_UNAVAILABLE: Final = frozenset({429, 502, 503, 504})
_OTHER_NAME: Final = "use an address that it is issued for"
_ADVICE: Final = {
    9: "correct the clock of this machine",
    10: "renew it, or correct the clock of this machine",
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}
"""What to do about a certificate by OpenSSL's error (X509_V_ERR_…), if another CA file would not help."""


class Transport:
    """Sends requests to one server; returns bytes or raises a GovernorError."""

    def __init__(
        self,
        server: str,
        credential: Callable[[], Secret] | None,
        *,
        ca_file: Path | None,
        ca_fingerprint: str,
        timeout_s: float,
    ) -> None:
        self.server = server.rstrip("/")
        self._address = _address(self.server)
        self._credential = credential
        self._fingerprint = ca_fingerprint if self.server.startswith("https:") and ca_file is None else ""
        self._tls = _context(self.server, ca_file) if not self._fingerprint else None
        self._proxy = environment_proxy(self._address) if self.server.startswith("https:") else None
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Open the session; nothing is sent yet."""
        headers = {"User-Agent": f"runtime-governor/{governor.__version__}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=IDLE_TIMEOUT_S)
        self._session = aiohttp.ClientSession(headers=headers, timeout=timeout)

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: msgspec.Struct | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Send one request and return the body of its response."""
        request = f"{method} {path}"
        with self._translated(request, on_timeout=Kind.DEADLINE):
            async with asyncio.timeout(self._timeout_s):
                response = await self._send(method, path, query=query, body=body, headers=headers)
                async with response:
                    content = await response.read()
        if response.status not in _SUCCESS:
            raise self._error(request, response, content)
        return content

    async def stream(
        self,
        path: str,
        headers: Mapping[str, str],
        query: Mapping[str, str] | None = None,
        on_open: Callable[[Mapping[str, str]], None] = lambda _: None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of an event stream until the server closes it; ``on_open`` receives the response headers."""
        request = f"GET {path}"
        with self._translated(request, on_timeout=Kind.UNAVAILABLE):
            response = await self._send("GET", path, query=query, headers={"Accept": "text/event-stream", **headers})
            async with response:
                if response.status not in _SUCCESS or response.content_type != "text/event-stream":
                    raise self._error(request, response, await response.read())
                on_open(response.headers)
                async for chunk in response.content.iter_any():
                    yield chunk

    def read(self, request: str, content: bytes | str, expected: type[T]) -> T:
        """Decode a response; the error names the server and the request."""
        try:
            return msgspec.json.decode(content, type=expected)
        except msgspec.MsgspecError as error:
            message = (
                f"{self.server} responded to {request} with a body that this version cannot decode ({error}); "
                "check that the address is that of a Runtime Governor server of a compatible version"
            )
            raise GovernorError(Kind.INTERNAL, "answer-unreadable", message) from error

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: msgspec.Struct | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("the client is not open: use it as `async with Client(...)`")
        request_headers = {"Accept": "application/json", **(headers or {})}
        if self._credential is not None:
            request_headers["Authorization"] = f"Bearer {self._credential().reveal()}"
        if body is not None:
            request_headers["Content-Type"] = "application/json"
        url = URL(self.server + PREFIX + path, encoded=True).with_query(query)
        data = msgspec.json.encode(body) if body is not None else None
        return await self._session.request(
            method,
            url,
            data=data,
            headers=request_headers,
            ssl=await self._tls_context(),
            allow_redirects=False,
            proxy=self._proxy.url if self._proxy else None,
            proxy_headers=self._proxy_headers,
        )

    async def _tls_context(self) -> ssl.SSLContext | Literal[True]:
        if self._tls is None and self._fingerprint:
            connect = functools.partial(open_tunnel, self._proxy) if self._proxy else None
            self._tls = await tls.pinned_context(
                self._address, self._fingerprint, connect=connect, timeout_s=self._timeout_s
            )
        return self._tls or True

    @property
    def _proxy_headers(self) -> dict[str, str] | None:
        authorization = self._proxy.authorization if self._proxy else None
        return {"Proxy-Authorization": authorization.reveal()} if authorization else None

    @contextmanager
    def _translated(self, request: str, *, on_timeout: Kind) -> Iterator[None]:
        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            raise self._certificate_error(error.certificate_error) from error
        except TimeoutError as error:
            message = f"{self.server} did not respond to {request} in time; check that it is healthy, then retry"
            raise GovernorError(on_timeout, "no-answer", message) from error
        except aiohttp.ClientProxyConnectionError as error:
            message = f"cannot reach the proxy {self._proxied_by}: {_reason(error)}; check HTTPS_PROXY and NO_PROXY"
            raise GovernorError(Kind.UNAVAILABLE, "proxy", message) from error
        except aiohttp.ClientHttpProxyError as error:
            message = (
                f"the proxy {self._proxied_by} rejects a tunnel to {self.server}: {error.status} {error.message}; "
                "check HTTPS_PROXY and NO_PROXY"
            )
            raise GovernorError(Kind.UNAVAILABLE, "proxy", message) from error
        except aiohttp.ClientConnectorError as error:
            message = (
                f"cannot reach {self.server}: {_reason(error)}; check that it is running and the address is correct"
            )
            raise GovernorError(Kind.UNAVAILABLE, "unreachable", message) from error
        except (aiohttp.ClientError, OSError) as error:
            is_plain = isinstance(error, aiohttp.ServerDisconnectedError) and self.server.startswith("http:")
            hint = "; if the server uses TLS, its address begins with https://" if is_plain else ""
            message = f"the connection to {self.server} was lost during {request}: {error}; retry{hint}"
            raise GovernorError(Kind.UNAVAILABLE, "connection-lost", message) from error

    def _certificate_error(self, error: Exception) -> GovernorError:
        """Return the error for a certificate from an unknown CA, or for one that is not valid here and now."""
        reason = str(getattr(error, "verify_message", error)).rstrip(".")
        advice = _ADVICE.get(getattr(error, "verify_code", 0))
        if advice is not None:
            message = f"the certificate of {self.server} is not valid: {reason}; {advice}"
            return GovernorError(Kind.UNAUTHENTICATED, "tls-invalid", message)
        advice = "if its CA was replaced, join again with a new token" if self._fingerprint else "set its CA file"
        message = f"the certificate of {self.server} is not trusted: {reason}; {advice}"
        return GovernorError(Kind.UNAUTHENTICATED, "tls-untrusted", message)

    @property
    def _proxied_by(self) -> str:
        return self._proxy.url if self._proxy else ""

    def _error(self, request: str, response: aiohttp.ClientResponse, content: bytes) -> GovernorError:
        if response.content_type == "application/problem+json":
            return error_of(self.read(request, content, Problem))
        status = f"{response.status} {response.reason} ({response.content_type})"
        summary = f"{self.server} responded to {request} with {status}"
        if response.status in _UNAVAILABLE:
            return GovernorError(Kind.UNAVAILABLE, "gateway", f"{summary}; the server is unavailable, retry later")
        message = f"{summary}, which is not a response of a Runtime Governor server; check the address"
        return GovernorError(Kind.INTERNAL, "foreign-answer", message)


def _address(server: str) -> Address:
    """Parse a server URL; reject an invalid one, and plain HTTP to another machine."""
    try:
        url = URL(server)
        port = url.port or 0
    except ValueError:
        url, port = URL(), 0
    if url.scheme not in ("http", "https") or not url.host or url.query_string or url.fragment or url.user:
        message = "this is not a server URL; write http://127.0.0.1:8420 or https://HOST:PORT"
        raise invalid("server-address", message)
    tls.require_tls(url.host, protected=url.scheme == "https")
    return Address(url.host, port)


def _reason(error: aiohttp.ClientConnectorError) -> object:
    cause = error.os_error
    if isinstance(cause, ssl.SSLError):
        return f"it does not respond with TLS ({(cause.reason or str(cause)).replace('_', ' ').lower()})"
    if isinstance(cause, socket.gaierror) or not cause.errno:
        return cause.strerror or cause
    return os.strerror(cause.errno)


def _context(server: str, ca_file: Path | None) -> ssl.SSLContext | None:
    return tls.client_context(ca_file) if server.startswith("https:") else None
