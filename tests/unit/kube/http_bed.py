"""A small HTTP server in the place of an API server, for what no real one does on demand."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

from governor.kube.client import Client, Limits, Transport
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
"""Repeats without delay and never gives a server up."""


class HastyClock(SystemClock):
    """Does not wait, but notes for how long it should have."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Return at once."""
        self.waits_s.append(seconds)


def failure(code: int, reason: str = "", **details: Any) -> bytes:
    """A refusal as an API server writes it."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return json.dumps(status | {"message": f"this is {reason}", "details": details}).encode()


class HttpServer:
    """Answers with what is next in the list, and with the last for ever."""

    def __init__(self, *answers: web.Response | Handler) -> None:
        self._answers = list(answers)
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.01)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def client(self, transport: Transport, limits: Limits = QUICK, **access: Any) -> Client:
        """A client of it."""
        return Client(transport, Access(self.url, **access), limits)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if not isinstance(answer, web.Response):
            return await answer(request)
        return web.Response(body=answer.body, status=answer.status, headers=answer.headers)


async def never(_: web.Request) -> web.StreamResponse:
    """No answer at all."""
    await asyncio.Event().wait()
    raise AssertionError


async def hang_up(request: web.Request) -> web.StreamResponse:
    """The connection ends where an answer should be."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
