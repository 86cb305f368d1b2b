"""Event streams: server-sent events as a raw ASGI response.

A stream is closed when its client disconnects, and aborted when its client stops reading, so that neither leaks memory.
Keep-alives, and deliveries to idle watches, are written by ``watch.heartbeat`` and ``watch.fanout``.
"""

import asyncio

from starlette.types import Scope, Send

from governor.errors import GovernorError
from governor.process.telemetry import logging
from governor.server.api.endpoints import EVENTS, Events, Produced
from governor.server.services import Services
from governor.server.watch.hub import Outlet, Stream
from governor.wire.events import CONNECTED
from governor.wire.formats import SESSION

OUTLET = "governor.outlet"
"""ASGI extension under which the HTTP server provides the ``Outlet`` of a connection."""

_HEADERS = [
    (b"content-type", EVENTS.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

_log = logging.get_logger(__name__)


async def respond(events: Events, credential: str, services: Services, scope: Scope, send: Send) -> None:
    """Send events until the stream ends or is closed, or the client disconnects or stops reading."""
    outlet: Outlet = scope["extensions"][OUTLET]
    with events.following, services.hub.open(events.topic, credential, events.watcher, outlet) as stream:
        await _Response(outlet, send, services).follow(events, stream)


class _Response:
    """One streamed response."""

    def __init__(self, outlet: Outlet, send: Send, services: Services) -> None:
        self._outlet = outlet
        self._send = send
        self._services = services

    async def follow(self, events: Events, stream: Stream) -> None:
        headers = [*_HEADERS, *((name.lower().encode(), value.encode()) for name, value in events.headers)]
        if stream.watcher is not None:
            headers.append((SESSION.lower().encode(), str(stream.session).encode()))
        try:
            await self._write({"type": "http.response.start", "status": 200, "headers": headers})
            await self._write(_body(CONNECTED))
            await self._send_events(events, stream)
            await self._write(_body(b"", more=False))
        except TimeoutError:
            if not stream.closed:
                self._services.metrics.stalled.inc()
                _log.info("stream aborted: the client stopped reading")
            self._outlet.abort()
        except GovernorError as error:
            # The response has started, so an error can only be signalled by aborting it.
            _log.error("stream aborted by an error", error=str(error), code=error.code)
            self._outlet.abort()

    async def _send_events(self, events: Events, stream: Stream) -> None:
        produced = Produced()
        while not (stream.closed or produced.last):
            produced = await events.produce()
            if produced.chunk:
                await self._write(_body(produced.chunk))
            if not produced.last:
                pause_end = asyncio.get_running_loop().time() + events.pause_s
                stream.feed = events.feed
                await stream.wait()
                stream.feed = None
                await asyncio.sleep(max(0.0, pause_end - asyncio.get_running_loop().time()))

    async def _write(self, message: dict[str, object]) -> None:
        async with asyncio.timeout(self._services.timing.stall_s):
            await self._send(message)


def _body(data: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}
