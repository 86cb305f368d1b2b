"""An admission webhook whose decisions are made by a function of the test."""

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any, Final, Self

from aiohttp import web

from testbed.kube.pki import Authority

Decide = Callable[[dict[str, Any]], str]
"""Returns why the AdmissionRequest is denied, or ``""`` to allow it."""
Patch = Callable[[dict[str, Any]], list[dict[str, Any]]]
"""Returns the JSON patch of the object of an AdmissionRequest; an empty one changes nothing."""
HANG: Final = "<hang>"
"""In place of a reason: the webhook never responds."""


class Webhook:
    """A webhook server on loopback, started with ``async with``."""

    def __init__(self, authority: Authority, decide: Decide, patch: Patch | None = None) -> None:
        self.requests: list[dict[str, Any]] = []
        """The AdmissionRequests received."""
        self._authority = authority
        self._decide = decide
        self._patch = patch
        application = web.Application()
        application.router.add_post("/", self._review)
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.01)

    @property
    def client_config(self) -> dict[str, str]:
        """The ``clientConfig`` of a webhook configuration."""
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
        self.requests.append(review["request"])
        denial = self._decide(review["request"])
        if denial == HANG:
            await asyncio.Event().wait()
        response: dict[str, Any] = {"uid": review["request"]["uid"], "allowed": not denial}
        if denial:
            response["status"] = {"message": denial}
        if self._patch and not denial:
            patch = json.dumps(self._patch(review["request"])).encode()
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
        return web.json_response({**review, "response": response})
