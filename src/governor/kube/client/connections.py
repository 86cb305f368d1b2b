"""HTTP/1.1 exchanges on pooled connections.

aiohttp connects (DNS, proxies, TLS), keeps idle connections and parses responses. Its session, request and response
objects are not used: they cost more CPU per request than all the rest of the client (decision 0021).
"""

from collections import OrderedDict
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import aiohttp
import msgspec
from aiohttp.http import HttpProcessingError
from yarl import URL

from governor.kube.client.body import BodyBuffer, decompress
from governor.kube.config.tls_context import MAX_CONTEXTS, TlsConfig, TlsContextCache
from governor.process.proxy import Proxy
from governor.values.secret import Secret

if TYPE_CHECKING:
    import asyncio

    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection
    from aiohttp.http import RawResponseMessage
    from aiohttp.tracing import Trace

CONNECT_TIMEOUT_S: Final = 10.0
"""For all that comes before the request: DNS, TCP, the proxy's tunnel and the TLS handshake."""
HTTP_ERRORS: Final = (aiohttp.ClientError, HttpProcessingError, OSError)
"""What an exchange raises if the connection fails, or if the response is not HTTP."""

_DISCONNECTED: Final = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S)
_NO_TRACES: "Final[list[Trace]]" = []
_SWITCHING_PROTOCOLS: Final = 101


class Target(msgspec.Struct, frozen=True, cache_hash=True):
    """A server and how to connect to it."""

    server: str
    """Its URL."""
    tls: TlsConfig | None
    proxy: Proxy | None
    keepalive_s: float
    """How long an idle connection is kept."""


class Exchange:
    """A response whose head has been read. Leaving its block keeps the connection if the body was read to its end."""

    __slots__ = ("_connection", "_payload", "headers", "status")

    def __init__(self, connection: "Connection", message: "RawResponseMessage", payload: aiohttp.StreamReader) -> None:
        self._connection = connection
        self._payload = payload
        self.status = message.code
        self.headers = message.headers

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._payload.at_eof():
            self._connection.release()
        else:
            self.close()

    async def read_body(self, max_bytes: int) -> bytes:
        """Return the whole body, decompressed; ``TooLargeError`` if it is larger."""
        buffer, payload = BodyBuffer(max_bytes), self._payload
        while not payload.at_eof():
            buffer.add(await payload.readany())
        encoding = self.headers.get("Content-Encoding", "")
        return decompress(buffer.value(), encoding, max_bytes) if encoding else buffer.value()

    async def read_chunk(self) -> bytes:
        """Return what has arrived of the body, after waiting for it; ``b""`` at its end."""
        return await self._payload.readany()

    def close(self) -> None:
        """Close the connection."""
        _abort(self._connection)


class Connections:
    """All connections of one program."""

    def __init__(self) -> None:
        self._tls_contexts = TlsContextCache()
        self._connectors: dict[float, aiohttp.TCPConnector] = {}
        self._templates: OrderedDict[Target, aiohttp.ClientRequest] = OrderedDict()

    async def send(self, target: Target, message: bytes, *, is_retryable: bool) -> Exchange:
        """Send one request, head and body, and return its response as soon as the head has arrived.

        A retryable one is sent again if the connection is lost: the server may have closed an idle one just before.
        """
        connection = await self._connect(target)
        try:
            return await _send(connection, message)
        except _DISCONNECTED:
            if not is_retryable:
                raise
        return await _send(await self._connect(target), message)

    async def _connect(self, target: Target) -> "Connection":
        """Return an idle connection or a new one."""
        connection = await self._take(target)
        while len(connection.protocol or ()):
            # A response arrived while it was idle, such as the 408 of a load balancer, and answers no request. The
            # pool does not check for that.
            connection.close()
            connection = await self._take(target)
        return connection

    async def _take(self, target: Target) -> "Connection":
        connector = self._connectors.get(target.keepalive_s) or self._new_connector(target.keepalive_s)
        try:
            return await connector.connect(self._template(target), _NO_TRACES, _TIMEOUT)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"no connection within {CONNECT_TIMEOUT_S:g} s") from error

    async def close(self) -> None:
        """Close all connections."""
        for connector in self._connectors.values():
            await connector.close()

    def _new_connector(self, keepalive_s: float) -> aiohttp.TCPConnector:
        # Created at first use because it belongs to the running event loop.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=keepalive_s)
        self._connectors[keepalive_s] = connector
        return connector

    def _template(self, target: Target) -> aiohttp.ClientRequest:
        """Return a request that tells a connector where to connect; only recently used ones are kept."""
        template = self._templates.get(target)
        if template is not None:
            self._templates.move_to_end(target)
            return template
        template = self._templates[target] = self._new_template(target)
        if len(self._templates) > MAX_CONTEXTS:
            self._templates.popitem(last=False)
        return template

    def _new_template(self, target: Target) -> aiohttp.ClientRequest:
        url, proxy = URL(target.server), target.proxy
        return aiohttp.ClientRequest(
            "GET",
            url,
            ssl=self._tls_contexts.get(target.tls) if target.tls else True,
            server_hostname=(target.tls.server_name if target.tls else "") or None,
            proxy=URL(proxy.url) if proxy else None,
            proxy_headers=_proxy_headers(url, proxy.authorization) if proxy else None,
        )


def _proxy_headers(url: URL, authorization: Secret | None) -> dict[str, str] | None:
    if authorization is None:
        return None
    # aiohttp adds Host when it connects; connections are pooled by these headers, so they must not change.
    return {"Proxy-Authorization": authorization.reveal(), "Host": url.host_port_subcomponent or ""}


async def _send(connection: "Connection", message: bytes) -> Exchange:
    try:
        protocol, transport = _connected(connection)
        # ``body`` decompresses within a size limit; aiohttp has none.
        protocol.set_response_params(read_until_eof=True, auto_decompress=False)
        transport.write(message)
        head, payload = await protocol.read()
        while head.code < 200 and head.code != _SWITCHING_PROTOCOLS:
            head, payload = await protocol.read()
        return Exchange(connection, head, payload)
    except BaseException:
        _abort(connection)
        raise


def _abort(connection: "Connection") -> None:
    """Close a connection at once: the rest of a request that has failed must not be sent and executed later."""
    if connection.transport is not None:
        connection.transport.abort()
    connection.close()


def _connected(connection: "Connection") -> "tuple[ResponseHandler, asyncio.Transport]":
    protocol, transport = connection.protocol, connection.transport
    if protocol is None or transport is None or transport.is_closing():
        raise aiohttp.ServerDisconnectedError
    return protocol, transport
