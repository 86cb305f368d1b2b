"""The HTTP server of the API: uvicorn as a component, on a bound socket, stopped by cancellation."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from governor.server.api.streams import OUTLET

MAX_HEAD_BYTES: Final = 64 * 1024
HEAD_TIMEOUT_S: Final = 10.0
LINGER_S: Final = 10.0
"""After the response, the rest of a request body is discarded for this long, so that a client that is still sending
can read the response."""
_SHUTDOWN_TIMEOUT_S: Final = 5


class UvicornServer:
    """Serves an ASGI application until it is cancelled; ``before_stop`` closes open streams."""

    def __init__(
        self,
        application: ASGIApp,
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
    """Adds limits on the size and time of a request head and on the time of a body that is sent after its response, and
    the outlet of a streamed response: it writes past ASGI, and knows what the peer has not read."""

    on_lost: Callable[[], None] | None = None
    _head_bytes = 0
    _head_deadline: asyncio.TimerHandle | None = None
    _linger_deadline: asyncio.TimerHandle | None = None
    _body_pending = False

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
        if self._head_deadline is not None:
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.abort()
                return
            self._head_bytes += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()
        cast("dict[str, Any]", self.scope)["extensions"] = {OUTLET: self}

    def on_headers_complete(self) -> None:
        self._head_complete()
        self._body_pending = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._body_complete()
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

    def _expect_head(self) -> None:
        if self._head_deadline is None:
            self._head_bytes = 0
            self._head_deadline = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.abort)

    def _head_complete(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _body_complete(self) -> None:
        self._body_pending = False
        if self._linger_deadline is not None:
            self._linger_deadline.cancel()
            self._linger_deadline = None
