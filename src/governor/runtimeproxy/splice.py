"""The proxy's listener: accepts clients, runs a session for each, and drains them on shutdown."""

import asyncio
import sys
from typing import Any, Final

from governor.process.telemetry import logging
from governor.runtimeproxy.endpoint import Endpoint
from governor.runtimeproxy.http2.byte_copy import ByteCopy
from governor.runtimeproxy.http2.connection import Limits
from governor.runtimeproxy.http2.flow_control import FlowControl
from governor.runtimeproxy.http2.held_budget import PROCESSING_BYTES, HeldBudget
from governor.runtimeproxy.http2.relay import Relay
from governor.runtimeproxy.http2.streams import Peer
from governor.runtimeproxy.session import Hooks, PeerSocket, Session, Work
from governor.runtimeproxy.upstream import Upstreams

DRAIN_S: Final = 10.0
_KEEP_SOCKET: Final[dict[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""Newer event loops remove the file when the server is closed, although the socket passes to another process."""

_log = logging.get_logger(__name__)


class Splice:
    """All client connections on one socket."""

    def __init__(self, endpoint: Endpoint, upstreams: Upstreams, hooks: Hooks, *, drain_s: float = DRAIN_S) -> None:
        self._endpoint = endpoint
        self.upstreams = upstreams
        self.hooks = hooks
        self._drain_s = drain_s
        self.budget = HeldBudget(Limits().max_held_total - PROCESSING_BYTES)
        self._sessions: set[Session] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._server: asyncio.Server | None = None
        self._ended = asyncio.Event()
        """Set when a session or a notification of plugins has ended."""

    @property
    def can_copy(self) -> bool:
        """Whether bytes may be copied without parsing: nothing is hooked or tapped, and there is one upstream."""
        return not self.hooks.active and not self.upstreams.has_image_service

    def count(self, *, copied: bool) -> int:
        """Return how many open connections are copied, or relayed."""
        return sum(isinstance(each.engine, ByteCopy) is copied for each in self._sessions if not each.is_probe)

    def held_bytes(self) -> int:
        """Return the size of all held messages."""
        return sum(each.engine.held_bytes for each in self._sessions if isinstance(each.engine, Relay))

    def streams(self) -> int:
        """Return the number of open streams on all connections."""
        return sum(each.engine.streams for each in self._sessions if each.engine is not None)

    def flow_controls(self, peer: Peer) -> list[FlowControl]:
        """Return the flow control of all relayed connections with a peer."""
        relays = [each.engine.flow_controls() for each in self._sessions if isinstance(each.engine, Relay)]
        return [by_peer[peer] for by_peer in relays if peer in by_peer]

    def hooks_changed(self) -> int:
        """Drain the copied connections that must be relayed from now on; return how many."""
        copied = [each for each in self._sessions if isinstance(each.engine, ByteCopy)] if not self.can_copy else []
        for session in copied:
            session.drain()
        return len(copied)

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
                while self._sessions or self.hooks.is_notifying:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            _log.warning("connections did not end in time", connections=len(self._sessions), drain_s=limit_s)
        for session in list(self._sessions):
            session.abort()

    def _accept(self) -> PeerSocket:
        session = Session(self)
        self._sessions.add(session)
        return session.client

    def spawn(self, work: Work) -> "asyncio.Task[None]":
        """Start work for a connection; an exception in it ends that task only."""
        if self._tasks is None:
            raise RuntimeError("the splice is not running")
        return self._tasks.create_task(_guarded(work))

    def notified(self) -> None:
        """Note that all plugins have been notified."""
        self._ended.set()

    def discard(self, session: Session) -> None:
        """Remove a closed session."""
        self._sessions.discard(session)
        self._ended.set()


async def _guarded(work: Work) -> None:
    try:
        await work()
    except Exception as error:  # noqa: BLE001 - a defect met by one connection must not end the others
        _log.error("work for a connection failed", exc_info=error)
