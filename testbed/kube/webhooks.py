"""An admission webhook: an API server asks it before it stores an object, and a function of the test decides."""

import base64
from collections.abc import Callable
from typing import Any, Self

from aiohttp import web

from testbed.kube.pki import Authority

Decide = Callable[[dict[str, Any]], str]
"""Why the AdmissionRequest is refused; nothing to allow it."""


class Webhook:
    """Serves on loopback while it is open."""

    def __init__(self, authority: Authority, decide: Decide) -> None:
        self.asked: list[dict[str, Any]] = []
        """The requests that it decided."""
        self._authority = authority
        self._decide = decide
        application = web.Application()
        application.router.add_post("/", self._review)
        self._runner = web.AppRunner(application)

    @property
    def client_config(self) -> dict[str, str]:
        """How a webhook configuration names it."""
        port = self._runner.addresses[0][1]
        bundle = base64.b64encode(self._authority.certificate).decode()
        return {"url": f"https://127.0.0.1:{port}/", "caBundle": bundle}

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._authority.server_context()).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _review(self, request: web.Request) -> web.Response:
        review = await request.json()
        self.asked.append(review["request"])
        refusal = self._decide(review["request"])
        answer: dict[str, Any] = {"uid": review["request"]["uid"], "allowed": not refusal}
        if refusal:
            answer["status"] = {"message": refusal}
        return web.json_response({**review, "response": answer})
