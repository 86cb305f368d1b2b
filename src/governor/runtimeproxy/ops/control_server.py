"""HTTP server of the control socket, which only the proxy's user can access. Its messages are in ``control``."""

import asyncio
import http
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind, invalid
from governor.process.telemetry import logging
from governor.process.telemetry.http_server import HttpServer, Response, Target, json_response
from governor.runtimeproxy.endpoint import Endpoint
from governor.runtimeproxy.ops.control import CALLS, PODS, UPGRADE, CallFilter, ErrorBody, Upgraded
from governor.runtimeproxy.ops.explain import Explainer
from governor.runtimeproxy.ops.tap import Tap

MODE: Final = 0o600
_MAX_CONNECTIONS: Final = 32
_EXCHANGE_TIMEOUT_S: Final = 45.0
"""Longer than the timeouts of the calls to the runtime that a response may need."""

_STATUS: Final = dict.fromkeys(Kind, http.HTTPStatus.INTERNAL_SERVER_ERROR) | {
    Kind.INVALID: http.HTTPStatus.BAD_REQUEST,
    Kind.NOT_FOUND: http.HTTPStatus.NOT_FOUND,
    Kind.CONFLICT: http.HTTPStatus.CONFLICT,
    Kind.PRECONDITION: http.HTTPStatus.CONFLICT,
    Kind.EXHAUSTED: http.HTTPStatus.TOO_MANY_REQUESTS,
    Kind.UNAVAILABLE: http.HTTPStatus.SERVICE_UNAVAILABLE,
    Kind.DEADLINE: http.HTTPStatus.GATEWAY_TIMEOUT,
}

_log = logging.get_logger(__name__)


class ControlServer:
    """Serves the commands ``explain``, ``tap`` and ``upgrade``."""

    def __init__(self, endpoint: Endpoint, explainer: Explainer, tap: Tap) -> None:
        self.endpoint = endpoint
        self._explainer = explainer
        self._tap = tap
        self.upgrade: Callable[[], Awaitable[Upgraded]] | None = None
        """Replaces the proxy by another version; set by the composition."""
        self._server = HttpServer(
            "control",
            endpoint.listener,
            self._respond,
            exchange_timeout_s=_EXCHANGE_TIMEOUT_S,
            max_connections=_MAX_CONNECTIONS,
            allow_post=True,
        )

    def pause(self) -> None:
        """Accept no more connections; open ones continue."""
        self._server.pause()

    async def resume(self) -> None:
        """Accept connections again."""
        await self._server.resume()

    async def run(self) -> None:
        """Serve until cancelled; the socket is removed before it is closed."""
        _log.info("control socket listening", socket=str(self.endpoint.path))
        serving = asyncio.ensure_future(self._server.run())
        try:
            await asyncio.shield(serving)
        finally:
            self.endpoint.remove()
            serving.cancel()
            await asyncio.wait((serving,))

    async def _respond(self, target: Target) -> Response:
        try:
            return await self._route(target)
        except GovernorError as error:
            return json_response(_STATUS[error.kind], ErrorBody(error.kind, error.code, error.message))

    async def _route(self, target: Target) -> Response:
        if target.is_post:
            if target.path == UPGRADE and self.upgrade is not None:
                return json_response(http.HTTPStatus.OK, await self.upgrade())
            raise GovernorError(Kind.NOT_FOUND, "no-such-path", f"POST {target.path} does not exist")
        if target.path == PODS:
            return json_response(http.HTTPStatus.OK, await self._explainer.pods())
        if target.path == CALLS:
            self._tap.check_capacity()
            return Response(http.HTTPStatus.OK, "application/jsonl", parts=self._tap.lines(_filter(target)))
        parts = target.path.removeprefix(PODS).split("/")
        match [urllib.parse.unquote(each) for each in parts] if target.path.startswith(PODS) else []:
            case ["", namespace, name] if name:
                return json_response(http.HTTPStatus.OK, await self._explainer.pod(namespace, name))
        raise GovernorError(Kind.NOT_FOUND, "no-such-path", f"{target.path} does not exist")


def _filter(target: Target) -> CallFilter:
    try:
        return msgspec.convert(dict(target.query), CallFilter, strict=False)
    except msgspec.ValidationError as error:
        raise invalid("filter", f"invalid filter: {error}") from error
