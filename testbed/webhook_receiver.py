"""A web server that receives notifications, such as a system of tickets, and fails as long as a test wants."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from testbed.waiting import until

TOKEN = "s3cret"
WITHIN_S = 60.0


class Receiver:
    """Received notifications, and the status that the next ones are answered with."""

    def __init__(self) -> None:
        self.status = 200
        self.failures: list[int] = []
        """Statuses of the next answers, before ``status``."""
        self.attempts = 0
        self.accepted: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one notification, and keep it if it is accepted."""
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        self.attempts += 1
        status = self.failures.pop(0) if self.failures else self.status
        if status == 200:
            self.accepted.append(await request.json())
            self.keys.append(request.headers["Idempotency-Key"])
        return web.Response(status=status)

    async def has(self, event: str, **fields: str) -> dict[str, Any]:
        """Wait for a notification and return it."""

        async def found() -> dict[str, Any] | None:
            wanted = {"event": event, **fields}
            return next((each for each in self.accepted if wanted.items() <= each.items()), None)

        return await until(found, within_s=WITHIN_S, every_s=0.02) or {}


@asynccontextmanager
async def receiving(host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """Run a receiver on a free port of an address; elsewhere than on loopback notifications are sent with TLS only."""
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/tickets", receiver.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, 0, ssl_context=tls)
        await site.start()
        receiver.url = f"{'https' if tls else 'http'}://{host}:{runner.addresses[0][1]}/tickets"
        yield receiver
    finally:
        await runner.cleanup()
