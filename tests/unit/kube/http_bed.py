"""A small HTTP server in place of an API server, for responses that no real one sends on demand."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Self

import pytest
from aiohttp import web

from governor.errors import GovernorError
from governor.kube.client import Client, Limits, Request, Transport
from governor.kube.config.access import Access
from governor.process.clock import SystemClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import BreakerPolicy
from governor.process.flowcontrol.limiter import Rate

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

QUICK = Limits(
    rate=Rate(per_s=10_000.0, burst=1000),
    breaker=BreakerPolicy(failures=1000, backoff=Backoff(initial_s=60.0, max_s=60.0)),
    backoff=Backoff(initial_s=0.001, max_s=0.002),
)
"""Retries without delay and never opens the circuit."""


async def rejected(client: Client, request: Request) -> GovernorError:
    """Return the error with which a request fails."""
    with pytest.raises(GovernorError) as caught:
        await client.send(request)
    return caught.value


class RecordingClock(SystemClock):
    """Records sleeps instead of sleeping."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Return immediately."""
        self.waits_s.append(seconds)


def failure(code: int, reason: str = "", **details: Any) -> bytes:
    """Return the body of an error response."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return json.dumps(status | {"message": f"this is {reason}", "details": details}).encode()


class HttpServer:
    """Sends the given responses in order, and repeats the last one."""

    def __init__(self, *responses: web.Response | Handler) -> None:
        self._responses = list(responses)
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._respond)
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.01)

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def client(self, transport: Transport, limits: Limits = QUICK, **access: Any) -> Client:
        """Return a client of this server."""
        return Client(transport, Access(self.url, **access), limits)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        response = self._responses.pop(0) if len(self._responses) > 1 else self._responses[0]
        if not isinstance(response, web.Response):
            return await response(request)
        return web.Response(body=response.body, status=response.status, headers=response.headers)


async def never_respond(_: web.Request) -> web.StreamResponse:
    """Keep the request open for ever."""
    await asyncio.Event().wait()
    raise AssertionError


async def drop_connection(request: web.Request) -> web.StreamResponse:
    """Close the connection in place of a response."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
