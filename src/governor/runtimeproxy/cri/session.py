"""One client connection and its upstream connections: moves bytes between their sockets and an HTTP/2 engine.

The engine is a byte copy while nothing is hooked and there is one upstream, otherwise a relay. Held calls are handled
by ``hooks``, frames and streams by ``http2``.
"""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

from governor.runtimeproxy.http2.byte_copy import ByteCopy
from governor.runtimeproxy.http2.events import RelayEvent, UpstreamNeeded
from governor.runtimeproxy.http2.relay import Relay
from governor.runtimeproxy.http2.streams import Peer
from governor.runtimeproxy.http2.writer import DEFERRAL_S

if TYPE_CHECKING:
    from governor.runtimeproxy.cri.splice import Splice

_CLOSE_TIMEOUT_S: Final = 5.0
"""How long a peer has to read the last bytes before its socket is aborted."""
_CREDENTIALS: Final = struct.Struct("3i")


class HeldCallHandler(Protocol):
    """Handler of the held calls of one relayed connection."""

    def handle(self, event: RelayEvent) -> None:
        """Handle an event of one stream."""

    def close(self) -> None:
        """Cancel all work: the connection is closed."""


class Hooks(Protocol):
    """Source of the decision which calls are held, and of their handlers."""

    @property
    def active(self) -> bool:
        """Whether connections must be relayed, because calls are hooked or tapped."""

    def hooked(self, path: bytes) -> bool:
        """Whether calls of this method are held."""

    @property
    def is_notifying(self) -> bool:
        """Whether work goes on for calls whose connection may be closed."""

    def handler_for(self, relay: Relay, pump: Callable[[], None]) -> HeldCallHandler:
        """Return a handler for one relay; it calls ``pump`` after each command to the relay outside ``handle``."""


class PeerSocket(asyncio.Protocol):
    """The socket of one peer of a session."""

    def __init__(self, session: "Session", peer: Peer) -> None:
        self._session = session
        self.peer = peer
        self.transport: asyncio.Transport | None = None
        self.paused = False
        """The write buffer is full: the peer does not read."""
        self.closing = False
        """We closed it."""

    @property
    def pid(self) -> int:
        """Process id of the peer, or 0 if the socket is closed."""
        if self.transport is None:
            return 0
        sock = self.transport.get_extra_info("socket")
        return int(_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connected socket with the session."""
        self.transport = cast("asyncio.Transport", transport)
        self._session.connected(self)

    def data_received(self, data: bytes) -> None:
        """Pass bytes to the session."""
        self._session.receive(self.peer, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the closed socket to the session."""
        self.transport = None
        self._session.disconnected(self)

    def pause_writing(self) -> None:
        """Stop writing: the peer does not keep up."""
        self.paused = True
        self._session.flow_changed(self)

    def resume_writing(self) -> None:
        """Write again."""
        self.paused = False
        self._session.flow_changed(self)

    def close(self) -> None:
        """Close after the buffered bytes are written, or after a timeout."""
        if self.transport is not None and not self.closing:
            self.closing = True
            self.transport.close()
            asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()


class Session:
    """One client and its upstreams."""

    def __init__(self, splice: "Splice") -> None:
        self._splice = splice
        self.client = PeerSocket(self, Peer.CLIENT)
        self.engine: ByteCopy | Relay | None = None
        self._sockets = {Peer.CLIENT: self.client}
        self._handler: HeldCallHandler | None = None
        self._early_data = b""
        """What the client sent before the engine was chosen."""
        self._draining = False
        self._ends_watches = False
        self._closed = False
        self._pumping = False
        self._pump_scheduled = False
        self._deferred_scheduled = False
        self.is_probe = False
        """The client is this process's own watchdog: do not connect to the runtime for it."""

    def connected(self, connection: PeerSocket) -> None:
        """Start serving a client, or attach an upstream. A client is not read before its engine is chosen."""
        if connection is self.client:
            self.is_probe = connection.pid == os.getpid()
            self._pause_client()
            self._splice.spawn(self._open)
            return
        if self._closed:
            connection.abort()
            return
        # Here and not where the connection is awaited: an upstream may send bytes before that coroutine resumes.
        self._sockets[connection.peer] = connection
        if isinstance(self.engine, Relay):
            self.engine.attach(connection.peer)
            self.pump()
        else:
            self.engine = ByteCopy()

    def _pause_client(self) -> None:
        if self.client.transport is not None:
            self.client.transport.pause_reading()

    async def _open(self) -> None:
        if self._splice.can_copy and not self.is_probe:
            # If the runtime is unreachable, a relay answers in its place.
            with contextlib.suppress(OSError):
                await self._connect(Peer.RUNTIME)
        if self.engine is None:
            self._start_relay()
        early_data, self._early_data = self._early_data, b""
        if early_data:
            self.receive(Peer.CLIENT, early_data)
        if self._draining or (isinstance(self.engine, ByteCopy) and not self._splice.can_copy):
            self.drain()
        if self.client.transport is not None and not self.client.transport.is_closing():
            self.client.transport.resume_reading()

    def _start_relay(self) -> None:
        splice = self._splice
        relay = Relay(
            splice.hooks.hooked,
            has_image_service=splice.upstreams.has_image_service,
            budget=splice.budget,
            granted=self.pump_soon,
        )
        self.engine = relay
        self._handler = splice.hooks.handler_for(relay, self.pump_soon)
        if self._closed:
            self._handler.close()
        self.pump()

    async def _connect(self, peer: Peer) -> None:
        await self._splice.upstreams.connect(peer, lambda: PeerSocket(self, peer))

    async def _attach(self, relay: Relay, peer: Peer) -> None:
        """Connect to an upstream that a stream needs; fail its streams if it stays unreachable."""
        try:
            await self._splice.upstreams.connect_patiently(
                peer, lambda: PeerSocket(self, peer), lambda: not self._closed
            )
        except OSError as error:
            relay.connection_lost(peer, str(error.strerror or error))
            self.pump()

    def receive(self, peer: Peer, data: bytes) -> None:
        """Pass a peer's bytes to the engine."""
        if self.engine is None:
            # uvloop starts reading after connection_made even if reading was paused there.
            self._early_data += data
            self._pause_client()
            return
        self.engine.receive(peer, data)
        self.pump()
        if not self._deferred_scheduled and isinstance(self.engine, Relay) and self.engine.has_deferred(peer):
            self._deferred_scheduled = True
            asyncio.get_running_loop().call_later(DEFERRAL_S, self._write_deferred, self.engine)

    def pump_soon(self) -> None:
        """Pump; with several open calls, after all ready callbacks, so that their output is one write."""
        if self.engine is not None and self.engine.streams <= 1:
            self.pump()
        elif not self._pump_scheduled:
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self.pump)

    def _write_deferred(self, relay: Relay) -> None:
        self._deferred_scheduled = False
        relay.write_deferred()
        self.pump()

    def pump(self) -> None:
        """Handle events, write what can be written, close what is finished.

        What an event makes ready is written before the events that follow from it, such as the end of a stream.
        """
        self._pump_scheduled = False
        if self._pumping or self.engine is None:
            return
        self._pumping = True
        try:
            while self._handle_events(self.engine):
                self._write_all(self.engine)
            self._write_all(self.engine)
        finally:
            self._pumping = False

    def _handle_events(self, engine: ByteCopy | Relay) -> bool:
        """Handle the events so far; return whether there were any."""
        if not isinstance(engine, Relay):
            return False
        events = engine.events()
        for event in events:
            if isinstance(event, UpstreamNeeded):
                self._splice.spawn(partial(self._attach, engine, event.peer))
            elif self._handler is not None:
                self._handler.handle(event)
        return bool(events)

    def _write_all(self, engine: ByteCopy | Relay) -> None:
        for peer in engine.busy_peers():
            if peer in self._sockets:
                self._write(engine, self._sockets[peer])

    def _write(self, engine: ByteCopy | Relay, connection: PeerSocket) -> None:
        if connection.transport is None:
            return
        if not connection.paused:
            data = engine.data_to_send(connection.peer)
            if data:
                connection.transport.write(data)
        if engine.should_close(connection.peer):
            connection.close()

    def flow_changed(self, connection: PeerSocket) -> None:
        """Pause or resume reading from the peers that send to one whose write buffer filled up or drained.

        Windows bound what a relay buffers for an upstream; a client chooses its windows itself.
        """
        if isinstance(self.engine, Relay) and connection is not self.client:
            senders: list[PeerSocket] = []
        else:
            senders = [each for each in self._sockets.values() if each is not connection]
        for sender in senders:
            if sender.transport is not None and not sender.transport.is_closing():
                (sender.transport.pause_reading if connection.paused else sender.transport.resume_reading)()
        if not connection.paused:
            self.pump()

    def disconnected(self, connection: PeerSocket) -> None:
        """Handle a closed socket: a client's ends the session."""
        if self._sockets.get(connection.peer) is not connection:
            return
        del self._sockets[connection.peer]
        if self.engine is not None:
            self.engine.connection_lost(connection.peer)
            self.pump()
        if connection is self.client:
            self._close()
        elif not connection.closing:
            self._splice.upstreams.connection_lost(connection.peer)

    def _close(self) -> None:
        self._closed = True
        if self._handler is not None:
            self._handler.close()
        for connection in self._sockets.values():
            connection.close()
        self._splice.discard(self)

    def drain(self, *, end_watches: bool = False) -> None:
        """Send GOAWAY to the client and close once the open streams have ended; watches would never end."""
        self._draining = True
        self._ends_watches = self._ends_watches or end_watches
        if self.engine is not None:
            self.engine.drain(end_watches=self._ends_watches)
            self.pump()

    def abort(self) -> None:
        """Close all sockets at once."""
        for connection in list(self._sockets.values()):
            connection.abort()
