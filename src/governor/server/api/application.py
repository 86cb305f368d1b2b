"""The ASGI application: routes a request, authenticates, decodes, and sends the response or a problem."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from governor.errors import GovernorError, Kind, invalid
from governor.process.flowcontrol.byte_budget import Reservation
from governor.process.telemetry import logging
from governor.process.tls import is_loopback
from governor.server.api import streams
from governor.server.api.bodies import read_body
from governor.server.api.endpoints import Access, Call, Endpoint, Events, Response, check_access, not_found
from governor.server.identity.known_credentials import Principal
from governor.server.services import Services
from governor.server.watch.hub import TOO_MANY_WATCHES
from governor.values.secret import Secret
from governor.wire.problems import problem

_ANONYMOUS: Final = Principal("nobody", "")
_LEGACY: Final = Principal("legacy", "", is_legacy=True)
_PROBLEM: Final = "application/problem+json"
_EXTRA_HEADERS: Final[dict[Kind, tuple[tuple[str, str], ...]]] = {
    Kind.UNAUTHENTICATED: (("WWW-Authenticate", "Bearer"),),
    Kind.UNAVAILABLE: (("Retry-After", "1"),),
}

_LIMITS: Final = {TOO_MANY_WATCHES: "watches", "busy": "bodies", "body-large": "bodies"}
"""Limits by the codes of their errors."""

_log = logging.get_logger(__name__)


def application(services: Services, endpoints: Sequence[Endpoint]) -> ASGIApp:
    """Return the ASGI application for a table of endpoints."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.route, {})[endpoint.method] = endpoint
    routes = [Route(path, _Resource(services, path, methods)) for path, methods in by_path.items()]
    return Router(routes, redirect_slashes=False, default=_Resource(services, "", {}))


class _MethodNotAllowedError(GovernorError):
    """The path exists, but not with this method. Only HTTP has this error, so no kind maps to its status."""

    def __init__(self, methods: Iterable[str]) -> None:
        self.allowed = ", ".join(sorted(methods))
        super().__init__(Kind.UNIMPLEMENTED, "method-unknown", f"this path allows only {self.allowed}")

    def response(self) -> Response:
        return Response(msgspec.structs.replace(problem(self), status=405), 405, (("Allow", self.allowed),), _PROBLEM)


class _Resource:
    """One path with its methods; no methods for unknown paths."""

    def __init__(self, services: Services, route: str, methods: Mapping[str, Endpoint]) -> None:
        self._services = services
        self._route = route
        self._methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status = 200
        try:
            endpoint = self._endpoint(scope["method"])
            async with asyncio.timeout(self._services.timing.response_s):
                with Reservation(self._services.held_bodies) as reserved:
                    call = await self._call(endpoint, scope, receive, reserved)
                    response = await endpoint.handler(call)
            if isinstance(response, Events):
                await streams.respond(response, call.principal.credential, self._services, scope, send)
            else:
                status = response.status
                await _send(send, response)
        except Exception as error:  # noqa: BLE001 - every error becomes a problem response
            if isinstance(error, GovernorError) and error.code in _LIMITS:
                self._services.metrics.rejected.labels(_LIMITS[error.code]).inc()
            response = _problem_response(error, self._route)
            status = response.status
            await _send(send, response)
        self._services.metrics.requests.labels(self._method_label(scope), self._route, str(status)).inc()

    def _method_label(self, scope: Scope) -> str:
        return scope["method"] if scope["method"] in self._methods else "other"

    def _endpoint(self, method: str) -> Endpoint:
        if not self._methods:
            raise not_found("such path; see openapi.json for all paths")
        if method not in self._methods:
            raise _MethodNotAllowedError(self._methods)
        return self._methods[method]

    async def _call(self, endpoint: Endpoint, scope: Scope, receive: Receive, reserved: Reservation) -> Call:
        headers, path = Headers(scope=scope), scope["path_params"]
        principal = _ANONYMOUS
        if endpoint.access is Access.LEGACY and self._services.legacy_open and _host_is_loopback(headers):
            principal = _LEGACY
        elif endpoint.access is not Access.PUBLIC:
            principal = await self._services.identity.authenticate(_credential(headers))
            check_access(endpoint.access, principal, path.get("runtime"))
        query = _query(endpoint, scope)
        timeout_s, worker = self._services.timing.body_s, self._services.worker
        body = await read_body(endpoint, headers, receive, timeout_s, worker, reserved)
        return Call(self._services, principal, path, query, headers, body)


def _host_is_loopback(headers: Headers) -> bool:
    """Return whether Host is loopback; a web page that reaches loopback by DNS rebinding has another Host."""
    try:
        return is_loopback(urlsplit(f"//{headers.get('host', '')}").hostname or "")
    except ValueError:
        return False


def _credential(headers: Headers) -> Secret:
    scheme, _, text = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not text.strip():
        message = "a token is required: send it as `Authorization: Bearer TOKEN`"
        raise GovernorError(Kind.UNAUTHENTICATED, "token-missing", message)
    return Secret(text.strip())


def _query(endpoint: Endpoint, scope: Scope) -> Mapping[str, str]:
    query, known = QueryParams(scope["query_string"]), [each.name for each in endpoint.query]
    if unknown := [name for name in query if name not in known]:
        hint = f"known: {', '.join(known)}" if known else "this endpoint has none"
        raise invalid("query-unknown", f"unknown query parameter {unknown[0]!r}; {hint}")
    return query


def _problem_response(error: Exception, route: str) -> Response:
    if isinstance(error, _MethodNotAllowedError):
        return error.response()
    if isinstance(error, TimeoutError):
        error = GovernorError(Kind.DEADLINE, "answer-slow", "the server did not respond in time; retry")
    if not isinstance(error, GovernorError):
        _log.error("request failed", route=route, exc_info=error)
        error = GovernorError(Kind.INTERNAL, "internal", "internal error; see the server's log")
    elif error.kind is Kind.INTERNAL:
        _log.error("request failed", route=route, code=error.code, error=error.message)
    body = problem(error)
    return Response(body, body.status, _EXTRA_HEADERS.get(error.kind, ()), _PROBLEM)


async def _send(send: Send, response: Response) -> None:
    body = response.body or b"" if isinstance(response.body, bytes | None) else msgspec.json.encode(response.body)
    headers: list[tuple[bytes, bytes]] = [(name.lower().encode(), value.encode()) for name, value in response.headers]
    if response.body is not None:
        headers += [(b"content-type", response.media_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
