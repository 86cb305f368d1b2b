"""``/healthz``, ``/readyz`` and ``/metrics`` of a program, on a small h11 server that bounds whatever it is sent.

Not a web framework: GET and HEAD of three paths. The programs' own APIs are elsewhere.
"""

import asyncio
import http
import socket
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import h11
import msgspec

from governor.process import logging
from governor.process.address import Address, bound_address
from governor.process.instruments import CONTENT_TYPE, Registry

Check: TypeAlias = Callable[[], str]
"""Says in words why something is not well; nothing when it is."""

_REQUEST_BYTES: Final = 16 * 1024
_EXCHANGE_S: Final = 10.0
_ACCEPT_PAUSE_S: Final = 0.5
_MOST_CONNECTIONS: Final = 64
_READ_BYTES: Final = 16 * 1024

_log = logging.get_logger(__name__)


class Verdict(msgspec.Struct, frozen=True):
    """The body of ``/healthz`` and ``/readyz``: whether all is well, and by name what is not."""

    ok: bool
    failing: dict[str, str]


class Checks:
    """What is asked about a program: ``alive`` (restart it if not) and ``ready`` (send it no work if not)."""

    def __init__(self) -> None:
        self._alive: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}

    def alive(self, name: str, check: Check) -> None:
        """Add a condition of being alive."""
        self._alive[name] = check

    def ready(self, name: str, check: Check) -> None:
        """Add a condition of being ready."""
        self._ready[name] = check

    def aliveness(self) -> Verdict:
        """Ask all conditions of being alive."""
        return _verdict(self._alive)

    def readiness(self) -> Verdict:
        """Ask all conditions of being ready; what is not alive is not ready."""
        return _verdict(self._alive | self._ready)


def _verdict(checks: Mapping[str, Check]) -> Verdict:
    failing = {name: reason for name, check in checks.items() if (reason := _reason(name, check))}
    return Verdict(ok=not failing, failing=failing)


def _reason(name: str, check: Check) -> str:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a broken check is an answer, not the end of the server
        _log.warning("health check raised", check=name, exc_info=error)
        return f"the check itself failed: {type(error).__name__}"


class HealthServer:
    """The server, on a socket that is already bound (``address.listen``), so that its port is known before it runs."""

    def __init__(
        self,
        listener: socket.socket,
        checks: Checks,
        registry: Registry,
        *,
        exchange_s: float = _EXCHANGE_S,
        most_connections: int = _MOST_CONNECTIONS,
    ) -> None:
        self._listener = listener
        self._checks = checks
        self._registry = registry
        self._exchange_s = exchange_s
        self._places = asyncio.Semaphore(most_connections)

    @property
    def address(self) -> Address:
        """Where the server really listens."""
        return bound_address(self._listener)

    async def run(self) -> None:
        """Serve until cancelled, then close the socket and all connections."""
        _log.info("health listens", address=str(self.address))
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
                _log.warning("health cannot accept a connection", error=str(error))
                await asyncio.sleep(_ACCEPT_PAUSE_S)
            else:
                return connection

    async def _serve(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection)
            try:
                await _Connection(reader, writer, self._answer, self._exchange_s).run()
            finally:
                writer.close()
        except OSError:
            # The peer left, was idle or too slow (TimeoutError is an OSError); nothing of ours is wrong.
            return
        finally:
            self._places.release()

    def _answer(self, path: str) -> "_Answer":
        match path:
            case "/healthz":
                return _verdict_answer(self._checks.aliveness())
            case "/readyz":
                return _verdict_answer(self._checks.readiness())
            case "/metrics":
                return _metrics_answer(self._registry)
            case _:
                return _text_answer(http.HTTPStatus.NOT_FOUND, "only /healthz, /readyz and /metrics are here\n")


class _Answer(msgspec.Struct, frozen=True):
    status: http.HTTPStatus
    media_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def _text_answer(status: http.HTTPStatus, text: str, *headers: tuple[str, str]) -> _Answer:
    return _Answer(status, "text/plain; charset=utf-8", text.encode(), headers)


def _verdict_answer(verdict: Verdict) -> _Answer:
    status = http.HTTPStatus.OK if verdict.ok else http.HTTPStatus.SERVICE_UNAVAILABLE
    return _Answer(status, "application/json", msgspec.json.encode(verdict) + b"\n")


def _metrics_answer(registry: Registry) -> _Answer:
    return _Answer(http.HTTPStatus.OK, CONTENT_TYPE, registry.text().encode())


class _Connection:
    """One client: requests one after the other, each within its time and size."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: Callable[[str], _Answer],
        exchange_s: float,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = answer
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
            await self._send(self._answer_to(request), head=request.method == b"HEAD")
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

    def _answer_to(self, request: h11.Request) -> _Answer:
        if request.method not in (b"GET", b"HEAD"):
            return _text_answer(http.HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD\n", ("Allow", "GET, HEAD"))
        try:
            return self._answer(request.target.partition(b"?")[0].decode("ascii", errors="replace"))
        except Exception as error:  # noqa: BLE001 - one broken collector must not end the program
            _log.warning("health cannot answer", exc_info=error)
            return _text_answer(http.HTTPStatus.INTERNAL_SERVER_ERROR, "the answer could not be made; see the log\n")

    async def _refuse(self, error: h11.RemoteProtocolError) -> None:
        if self._protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status = http.HTTPStatus(error.error_status_hint)
            async with asyncio.timeout(self._exchange_s):
                await self._send(_text_answer(status, f"{status.phrase}\n", ("Connection", "close")), head=False)

    async def _send(self, answer: _Answer, *, head: bool) -> None:
        headers = [("Content-Type", answer.media_type), ("Content-Length", str(len(answer.body))), *answer.headers]
        parts = [
            self._protocol.send(h11.Response(status_code=answer.status, headers=headers, reason=answer.status.phrase)),
            b"" if head else self._protocol.send(h11.Data(data=answer.body)),
            self._protocol.send(h11.EndOfMessage()),
        ]
        self._writer.write(b"".join(part or b"" for part in parts))
        await self._writer.drain()
