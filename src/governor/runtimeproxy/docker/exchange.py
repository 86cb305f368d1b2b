"""One request and its response, moved between a client and dockerd as they come, byte by byte.

A body is never collected: what one side does not read is not read from the other. After a response that turns the
connection into a byte stream (101, or 200 to attach and exec), both directions end independently.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

import msgspec

from governor.errors import GovernorError
from governor.runtimeproxy.docker.bodies import Body, UntilClose
from governor.runtimeproxy.docker.heads import RequestHead, ResponseHead, head_length, response_head
from governor.runtimeproxy.docker.routes import Route
from governor.runtimeproxy.docker.sockets import PeerSocket

_OK: Final = 200
_MAX_INTERIM: Final = 16


class Disconnected(Exception):  # noqa: N818 - an outcome, not a defect
    """A peer closed its connection within a message; says what dockerd did, if the client is still there."""


class ReadResponse(msgspec.Struct, frozen=True):
    """The body of a response that was read instead of forwarded."""

    raw: bytes
    payload: bytes
    """Without its framing."""
    is_whole: bool


class Exchange:
    """One request and its response; the request's head is not sent yet."""

    def __init__(self, client: PeerSocket, upstream: PeerSocket, request: RequestHead, route: Route) -> None:
        self._client = client
        self._upstream = upstream
        self._request = request
        self._route = route
        self._error: GovernorError | None = None
        """What is wrong with the request's body."""
        self.response: ResponseHead | None = None
        """None as long as nothing of the response was sent to the client."""

    @property
    def status(self) -> int:
        """Return the status of the response, or 0."""
        return 0 if self.response is None else self.response.status

    async def relay(self, head: bytes, body: Body) -> bool:
        """Send the head and relay all that follows; return whether the connections can carry another exchange.

        Raise ``Disconnected`` if dockerd ends too early, and INVALID if the request's body is malformed.
        """
        self._upstream.write(head)
        async with _running(self._send_request(body)) as sending:
            response = await self.next_response()
            self._send_head(response)
            if self._is_hijacked(response):
                await _cancelled(sending)
                await self._tunnel()
                return False
            framing = response.body(self._request.method)
            await self.relay_response(framing)
            if self._request.closes or response.closes or isinstance(framing, UntilClose):
                return False
            while not body.is_complete and not sending.done():
                await asyncio.wait({sending})
        return body.is_complete

    def send(self, data: bytes) -> None:
        """Send a whole request."""
        self._upstream.write(data)

    async def next_response(self) -> ResponseHead:
        """Return the head of the final response; interim ones are forwarded. Raise like ``relay``."""
        for _ in range(_MAX_INTERIM):
            response = await self._response_head()
            if not response.is_interim:
                return response
            self._client.write(response.raw)
        raise Disconnected("it sent too many interim responses")

    async def _response_head(self) -> ResponseHead:
        try:
            raw = await read_head(self._upstream)
            if raw is not None:
                return response_head(raw)
        except GovernorError as error:
            raise Disconnected(f"its response is unusable: {error.message}") from error
        if self._error is not None:
            raise self._error
        raise Disconnected("it closed the connection without a response")

    async def read_response(self, body: Body, most: int) -> "ReadResponse":
        """Return the body of the response, or its beginning if it is longer than ``most``; raise ``Disconnected``."""
        raw, payload = bytearray(), bytearray()
        while not body.is_complete and len(raw) <= most:
            if not await self._upstream.wait():
                if not isinstance(body, UntilClose):
                    raise Disconnected("it closed the connection within its response")
                return ReadResponse(bytes(raw), bytes(payload), is_whole=True)
            data = self._upstream.take()
            try:
                taken = body.take(data, payload)
            except GovernorError as error:
                raise Disconnected(f"its response is unusable: {error.message}") from error
            self._upstream.put_back(data[taken:])
            raw += data[:taken]
        return ReadResponse(bytes(raw), bytes(payload), is_whole=body.is_complete)

    def send_response(self, response: ResponseHead, beginning: bytes) -> None:
        """Send the head of the response, and what was read of its body."""
        self._send_head(response)
        self._client.write(beginning)

    async def relay_response(self, body: Body) -> None:
        """Relay the body of the response; raise ``Disconnected`` if dockerd ends too early."""
        try:
            is_whole = await move_body(self._upstream, self._client, body)
        except GovernorError as error:
            raise Disconnected(f"its response is unusable: {error.message}") from error
        if not is_whole:
            raise Disconnected("the response was cut off")

    def _send_head(self, response: ResponseHead) -> None:
        self.response = response
        self._client.write(response.raw)

    def _is_hijacked(self, response: ResponseHead) -> bool:
        if response.switches:
            return self._request.upgrades
        is_endless = isinstance(response.body(self._request.method), UntilClose)
        return response.status == _OK and is_endless and self._route.is_hijacked

    async def _send_request(self, body: Body) -> None:
        try:
            is_whole = await move_body(self._client, self._upstream, body)
        except GovernorError as error:
            self._error = error
            self._upstream.abort()
            return
        while is_whole and not self._client.ended:
            await self._client.changed()
        if self._client.has_data:
            # The next request, or the beginning of a byte stream.
            return
        if self._client.is_gone():
            self._upstream.close()
        else:
            self._upstream.send_end()

    async def _tunnel(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(pipe(self._client, self._upstream))
            group.create_task(pipe(self._upstream, self._client))


async def read_head(peer: PeerSocket, wait: Callable[[], None] = lambda: None) -> bytes | None:
    """Return the next head, or None if the peer ends before; ``wait`` is called before each wait."""
    while True:
        data = peer.take()
        length = head_length(data)
        peer.put_back(data[length:])
        if length:
            return data[:length]
        if peer.ended:
            return None
        wait()
        await peer.changed()


async def move_body(source: PeerSocket, sink: PeerSocket, body: Body) -> bool:
    """Move a body as it arrives; return whether it is whole. Raise INVALID if it is malformed."""
    while not body.is_complete:
        if not await source.wait():
            return isinstance(body, UntilClose)
        data = source.take()
        taken = body.take(data)
        sink.write(data if taken == len(data) else data[:taken])
        source.put_back(data[taken:])
        await sink.drain()
        if sink.lost:
            return False
    return True


async def pipe(source: PeerSocket, sink: PeerSocket) -> None:
    """Move bytes until the source ends, and then end the sink; abort the source if the sink is lost."""
    while await source.wait():
        sink.write(source.take())
        await sink.drain()
        if sink.lost:
            source.abort()
            return
    if source.is_gone():
        sink.close()
    else:
        sink.send_end()


@contextlib.asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await _cancelled(task)


async def _cancelled(task: "asyncio.Task[None]") -> None:
    """Cancel a task and wait for its end; raise what it raised."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
