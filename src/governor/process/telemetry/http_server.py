"""A small HTTP/1.1 server for what a program tells about itself: GET and HEAD, and whatever it is sent is bounded.

Not a web framework: one function answers a target, with bytes or with parts as they come. Which paths there are, and
what they tell, is that function's business.
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
EXCHANGE_S: Final = 10.0
MOST_CONNECTIONS: Final = 64

_log = logging.get_logger(__name__)


class Target(msgspec.Struct, frozen=True):
    """What is asked for; of a name that is given twice the last value counts."""

    path: str
    query: Mapping[str, str] = {}


class Answer(msgspec.Struct, frozen=True):
    """What is answered: a body, or parts that are sent as they come until there are no more or the client has left."""

    status: http.HTTPStatus
    media_type: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    parts: AsyncGenerator[bytes, None] | None = None


Answering: TypeAlias = Callable[[Target], Awaitable[Answer]]


def text_answer(status: http.HTTPStatus, text: str, *headers: tuple[str, str]) -> Answer:
    """Words for people."""
    return Answer(status, "text/plain; charset=utf-8", text.encode(), headers)


def json_answer(status: http.HTTPStatus, value: object) -> Answer:
    """A value for programs."""
    return Answer(status, "application/json", msgspec.json.encode(value) + b"\n")


class HttpServer:
    """The server, on a socket that is already bound, so that its place is known before it runs."""

    def __init__(
        self,
        name: str,
        listener: socket.socket,
        answering: Answering,
        *,
        exchange_s: float = EXCHANGE_S,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        self._name = name
        self._listener = listener
        self._answering = answering
        self._exchange_s = exchange_s
        self._places = asyncio.Semaphore(most_connections)

    async def run(self) -> None:
        """Serve until cancelled, then close the socket and all connections."""
        with self._listener:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._places.acquire()
                    group.create_task(self._serve(await self._accept()))

    async def _accept(self) -> socket.socket:
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            except OSError as error:
                # Out of file descriptors, or the peer left already: neither may end the program.
                _log.warning(f"{self._name} cannot accept a connection", error=str(error))
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
                await _Connection(self._name, reader, writer, self._answering, self._exchange_s).run()
            finally:
                writer.close()
        except OSError:
            # The peer left, was idle or too slow (TimeoutError is an OSError); nothing of ours is wrong.
            return
        finally:
            self._places.release()


class _Connection:
    """One client: requests one after the other, each within its time and size."""

    def __init__(
        self,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answering: Answering,
        exchange_s: float,
    ) -> None:
        self._name = name
        self._reader = reader
        self._writer = writer
        self._answering = answering
        self._exchange_s = exchange_s
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=_REQUEST_BYTES)

    async def run(self) -> None:
        try:
            while await self._exchange():
                self._protocol.start_next_cycle()
        except h11.RemoteProtocolError as error:
            await self._refuse(error)

    async def _exchange(self) -> bool:
        """Serve one request; whether the connection can carry another."""
        async with asyncio.timeout(self._exchange_s):
            request = await self._request()
            if request is None:
                return False
            answer = await self._answer_to(request)
            await self._send(answer, head=request.method == b"HEAD")
        if answer.parts is not None and request.method != b"HEAD":
            await self._send_parts(answer.parts)
            return False
        # A request with a body was answered without reading it, so nothing more can be read here.
        return self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE

    async def _request(self) -> h11.Request | None:
        while True:
            event = self._protocol.next_event()
            if event is h11.NEED_DATA:
                self._protocol.receive_data(await self._reader.read(_READ_BYTES))
            elif isinstance(event, h11.Request):
                self._finish_reading()
                return event
            else:
                return None

    def _finish_reading(self) -> None:
        """Take the end of a request that has no body from the bytes that came with it."""
        if self._protocol.their_state is h11.SEND_BODY:
            self._protocol.next_event()

    async def _answer_to(self, request: h11.Request) -> Answer:
        if request.method not in (b"GET", b"HEAD"):
            return text_answer(http.HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD\n", ("Allow", "GET, HEAD"))
        try:
            return await self._answering(_target(request.target))
        except Exception as error:  # noqa: BLE001 - an answer that cannot be made must not end the program
            _log.warning(f"{self._name} cannot answer", exc_info=error)
            return text_answer(http.HTTPStatus.INTERNAL_SERVER_ERROR, "the answer could not be made; see the log\n")

    async def _refuse(self, error: h11.RemoteProtocolError) -> None:
        if self._protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status = http.HTTPStatus(error.error_status_hint)
            async with asyncio.timeout(self._exchange_s):
                await self._send(text_answer(status, f"{status.phrase}\n", ("Connection", "close")), head=False)

    async def _send(self, answer: Answer, *, head: bool) -> None:
        """The whole answer, or all of it but its parts."""
        is_whole = answer.parts is None
        length = (("Content-Length", str(len(answer.body))),) if is_whole else ()
        headers = [("Content-Type", answer.media_type), *length, *answer.headers]
        events: list[h11.Event] = [
            h11.Response(status_code=answer.status, headers=headers, reason=answer.status.phrase),
            *([h11.Data(data=answer.body)] if is_whole and not head else ()),
            *([h11.EndOfMessage()] if is_whole or head else ()),
        ]
        self._writer.write(b"".join(self._protocol.send(each) or b"" for each in events))
        await self._writer.drain()

    async def _send_parts(self, parts: AsyncGenerator[bytes, None]) -> None:
        """As they come. Nothing more is expected of the client, so whatever can be read means that it leaves."""
        leaving = asyncio.ensure_future(self._reader.read(1))
        sending = asyncio.ensure_future(self._write_parts(parts))
        try:
            await asyncio.wait((leaving, sending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            sending.cancel()
            ends = await asyncio.gather(leaving, sending, return_exceptions=True)
        if isinstance(ends[1], Exception) and not isinstance(ends[1], OSError):
            _log.warning(f"{self._name} cannot go on answering", exc_info=ends[1])

    async def _write_parts(self, parts: AsyncGenerator[bytes, None]) -> None:
        async with contextlib.aclosing(parts):
            async for part in parts:
                self._writer.write(self._protocol.send(h11.Data(data=part)) or b"")
                await self._writer.drain()
        self._writer.write(self._protocol.send(h11.EndOfMessage()) or b"")
        await self._writer.drain()


def _target(raw: bytes) -> Target:
    path, _, query = raw.decode("ascii", errors="replace").partition("?")
    return Target(path, dict(urllib.parse.parse_qsl(query)))
