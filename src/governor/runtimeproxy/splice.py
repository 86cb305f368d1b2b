"""Clients' connections: sockets around the I/O-free engines, each client with upstream connections of its own.

A connection is copied byte by byte while nothing is hooked and there is one upstream, otherwise relayed. What held
calls mean is ``relaying``'s.
"""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol, cast

from governor.process.telemetry import logging
from governor.runtimeproxy.endpoint import Endpoint
from governor.runtimeproxy.http2.byte_copy import ByteCopy
from governor.runtimeproxy.http2.events import RelayEvent, UpstreamNeeded
from governor.runtimeproxy.http2.flow_control import FlowControl
from governor.runtimeproxy.http2.relay import Relay
from governor.runtimeproxy.http2.streams import Peer
from governor.runtimeproxy.http2.writer import COALESCE_DELAY_S
from governor.runtimeproxy.upstream import Upstreams

DRAIN_S: Final = 10.0
_FAREWELL_S: Final = 5.0
"""What a peer has to take the last bytes."""
_AWAY_S: Final = 1.0
"""How long a call waits for an upstream that is away, as in its restart."""
_TRY_EVERY_S: Final = 0.05
_CREDENTIALS: Final = struct.Struct("3i")

_log = logging.get_logger(__name__)

Work = Callable[[], Coroutine[Any, Any, None]]
"""Called when it begins: a coroutine that nobody awaits, as its task was cancelled before, would be complained of."""
Spawn = Callable[[Work], "asyncio.Task[None]"]


class Pump(Protocol):
    """Writes what a relay has to say."""

    def __call__(self, then: Callable[[], None] | None = None) -> None:
        """Soon; what is done ``then`` makes no peer wait."""


class HeldCallHandler(Protocol):
    """Who works on the held calls of one relayed connection."""

    def handle(self, event: RelayEvent) -> None:
        """Something happened to a stream."""

    def close(self) -> None:
        """The connection is over: so is all work for it."""


class Hooks(Protocol):
    """Whether anything is hooked, and who works on it."""

    @property
    def active(self) -> bool:
        """Whether anybody needs to know what the bytes of a connection mean."""

    def hooked(self, path: bytes) -> bool:
        """Whether a call is to be held."""

    def attend(self, relay: Relay, spawn: Spawn, pump: Pump) -> HeldCallHandler:
        """Work on the held calls of a relayed connection; ``pump`` after commands to the relay, but in ``handle``."""


class Splice:
    """All connections of clients on one socket."""

    def __init__(self, endpoint: Endpoint, upstreams: Upstreams, hooks: Hooks, *, drain_s: float = DRAIN_S) -> None:
        self._endpoint = endpoint
        self.upstreams = upstreams
        self.hooks = hooks
        self._drain_s = drain_s
        self._sessions: set[Session] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._emptied = asyncio.Event()

    @property
    def may_copy(self) -> bool:
        """Whether bytes may be copied, as nobody needs to know what they mean."""
        return not self.hooks.active and not self.upstreams.has_image_service

    def count(self, *, copied: bool) -> int:
        """How many connections are open that are copied, or relayed."""
        return sum(isinstance(each.engine, ByteCopy) is copied for each in self._sessions if not each.is_probe)

    def held_bytes(self) -> int:
        """Of messages that wait for plugins."""
        return sum(each.engine.held_bytes for each in self._sessions if isinstance(each.engine, Relay))

    def streams(self) -> int:
        """Calls that are under way on all connections."""
        return sum(each.engine.streams for each in self._sessions if each.engine is not None)

    def flow_controls(self, side: Peer) -> list[FlowControl]:
        """The accounts of all relayed connections with a peer."""
        relays = [each.engine.flow_controls() for each in self._sessions if isinstance(each.engine, Relay)]
        return [flow_controls[side] for flow_controls in relays if side in flow_controls]

    def hooks_changed(self) -> int:
        """Connections that may not be copied any more end gracefully and come back to be relayed; says how many."""
        copied = [each for each in self._sessions if isinstance(each.engine, ByteCopy)] if not self.may_copy else []
        for session in copied:
            session.drain()
        return len(copied)

    async def run(self) -> None:
        """Serve until cancelled, then take no more calls, let those there are end, and remove the socket."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                server = await loop.create_unix_server(self._accept, sock=self._endpoint.listener)
                _log.info("serving", socket=str(self._endpoint.path))
                try:
                    await loop.create_future()
                finally:
                    self._endpoint.remove()
                    server.close()
                    await self._drain()
        finally:
            self._endpoint.remove()

    async def _drain(self) -> None:
        for session in list(self._sessions):
            session.drain()
        try:
            async with asyncio.timeout(self._drain_s):
                while self._sessions:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            _log.warning("connections did not end in time", connections=len(self._sessions), drain_s=self._drain_s)
        for session in list(self._sessions):
            session.abort()

    def _accept(self) -> "PeerSocket":
        session = Session(self)
        self._sessions.add(session)
        return session.client

    def spawn(self, work: Work) -> "asyncio.Task[None]":
        """Work for a connection; whatever it raises ends only itself."""
        if self._tasks is None:
            raise RuntimeError("the splice does not run")
        return self._tasks.create_task(_guarded(work))

    def forget(self, session: "Session") -> None:
        """A connection is over."""
        self._sessions.discard(session)
        if not self._sessions:
            self._emptied.set()


async def _guarded(work: Work) -> None:
    try:
        await work()
    except Exception as error:  # noqa: BLE001 - a defect that one connection meets must not end the others
        _log.error("work for a connection failed", exc_info=error)


class PeerSocket(asyncio.Protocol):
    """The socket of one peer of a connection."""

    def __init__(self, session: "Session", side: Peer) -> None:
        self._session = session
        self.side = side
        self.transport: asyncio.Transport | None = None
        self.paused = False
        """It does not take what it is sent."""
        self.closing = False
        """We said goodbye."""

    @property
    def process(self) -> int:
        """The process that connected to us, by its number."""
        if self.transport is None:
            return 0
        sock = self.transport.get_extra_info("socket")
        return int(_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        self.transport = cast("asyncio.Transport", transport)
        self._session.made(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._session.received(self.side, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self.transport = None
        self._session.gone(self)

    def pause_writing(self) -> None:
        """It does not keep up."""
        self.paused = True
        self._session.flow_changed(self)

    def resume_writing(self) -> None:
        """It keeps up again."""
        self.paused = False
        self._session.flow_changed(self)

    def close(self) -> None:
        """Let it have what it was sent, and say goodbye."""
        if self.transport is not None and not self.closing:
            self.closing = True
            self.transport.close()
            asyncio.get_running_loop().call_later(_FAREWELL_S, self.abort)

    def abort(self) -> None:
        """Say goodbye at once."""
        if self.transport is not None:
            self.transport.abort()


class Session:
    """One client and its upstreams: moves bytes between their sockets and an engine."""

    def __init__(self, splice: Splice) -> None:
        self._splice = splice
        self.client = PeerSocket(self, Peer.CLIENT)
        self.engine: ByteCopy | Relay | None = None
        self._peers = {Peer.CLIENT: self.client}
        self._held: HeldCallHandler | None = None
        self._early = b""
        """What the client sent before it was known how it is served."""
        self._retiring = False
        self._over = False
        self._pumping = False
        self._pump_due = False
        self._late_due = False
        self.is_probe = False
        """The client is this process itself, to see whether it is served: the runtime has no part in that."""

    def made(self, peer: PeerSocket) -> None:
        """A socket is there. Nothing is read from a client before it is known how it is served."""
        if peer is self.client:
            self.is_probe = peer.process == os.getpid()
            self._pause_client()
            self._splice.spawn(self._open)
            return
        if self._over:
            peer.abort()
            return
        # Here and not where the connection is awaited: an upstream may say something before that is resumed.
        self._peers[peer.side] = peer
        if isinstance(self.engine, Relay):
            self.engine.attach(peer.side)
            self.pump()
        else:
            self.engine = ByteCopy()

    def _pause_client(self) -> None:
        if self.client.transport is not None:
            self.client.transport.pause_reading()

    async def _open(self) -> None:
        if self._splice.may_copy and not self.is_probe:
            # Without the runtime a relay answers in its place.
            with contextlib.suppress(OSError):
                await self._connect(Peer.RUNTIME)
        if self.engine is None:
            self._relay()
        early, self._early = self._early, b""
        if early:
            self.received(Peer.CLIENT, early)
        if self._retiring or (isinstance(self.engine, ByteCopy) and not self._splice.may_copy):
            self.drain()
        if self.client.transport is not None and not self.client.transport.is_closing():
            self.client.transport.resume_reading()

    def _relay(self) -> None:
        splice = self._splice
        relay = Relay(
            splice.hooks.hooked,
            has_image_service=splice.upstreams.has_image_service,
            total_held=lambda: (splice.held_bytes(), splice.count(copied=False)),
        )
        self.engine = relay
        self._held = splice.hooks.attend(relay, splice.spawn, self.pump_soon)
        if self._over:
            self._held.close()
        self.pump()

    async def _connect(self, side: Peer) -> None:
        await self._splice.upstreams.connect(side, lambda: PeerSocket(self, side))

    async def _attach(self, relay: Relay, side: Peer) -> None:
        """Connect to an upstream that a stream wants, and wait a moment for one that is away."""
        try:
            await self._connect_patiently(side)
        except OSError as error:
            relay.lost(side, str(error.strerror or error))
            self.pump()

    async def _connect_patiently(self, side: Peer) -> None:
        until = asyncio.get_running_loop().time() + _AWAY_S
        while True:
            try:
                await self._connect(side)
            except OSError:
                if self._over or asyncio.get_running_loop().time() > until:
                    raise
            else:
                return
            await asyncio.sleep(_TRY_EVERY_S)

    def received(self, side: Peer, data: bytes) -> None:
        """Bytes of a peer."""
        if self.engine is None:
            # uvloop begins to read whatever was asked of it when the connection was made.
            self._early += data
            self._pause_client()
            return
        self.engine.receive(side, data)
        self.pump()

    def pump_soon(self, then: Callable[[], None] | None = None) -> None:
        """Pump, with several calls when all that is ready now has been done: what goes on together is one write.

        What is done ``then`` is done before anything is read again.
        """
        if self.engine is not None and self.engine.streams <= 1:
            self.pump()
            if then is not None:
                then()
            return
        loop = asyncio.get_running_loop()
        if not self._pump_due:
            self._pump_due = True
            loop.call_soon(self.pump)
        if then is not None:
            loop.call_soon(then)

    def _pump_late(self) -> None:
        self._late_due = False
        self.pump(late=True)

    def pump(self, *, late: bool = False) -> None:
        """Handle what happened, write what can be written, close what is finished.

        What can wait is written with what comes next, or when it is ``late``: each write wakes a peer, and on the way
        of a call nobody needs an acknowledgement.
        """
        self._pump_due = False
        if self._pumping or self.engine is None:
            return
        self._pumping = True
        try:
            self._handle_events()
            for peer in list(self._peers.values()):
                if late or not self._waits(self.engine, peer):
                    self._write(self.engine, peer)
        finally:
            self._pumping = False

    def _handle_events(self) -> None:
        while isinstance(self.engine, Relay) and (events := self.engine.events()):
            for event in events:
                if isinstance(event, UpstreamNeeded):
                    self._splice.spawn(partial(self._attach, self.engine, event.side))
                elif self._held is not None:
                    self._held.handle(event)

    def _waits(self, engine: ByteCopy | Relay, peer: PeerSocket) -> bool:
        if not (isinstance(engine, Relay) and engine.can_defer(peer.side)):
            return False
        if not self._late_due:
            self._late_due = True
            asyncio.get_running_loop().call_later(COALESCE_DELAY_S, self._pump_late)
        return True

    def _write(self, engine: ByteCopy | Relay, peer: PeerSocket) -> None:
        if peer.transport is None:
            return
        if not peer.paused:
            data = engine.outgoing(peer.side)
            if data:
                peer.transport.write(data)
        if engine.should_close(peer.side):
            peer.close()

    def flow_changed(self, peer: PeerSocket) -> None:
        """A peer ceases or begins to take what it is sent: who sends it that must wait, or may go on.

        Windows limit what a relay keeps for an upstream; a client sets its windows as it likes.
        """
        if isinstance(self.engine, Relay) and peer is not self.client:
            senders: list[PeerSocket] = []
        else:
            senders = [each for each in self._peers.values() if each is not peer]
        for sender in senders:
            if sender.transport is not None and not sender.transport.is_closing():
                (sender.transport.pause_reading if peer.paused else sender.transport.resume_reading)()
        if not peer.paused:
            self.pump()

    def gone(self, peer: PeerSocket) -> None:
        """The socket of a peer is gone."""
        if self._peers.get(peer.side) is not peer:
            return
        del self._peers[peer.side]
        if self.engine is not None:
            self.engine.lost(peer.side)
            self.pump()
        if peer is self.client:
            self._end()
        elif not peer.closing:
            self._splice.upstreams.lost(peer.side)

    def _end(self) -> None:
        self._over = True
        if self._held is not None:
            self._held.close()
        for peer in self._peers.values():
            peer.close()
        self._splice.forget(self)

    def drain(self) -> None:
        """Tell the client to open no more streams here, and close when those there are have ended."""
        self._retiring = True
        if self.engine is not None:
            self.engine.drain()
            self.pump()

    def abort(self) -> None:
        """End at once."""
        for peer in list(self._peers.values()):
            peer.abort()
