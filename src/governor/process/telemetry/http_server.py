"""A small HTTP/1.1 server for health, metrics and control sockets: no request bodies, every request bounded.

Not a web framework: one handler maps a request target to a response, with a body or a stream of parts. Paths and
content are up to the handler. Decision 0015 gives the reasons for not using a library.
"""

import asyncio
import contextlib
import http
import socket
import urllib.parse
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import h11
import msgspec

from governor.process.telemetry import logging

_REQUEST_BYTES: Final = 16 * 1024
_ACCEPT_PAUSE_S: Final = 0.5
_READ_BYTES: Final = 16 * 1024
EXCHANGE_TIMEOUT_S: Final = 10.0
MAX_CONNECTIONS: Final = 64

_log = logging.get_logger(__name__)


class Target(msgspec.Struct, frozen=True):
    """The target of a request. If a query parameter is repeated, its last value counts."""

    path: str
    query: Mapping[str, str] = {}
    is_post: bool = False


class Response(msgspec.Struct, frozen=True):
    """A response with a body, or with parts that are sent as they arrive until they end or the client disconnects."""

    status: http.HTTPStatus
    media_type: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    parts: AsyncGenerator[bytes, None] | None = None


Handler: TypeAlias = Callable[[Target], Awaitable[Response]]


def text_response(status: http.HTTPStatus, text: str, *headers: tuple[str, str]) -> Response:
    """Return a plain-text response."""
    return Response(status, "text/plain; charset=utf-8", text.encode(), headers)


def json_response(status: http.HTTPStatus, value: object) -> Response:
    """Return ``value`` as a JSON response."""
    return Response(status, "application/json", msgspec.json.encode(value) + b"\n")


class HttpServer:
    """A server on a socket that is already bound, so its address is known before it runs."""

    def __init__(
        self,
        name: str,
        listener: socket.socket,
        handler: Handler,
        *,
        exchange_timeout_s: float = EXCHANGE_TIMEOUT_S,
        max_connections: int = MAX_CONNECTIONS,
        allow_post: bool = False,
    ) -> None:
        self._name = name
        self._listener = listener
        self._handler = handler
        self._exchange_timeout_s = exchange_timeout_s
        self._slots = asyncio.Semaphore(max_connections)
        self._methods = (b"GET", b"HEAD", b"POST") if allow_post else (b"GET", b"HEAD")
        self._is_accepting = asyncio.Event()
        self._is_accepting.set()
        self._accept_task: asyncio.Future[socket.socket] | None = None

    def pause(self) -> None:
        """Accept no more connections; open ones continue."""
        self._is_accepting.clear()
        if self._accept_task is not None:
            self._accept_task.cancel()

    async def resume(self) -> None:
        """Accept connections again."""
        self._is_accepting.set()

    async def run(self) -> None:
        """Serve until cancelled, then close the socket and all connections."""
        with self._listener:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._slots.acquire()
                    group.create_task(self._serve(await self._next_connection()))

    async def _next_connection(self) -> socket.socket:
        while True:
            await self._is_accepting.wait()
            self._accept_task = task = asyncio.ensure_future(self._accept())
            try:
                await asyncio.wait({task})
            finally:
                task.cancel()
            if not task.cancelled():
                return task.result()

    async def _accept(self) -> socket.socket:
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            except OSError as error:
                # Out of file descriptors, or the peer has disconnected: neither may stop the program.
                _log.warning("cannot accept a connection", server=self._name, error=str(error))
                await asyncio.sleep(_ACCEPT_PAUSE_S)
            else:
                return connection

    async def _serve(self, connection: socket.socket) -> None:
        is_local = connection.family == socket.AF_UNIX
        try:
            reader, writer = await (asyncio.open_unix_connection if is_local else asyncio.open_connection)(
                sock=connection
            )
            try:
                connection_ = _Connection(
                    self._name, reader, writer, self._handler, self._exchange_timeout_s, self._methods
                )
                await connection_.run()
            finally:
                writer.close()
        except OSError:
            # The peer disconnected, was idle or too slow (TimeoutError is an OSError).
            return
        finally:
            self._slots.release()


class _Connection:
    """One client connection: sequential requests, each bounded in time and size."""

    def __init__(
        self,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handler: Handler,
        exchange_timeout_s: float,
        methods: tuple[bytes, ...],
    ) -> None:
        self._name = name
        self._methods = methods
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._exchange_timeout_s = exchange_timeout_s
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=_REQUEST_BYTES)

    async def run(self) -> None:
        try:
            while await self._exchange():
                self._protocol.start_next_cycle()
        except h11.RemoteProtocolError as error:
            await self._reject(error)

    async def _exchange(self) -> bool:
        """Serve one request. Return True if the connection can carry another."""
        async with asyncio.timeout(self._exchange_timeout_s):
            request = await self._read_request()
            if request is None:
                return False
            response = await self._respond(request)
            await self._send(response, head=request.method == b"HEAD")
        if response.parts is not None and request.method != b"HEAD":
            await self._send_parts(response.parts)
            return False
        # The body of a request is not read, so no other request can follow it.
        return self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE

    async def _read_request(self) -> h11.Request | None:
        while True:
            event = self._protocol.next_event()
            if event is h11.NEED_DATA:
                self._protocol.receive_data(await self._reader.read(_READ_BYTES))
            elif isinstance(event, h11.Request):
                self._read_end()
                return event
            else:
                return None

    def _read_end(self) -> None:
        """Consume the end-of-message event of a request without a body."""
        if self._protocol.their_state is h11.SEND_BODY:
            self._protocol.next_event()

    async def _respond(self, request: h11.Request) -> Response:
        if request.method not in self._methods:
            allowed = b", ".join(self._methods).decode()
            return text_response(
                http.HTTPStatus.METHOD_NOT_ALLOWED, f"only {allowed} are supported\n", ("Allow", allowed)
            )
        try:
            return await self._handler(_target(request.target, is_post=request.method == b"POST"))
        except Exception as error:  # noqa: BLE001 - a failing handler must not stop the program
            _log.warning("request handler raised", server=self._name, exc_info=error)
            return text_response(http.HTTPStatus.INTERNAL_SERVER_ERROR, "the request handler failed; see the log\n")

    async def _reject(self, error: h11.RemoteProtocolError) -> None:
        if self._protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status = http.HTTPStatus(error.error_status_hint)
            async with asyncio.timeout(self._exchange_timeout_s):
                await self._send(text_response(status, f"{status.phrase}\n", ("Connection", "close")), head=False)

    async def _send(self, response: Response, *, head: bool) -> None:
        """Send the response, without its parts."""
        has_body = response.parts is None
        length = (("Content-Length", str(len(response.body))),) if has_body else ()
        headers = [("Content-Type", response.media_type), *length, *response.headers]
        events: list[h11.Event] = [
            h11.Response(status_code=response.status, headers=headers, reason=response.status.phrase),
            *([h11.Data(data=response.body)] if has_body and not head else ()),
            *([h11.EndOfMessage()] if has_body or head else ()),
        ]
        self._writer.write(b"".join(self._protocol.send(each) or b"" for each in events))
        await self._writer.drain()

    async def _send_parts(self, parts: AsyncGenerator[bytes, None]) -> None:
        """Send the parts as they arrive. The client sends nothing more, so anything readable means it disconnects."""
        disconnect = asyncio.ensure_future(self._reader.read(1))
        writing = asyncio.ensure_future(self._write_parts(parts))
        try:
            await asyncio.wait((disconnect, writing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnect.cancel()
            writing.cancel()
            results = await asyncio.gather(disconnect, writing, return_exceptions=True)
        if isinstance(results[1], Exception) and not isinstance(results[1], OSError):
            _log.warning("response stream failed", server=self._name, exc_info=results[1])

    async def _write_parts(self, parts: AsyncGenerator[bytes, None]) -> None:
        async with contextlib.aclosing(parts):
            async for part in parts:
                self._writer.write(self._protocol.send(h11.Data(data=part)) or b"")
                await self._writer.drain()
        self._writer.write(self._protocol.send(h11.EndOfMessage()) or b"")
        await self._writer.drain()


def _target(raw: bytes, *, is_post: bool) -> Target:
    path, _, query = raw.decode("ascii", errors="replace").partition("?")
    return Target(path, dict(urllib.parse.parse_qsl(query)), is_post)
