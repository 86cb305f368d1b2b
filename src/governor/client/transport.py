"""One HTTP session to one server: address, TLS, credential, and the one spot that translates foreign failures.

Loopback may be plain, anything else is TLS. Redirects are not followed: a token goes only where it was meant to go.
"""

import asyncio
import os
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
from governor.values.secret import Secret
from governor.wire.problems import Problem, error_of
from governor.wire.rest import PREFIX

T = TypeVar("T")

SILENCE_S: Final = 45.0
"""A stream that says nothing for this long, not even a keep-alive, is taken for dead."""

_SUCCESS: Final = range(200, 300)
_TRY_LATER: Final = frozenset({429, 502, 503, 504})


class Transport:
    """Sends requests to one server and gives back bytes, or a GovernorError."""

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
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the session; nothing is sent yet, so it opens without a server too."""
        headers = {"User-Agent": f"runtime-governor/{governor.__version__}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=SILENCE_S)
        self._session = aiohttp.ClientSession(headers=headers, timeout=timeout)

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: msgspec.Struct | None = None
    ) -> bytes:
        """One request and its whole answer."""
        what = f"{method} {path}"
        with self._translated(what, silent=Kind.DEADLINE):
            async with asyncio.timeout(self._timeout_s):
                response = await self._send(method, path, query=query, body=body)
                async with response:
                    answer = await response.read()
        if response.status not in _SUCCESS:
            raise self._refusal(what, response, answer)
        return answer

    async def stream(
        self, path: str, headers: Mapping[str, str], query: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The chunks of an event stream as they come; ends when the server ends it."""
        what = f"GET {path}"
        with self._translated(what, silent=Kind.UNAVAILABLE):
            response = await self._send("GET", path, query=query, headers={"Accept": "text/event-stream", **headers})
            async with response:
                if response.status not in _SUCCESS or response.content_type != "text/event-stream":
                    raise self._refusal(what, response, await response.read())
                async for chunk in response.content.iter_any():
                    yield chunk

    def read(self, what: str, answer: bytes | str, kind: type[T]) -> T:
        """Read an answer, or say that this server speaks another language."""
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.MsgspecError as error:
            message = (
                f"{self.server} answered {what} with something that this version cannot read ({error}); "
                "check that the address is a Runtime Governor server of a fitting version"
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
        sent = {"Accept": "application/json", **(headers or {})}
        if self._credential is not None:
            sent["Authorization"] = f"Bearer {self._credential().reveal()}"
        if body is not None:
            sent["Content-Type"] = "application/json"
        url = URL(self.server + PREFIX + path, encoded=True).with_query(query)
        data = msgspec.json.encode(body) if body is not None else None
        trust = await self._trust()
        return await self._session.request(method, url, data=data, headers=sent, ssl=trust, allow_redirects=False)

    async def _trust(self) -> ssl.SSLContext | Literal[True]:
        if self._tls is None and self._fingerprint:
            self._tls = await tls.pinned_context(self._address, self._fingerprint, timeout_s=self._timeout_s)
        return self._tls or True

    @contextmanager
    def _translated(self, what: str, *, silent: Kind) -> Iterator[None]:
        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            message = f"the certificate of {self.server} is not trusted: {error.certificate_error}; name its CA file"
            raise GovernorError(Kind.UNAUTHENTICATED, "tls-untrusted", message) from error
        except TimeoutError as error:
            message = f"{self.server} did not answer {what} in time; check that it is healthy, then try again"
            raise GovernorError(silent, "no-answer", message) from error
        except aiohttp.ClientConnectorError as error:
            reason = os.strerror(error.os_error.errno) if error.os_error.errno else error.os_error
            message = f"cannot reach {self.server}: {reason}; check that the server runs and that the address is right"
            raise GovernorError(Kind.UNAVAILABLE, "unreachable", message) from error
        except (aiohttp.ClientError, OSError) as error:
            message = f"the connection to {self.server} broke during {what}: {error}; try again"
            raise GovernorError(Kind.UNAVAILABLE, "connection-lost", message) from error

    def _refusal(self, what: str, response: aiohttp.ClientResponse, answer: bytes) -> GovernorError:
        if response.content_type == "application/problem+json":
            return error_of(self.read(what, answer, Problem))
        said = f"{self.server} answered {what} with {response.status} {response.reason} ({response.content_type})"
        if response.status in _TRY_LATER:
            return GovernorError(Kind.UNAVAILABLE, "gateway", f"{said}; the server is not available now, try again")
        message = f"{said}, which is no answer of a Runtime Governor server; check the address"
        return GovernorError(Kind.INTERNAL, "foreign-answer", message)


def _address(server: str) -> Address:
    """Refuse what is not the address of a server, and plain text beyond this machine."""
    try:
        url = URL(server)
        port = url.port or 0
    except ValueError:
        url, port = URL(), 0
    if url.scheme not in ("http", "https") or not url.host or url.query_string or url.fragment or url.user:
        message = "this is not a server's address: write http://127.0.0.1:8420 or https://host:port"
        raise invalid("server-address", message)
    tls.require_tls(url.host, protected=url.scheme == "https")
    return Address(url.host, port)


def _context(server: str, ca_file: Path | None) -> ssl.SSLContext | None:
    return tls.client_context(ca_file) if server.startswith("https:") else None
