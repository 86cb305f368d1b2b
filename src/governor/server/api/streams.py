"""Event streams: server-sent events as a raw ASGI response.

A stream is closed when its client disconnects, and aborted when its client stops reading, so that neither leaks memory.
"""

import asyncio
from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from governor.errors import GovernorError
from governor.process.telemetry import logging
from governor.server.api.endpoints import EVENTS, Events, Produced
from governor.server.services import Services
from governor.server.watch.hub import Stream
from governor.wire.events import KEEPALIVE
from governor.wire.formats import SESSION

ABORT = "governor.abort"
"""ASGI extension under which the HTTP server provides a callback that aborts the connection."""

_HEADERS = [
    (b"content-type", EVENTS.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

_log = logging.get_logger(__name__)


async def respond(
    events: Events, credential: str, services: Services, scope: Scope, receive: Receive, send: Send
) -> None:
    """Send events until the stream ends or is closed, or the client disconnects or stops reading."""
    with services.hub.open(events.topic, credential, events.watcher) as stream:
        disconnect = asyncio.create_task(_close_on_disconnect(receive, stream))
        try:
            await _Response(scope, send, services).follow(events, stream)
        finally:
            disconnect.cancel()
            await asyncio.wait({disconnect})


async def _close_on_disconnect(receive: Receive, stream: Stream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.close()


class _Response:
    """One streamed response."""

    def __init__(self, scope: Scope, send: Send, services: Services) -> None:
        self._send = send
        self._services = services
        self._abort: Callable[[], None] = scope.get("extensions", {}).get(ABORT, lambda: None)

    async def follow(self, events: Events, stream: Stream) -> None:
        headers = [*_HEADERS, *((name.lower().encode(), value.encode()) for name, value in events.headers)]
        if stream.watcher is not None:
            headers.append((SESSION.lower().encode(), str(stream.session).encode()))
        try:
            await self._write({"type": "http.response.start", "status": 200, "headers": headers})
            await self._write(_body(b": connected\n\n"))
            await self._send_events(events, stream)
            await self._write(_body(b"", more=False))
        except TimeoutError:
            self._services.metrics.stalled.inc()
            _log.info("stream aborted: the client stopped reading")
            self._abort()
        except GovernorError as error:
            # The response has started, so an error can only be signalled by aborting it.
            _log.error("stream aborted by an error", error=str(error), code=error.code)
            self._abort()

    async def _send_events(self, events: Events, stream: Stream) -> None:
        produced = Produced()
        while not (stream.closed or produced.last):
            produced = await events.produce()
            if produced.chunk:
                await self._write(_body(produced.chunk))
            if not produced.last:
                pause_end = asyncio.get_running_loop().time() + events.pause_s
                await self._wait_for_wake_up(stream)
                await asyncio.sleep(max(0.0, pause_end - asyncio.get_running_loop().time()))

    async def _wait_for_wake_up(self, stream: Stream) -> None:
        while not await stream.wait(self._services.timing.keepalive_s):
            await self._write(_body(KEEPALIVE))

    async def _write(self, message: dict[str, object]) -> None:
        async with asyncio.timeout(self._services.timing.stall_s):
            await self._send(message)


def _body(data: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}
