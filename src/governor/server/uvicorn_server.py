"""The HTTP server of the API: uvicorn as a component, on a bound socket, stopped by cancellation."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, cast

import msgspec
import uvicorn
from httptools import HttpParserError
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from governor.errors import invalid
from governor.server.api.endpoints import PROBLEM
from governor.server.api.streams import OUTLET
from governor.wire.problems import problem

MAX_HEAD_BYTES: Final = 64 * 1024
"""Limit of a head, and of what is between two parts of a body or behind the last one: chunk extensions, trailers."""
HEAD_TIMEOUT_S: Final = 10.0
LINGER_S: Final = 10.0
"""After the response, the rest of a request body is discarded for this long, so that a client that is still sending
can read the response."""
_SHUTDOWN_TIMEOUT_S: Final = 5


class Application(Protocol):
    """An ASGI application that can answer some requests without waiting."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""

    def status_at_once(self, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> int | None:
        """Handle a request without query, and return the status of its response; None if it must be called."""


class UvicornServer:
    """Serves an ASGI application until it is cancelled; ``before_stop`` closes open streams."""

    def __init__(
        self,
        application: Application,
        listener: socket.socket,
        tls: ssl.SSLContext | None,
        before_stop: Callable[[], None],
        *,
        dead_s: float,
    ) -> None:
        """Connections without TCP acknowledgements for ``dead_s`` are closed."""
        config = uvicorn.Config(
            application,
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
            ssl_context_factory=(lambda _config, _default: tls) if tls else None,
        )
        # Inherited by connections. Head and body are two writes; with Nagle the second waits 40 ms for an ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel's default keeps the watch of a host that vanished open for about 15 minutes.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(dead_s * 1000))
        self._server = _Server(config)
        self._listener = listener
        self._before_stop = before_stop

    async def run(self) -> None:
        """Serve; on cancellation stop accepting, close streams and finish requests."""
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        try:
            await asyncio.shield(serving)
        finally:
            self._before_stop()
            self._server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program."""
        yield


class _Protocol(HttpToolsProtocol):
    """Adds limits on the size and time of a request head, on the size of what surrounds a body, and on the time of a
    body that is sent after its response, and the outlet of a streamed response: it writes past ASGI, and knows what the
    peer has not read.

    Trailers are discarded: no endpoint has any, and uvicorn would keep them all, as headers.

    A small request that arrived as a whole is held until its end, and answered without a task if that is possible.
    """

    on_lost: Callable[[], None] | None = None
    _framing_bytes = 0
    """What arrived since the last head or part of a body."""
    _head_deadline: asyncio.TimerHandle | None = None
    _in_head = False
    _reason = ""
    """Why a head is rejected; ``""`` if by the parser."""
    _linger_deadline: asyncio.TimerHandle | None = None
    _body_pending = False
    _held: bytearray | None = None
    """The body of a request whose application is not called yet."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_complete()
        self._body_complete()
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()
            self.on_lost = None

    def data_received(self, data: bytes) -> None:
        if self._framing_bytes > MAX_HEAD_BYTES:
            self.transport.abort()
            return
        self._framing_bytes += len(data)
        super().data_received(data)
        if self._in_head or self._is_idle():
            self._expect_head()
        if self._held is not None:
            # The rest of the body has not arrived.
            self._call_application()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._framing_bytes, self._in_head = 0, True
        cast("dict[str, Any]", self.scope)["extensions"] = {OUTLET: self}

    def on_headers_complete(self) -> None:
        self._head_complete()
        self._framing_bytes, self._body_pending = 0, True
        self._require_unambiguous_head()
        # Trailers arrive here and are discarded. The scope keeps the headers.
        self.headers = []
        if self._may_be_held():
            self._held = bytearray()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        if self._held is None:
            super().on_body(body)
        else:
            self._held += body

    def on_message_complete(self) -> None:
        self._framing_bytes = 0
        self._body_complete()
        if self._held is not None:
            status = self._status_at_once(bytes(self._held))
            if status is not None:
                self._held = None
                self._send_status(status)
                return
            self._call_application()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # uvicorn's keep-alive timeout restarts with each byte. A pipelined request may not have its response yet.
        if self._body_pending and self.cycle.response_complete:
            self._linger_deadline = self.loop.call_later(LINGER_S, self.transport.abort)

    def write_chunk(self, parts: Sequence[bytes]) -> None:
        """Write one chunk of a streamed response, which uvicorn always sends with chunked encoding."""
        if not self.transport.is_closing():
            self.transport.writelines((b"%x\r\n" % sum(map(len, parts)), *parts, b"\r\n"))

    def buffered_bytes(self) -> int:
        """Return what the peer has not read and the kernel does not hold."""
        return self.transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close the connection without waiting until the peer has read everything that was written."""
        self.transport.abort()

    def is_lost(self) -> bool:
        """Return whether the connection is closed."""
        return self.transport.is_closing()

    def send_400_response(self, msg: str) -> None:
        """Send a problem, as for every other error, and close the connection; ``msg`` is always the same."""
        found = problem(invalid("http-invalid", self._reason or "the request is not valid HTTP/1.1"))
        body = msgspec.json.encode(found)
        headers = (
            *self.server_state.default_headers,
            (b"content-type", PROBLEM.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        )
        lines = [b"%s: %s\r\n" % header for header in headers]
        self.transport.write(b"".join((STATUS_LINE[found.status], *lines, b"\r\n", body)))
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore an offer to upgrade the protocol, which is not an error."""

    def _require_unambiguous_head(self) -> None:
        """Raise if a proxy may read the request differently: the parser rejects every other such request itself."""
        names = [name for name, _ in self.headers]
        hosts = names.count(b"host")
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
            self._reject("the request must have one header Host")
        if b"transfer-encoding" in names and dict(self.headers)[b"transfer-encoding"].lower() != b"chunked":
            self._reject("the transfer coding must be chunked")
        if self.parser.should_upgrade() and (b"transfer-encoding" in names or b"content-length" in names):
            # The parser discards the body.
            self._reject("a request with a body cannot upgrade the protocol; send it without the header Upgrade")

    def _reject(self, reason: str) -> None:
        self._reason = reason
        raise HttpParserError(reason)

    def _is_idle(self) -> bool:
        """Return whether something else than a head has ended the keep-alive timeout, such as an empty line."""
        last = cast("RequestResponseCycle | None", self.cycle)
        is_answered = last is None or last.response_complete
        return is_answered and not self._body_pending and self.timeout_keep_alive_task is None

    def _may_be_held(self) -> bool:
        """Return whether a request is the only one of its connection, and of the kind that may be answered at once."""
        last = cast("RequestResponseCycle | None", self.cycle)
        return (
            self.parser.get_method() == b"POST"
            and (last is None or last.response_complete)
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and not self.parser.should_upgrade()
            and not self.expect_100_continue
        )

    def _status_at_once(self, body: bytes) -> int | None:
        if b"%" in self.url or b"?" in self.url or not self.url.startswith(b"/") or not self.url.isascii():
            return None
        application = cast("Application", self.app)
        headers = cast("list[tuple[bytes, bytes]]", self.scope["headers"])
        return application.status_at_once("POST", self.url.decode("ascii"), headers, body)

    def _send_status(self, status: int) -> None:
        """Send a response without a body."""
        headers = [part for name, value in self.server_state.default_headers for part in (name, b": ", value, b"\r\n")]
        self.transport.write(b"".join((STATUS_LINE[status], *headers, b"\r\n")))
        self.on_response_complete()

    def _call_application(self) -> None:
        """Call the application for the request that was held."""
        held, self._held = self._held, None
        if not self.transport.is_closing():
            super().on_headers_complete()
            if held:
                super().on_body(bytes(held))

    def _expect_head(self) -> None:
        if self._head_deadline is None:
            self._head_deadline = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.abort)

    def _head_complete(self) -> None:
        self._in_head = False
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _body_complete(self) -> None:
        self._body_pending = False
        if self._linger_deadline is not None:
            self._linger_deadline.cancel()
            self._linger_deadline = None
