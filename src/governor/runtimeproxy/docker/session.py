"""One client connection: its requests one after another, each relayed to dockerd or held for plugins."""

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING, Final

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.docker import responses
from governor.runtimeproxy.docker.exchange import Disconnected, Exchange, read_head
from governor.runtimeproxy.docker.heads import RequestHead, request_head
from governor.runtimeproxy.docker.held import HeldExchange
from governor.runtimeproxy.docker.routes import Operation, Route, route_of
from governor.runtimeproxy.docker.sockets import PeerSocket
from governor.runtimeproxy.http2.streams import Outcome, Peer

if TYPE_CHECKING:
    from governor.runtimeproxy.docker.server import DockerServer

_BAD_REQUEST: Final = 400
_LINGER_S: Final = 1.0
_FIRST_REQUEST_S: Final = 2.0
"""How long a new connection may take to send its first request when the program stops.

Clients repeat a request only if its connection has served another one before.
"""


class DockerSession:
    """One client, and its connection to dockerd."""

    def __init__(self, server: "DockerServer") -> None:
        self._server = server
        self.client = PeerSocket(self._connected)
        self._upstream: PeerSocket | None = None
        self._exchange: Exchange | None = None
        self._drains = False
        self._is_new = True
        """No request has come yet."""
        self._is_refused = False
        self.route: Route | None = None
        """The route of the request that is served; None between two requests."""
        self.held: HeldExchange | None = None
        self.is_probe = False
        """The client is this process's own watchdog: do not connect to dockerd for it."""

    def _connected(self, client: PeerSocket) -> None:
        self.is_probe = client.pid == os.getpid()
        self._server.spawn(self.run)

    async def run(self) -> None:
        """Serve the client until it or dockerd ends the connection."""
        try:
            while await self._serve_next():
                self.route = self.held = self._exchange = None
            await self._close()
        finally:
            self.abort()
            self._server.discard(self)

    async def _close(self) -> None:
        if self._is_refused:
            await self._linger()
        peers = [each for each in (self.client, self._upstream) if each is not None]
        for each in peers:
            each.close()
        for each in peers:
            await each.wait_lost()

    async def _linger(self) -> None:
        """Read a while what a client still sends after an error: if its writes failed, it might not read the error."""
        self.client.send_end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while await self.client.wait():
                    self.client.take()

    async def _serve_next(self) -> bool:
        """Serve one request; return whether another may follow."""
        try:
            raw = await read_head(self.client, self._refuse_if_draining)
            if raw is None:
                return False
            self._is_new = False
            head = request_head(raw)
        except GovernorError as error:
            status = responses.HEAD_TOO_LARGE if error.kind is Kind.EXHAUSTED else _BAD_REQUEST
            return self._fail(status, error.message)
        if self.is_probe:
            self.client.write(responses.NO_CONTENT)
            return True
        self.route = route_of(head.method, head.target)
        return await self._serve(head, self.route)

    def _refuse_if_draining(self) -> None:
        # Not within a head that is already on its way.
        if self._drains and not self._is_new and not self.client.has_data:
            self.client.refuse_more()

    def _refuse_if_new(self) -> None:
        if self._is_new:
            self._is_new = False
            self._refuse_if_draining()

    async def _serve(self, head: RequestHead, route: Route) -> bool:
        hooks, started, outcome = self._server.hooks, time.time(), Outcome.RESET
        if hooks.has_plugins and route.operation is not Operation.OTHER:
            self.held = HeldExchange(hooks, self, head, route)
        try:
            is_open = await (self._relay(head, route) if self.held is None else self.held.run())
            outcome = Outcome.REFUSED if self.held is not None and self.held.is_rejected else Outcome.COMPLETED
        except OSError as error:
            return self._fail(responses.BAD_GATEWAY, f"{self._daemon} cannot be reached: {error.strerror or error}")
        except Disconnected as error:
            return self._disconnected(str(error))
        except GovernorError as error:
            return self._fail(_BAD_REQUEST, error.message)
        else:
            self._is_refused = outcome is Outcome.REFUSED and not is_open
            return is_open
        finally:
            if self.client.lost:
                outcome = Outcome.CANCELLED
            hooks.ended(route, started, outcome, 0 if self._exchange is None else self._exchange.status, self.held)

    @property
    def _daemon(self) -> str:
        return f"the Docker daemon at {self._server.upstreams.path(Peer.RUNTIME)}"

    async def _relay(self, head: RequestHead, route: Route) -> bool:
        return await (await self.begin(head, route)).relay(head.raw, head.body())

    async def begin(self, head: RequestHead, route: Route) -> Exchange:
        """Connect to dockerd, unless connected, and return a new exchange; raise OSError if it cannot be reached."""
        upstream = self._upstream
        if upstream is not None and upstream.ended:
            # Between two requests; it may have been restarted.
            self._server.upstreams.connection_lost(Peer.RUNTIME)
        if upstream is None or upstream.ended or upstream.has_data:
            if upstream is not None:
                upstream.abort()
            self._upstream = None
            upstream = self._upstream = await self._server.upstreams.connect_patiently(
                Peer.RUNTIME, PeerSocket, lambda: not self.client.is_gone()
            )
        self._exchange = Exchange(self.client, upstream, head, route)
        return self._exchange

    def _disconnected(self, reason: str) -> bool:
        """End the connection after dockerd, or the client, has ended it within a message."""
        if self.client.is_gone():
            return False
        self._server.upstreams.connection_lost(Peer.RUNTIME)
        return self._fail(responses.BAD_GATEWAY, f"{self._daemon} did not answer: {reason}")

    def _fail(self, status: int, message: str) -> bool:
        """Answer with an error and end the connection; a response that has begun can only be cut off."""
        if self._exchange is not None and self._exchange.response is not None:
            self.client.abort()
        else:
            self.client.write(responses.error_response(status, message, closes=True))
            self._is_refused = True
        if self._upstream is not None:
            self._upstream.abort()
        return False

    def drain(self, *, end_watches: bool = False) -> None:
        """Take no more requests and close once the current one has ended; a watch would never end."""
        self._drains = True
        if end_watches and self.route is not None and self.route.is_watch:
            self.abort()
        elif self._is_new:
            asyncio.get_running_loop().call_later(_FIRST_REQUEST_S, self._refuse_if_new)
        elif self.route is None:
            self._refuse_if_draining()

    def abort(self) -> None:
        """Close all sockets at once."""
        self.client.abort()
        if self._upstream is not None:
            self._upstream.abort()
