"""The server of kubelet's socket for any protocol: accepts clients, and drains their sessions on shutdown."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Protocol, TypeVar

from governor.process.telemetry import logging
from governor.runtimeproxy.endpoint import Endpoint

DRAIN_S: Final = 10.0
_KEEP_SOCKET: Final[dict[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""Newer event loops remove the file when the server is closed, although the socket passes to another process."""

_log = logging.get_logger(__name__)

Work = Callable[[], Coroutine[Any, Any, None]]
"""A coroutine function, not a coroutine: a task cancelled before it starts would leave that one never awaited."""


class Draining(Protocol):
    """One client connection."""

    def drain(self, *, end_watches: bool = False) -> None:
        """Take no more requests and close once those in progress have ended; watches would never end."""

    def abort(self) -> None:
        """Close at once."""


S = TypeVar("S", bound=Draining)


class SessionServer(Generic[S]):
    """All client connections on one socket; a subclass accepts them."""

    def __init__(self, endpoint: Endpoint, *, drain_s: float = DRAIN_S) -> None:
        self._endpoint = endpoint
        self._drain_s = drain_s
        self._sessions: set[S] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._server: asyncio.Server | None = None
        self._ended = asyncio.Event()
        """Set when a session or a notification of plugins has ended."""

    def _accept(self) -> asyncio.BaseProtocol:
        """Add a session and return the protocol of its client."""
        raise NotImplementedError

    @property
    def is_notifying(self) -> bool:
        """Whether work goes on for calls whose connection may be closed."""
        return False

    async def run(self) -> None:
        """Serve until cancelled, then drain all connections and remove the socket."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self.resume()
                _log.info("serving", socket=str(self._endpoint.path))
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self._endpoint.remove()
                    await self.retire(self._drain_s)
        finally:
            self._endpoint.remove()
            self._endpoint.listener.close()

    def pause(self) -> None:
        """Accept no more connections; open ones continue, and new ones wait in the socket's backlog."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def resume(self) -> None:
        """Accept connections, unless it does."""
        if self._server is not None:
            return
        listener = self._endpoint.listener.dup()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._accept, sock=listener, **_KEEP_SOCKET)

    async def retire(self, limit_s: float) -> None:
        """Accept no more connections, end watches, and return when all calls have ended or the time is over."""
        self.pause()
        for session in list(self._sessions):
            session.drain(end_watches=True)
        try:
            async with asyncio.timeout(limit_s):
                while self._sessions or self.is_notifying:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            _log.warning("connections did not end in time", connections=len(self._sessions), drain_s=limit_s)
        for session in list(self._sessions):
            session.abort()

    def spawn(self, work: Work) -> "asyncio.Task[None]":
        """Start work for a connection; an exception in it ends that task only."""
        if self._tasks is None:
            raise RuntimeError("the server is not running")
        return self._tasks.create_task(_guarded(work))

    def notified(self) -> None:
        """Note that all plugins have been notified."""
        self._ended.set()

    def discard(self, session: S) -> None:
        """Remove a closed session."""
        self._sessions.discard(session)
        self._ended.set()


async def _guarded(work: Work) -> None:
    try:
        await work()
    except Exception as error:  # noqa: BLE001 - a defect met by one connection must not end the others
        _log.error("work for a connection failed", exc_info=error)
