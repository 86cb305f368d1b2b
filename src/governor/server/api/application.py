"""The ASGI application: routes a request, authenticates, decodes, and sends the response or a problem.

A request that needs no waiting, because its endpoint is immediate and its caller is known, is answered without a task.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive, Scope, Send

from governor.errors import GovernorError, Kind, invalid
from governor.process.flowcontrol.byte_budget import Reservation
from governor.process.telemetry import logging
from governor.process.tls import is_loopback
from governor.server.api import streams
from governor.server.api.bodies import decode_small, read_body
from governor.server.api.endpoints import PROBLEM, Access, Call, Endpoint, Events, Response, check_access, not_found
from governor.server.identity.known_credentials import Principal
from governor.server.services import Services
from governor.server.watch.hub import TOO_MANY_WATCHES
from governor.values.secret import Secret
from governor.wire.problems import problem

_ANONYMOUS: Final = Principal("nobody", "")
_LEGACY: Final = Principal("legacy", "", is_legacy=True)
_EXTRA_HEADERS: Final[dict[Kind, tuple[tuple[str, str], ...]]] = {
    Kind.UNAUTHENTICATED: (("WWW-Authenticate", "Bearer"),),
    Kind.UNAVAILABLE: (("Retry-After", "1"),),
}

_LIMITS: Final = {TOO_MANY_WATCHES: "watches", "busy": "bodies", "body-large": "bodies"}
"""Limits by the codes of their errors."""

_log = logging.get_logger(__name__)


class Application:
    """The ASGI application of a table of endpoints."""

    def __init__(self, services: Services, endpoints: Sequence[Endpoint]) -> None:
        by_path: dict[str, dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            by_path.setdefault(endpoint.route, {})[endpoint.method] = endpoint
        self._root = _Node()
        self._unknown = _Resource(services, "", {})
        for route, methods in by_path.items():
            self._root.add(route, _Resource(services, route, methods))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "http":
            resource, scope["path_params"] = self._route(scope["raw_path"].decode("ascii"))
            await resource.respond(scope, receive, send)

    def status_at_once(self, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> int | None:
        """Handle a request without query and waiting, and return the status of its response, which has no body.

        Return None, without an effect, if the request must be handled by calling the application.
        """
        resource, parameters = self._route(path)
        return resource.status_at_once(method, parameters, headers, body)

    def _route(self, path: str) -> "tuple[_Resource, dict[str, str]]":
        """Find the resource of a path as it was sent: an encoded slash is a part of a segment."""
        node, parameters = self._root, dict[str, str]()
        for segment in map(unquote, path.split("/")) if "%" in path else path.split("/"):
            found = node.literals.get(segment)
            if found is None:
                if node.parameter is None or not segment:
                    return self._unknown, {}
                parameters[node.parameter], found = segment, node.any
            node = found
        return (node.resource, parameters) if node.resource is not None else (self._unknown, {})


class _Node:
    """The paths with one beginning: the resource that has no more segments, and what the next segment may be."""

    __slots__ = ("_any", "literals", "parameter", "resource")

    def __init__(self) -> None:
        self.resource: _Resource | None = None
        self.literals: dict[str, _Node] = {}
        self.parameter: str | None = None
        self._any: _Node | None = None

    @property
    def any(self) -> "_Node":
        """The node behind a parameter."""
        if self._any is None:
            self._any = _Node()
        return self._any

    def add(self, route: str, resource: "_Resource") -> None:
        """Add a resource under a route, whose parameters are in braces."""
        node = self
        for segment in route.split("/"):
            if segment.startswith("{"):
                if node.parameter not in (None, segment[1:-1]):
                    raise ValueError(f"{route}: another route calls this parameter {node.parameter}")
                node.parameter = segment[1:-1]
                node = node.any
            else:
                node = node.literals.setdefault(segment, _Node())
        node.resource = resource


class _MethodNotAllowedError(GovernorError):
    """The path exists, but not with this method. Only HTTP has this error, so no kind maps to its status."""

    def __init__(self, methods: Iterable[str]) -> None:
        self.allowed = ", ".join(sorted(methods))
        super().__init__(Kind.UNIMPLEMENTED, "method-unknown", f"this path allows only {self.allowed}")

    def response(self) -> Response:
        return Response(msgspec.structs.replace(problem(self), status=405), 405, (("Allow", self.allowed),), PROBLEM)


class _Resource:
    """One path with its methods; no methods for unknown paths."""

    def __init__(self, services: Services, route: str, methods: Mapping[str, Endpoint]) -> None:
        self._services = services
        self._route = route
        self._methods = methods

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        status = 200
        try:
            endpoint = self._endpoint(scope["method"])
            async with asyncio.timeout(self._services.timing.response_s):
                with Reservation(self._services.held_bodies) as reserved:
                    call = await self._call(endpoint, scope, receive, reserved)
                    handled = endpoint.handler(call)
                    response = handled if isinstance(handled, Response) else await handled
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

    def status_at_once(
        self, method: str, path: Mapping[str, str], headers: list[tuple[bytes, bytes]], body: bytes
    ) -> int | None:
        """Handle a request and return the status of its response; None if that needs waiting, or is a problem."""
        endpoint = self._methods.get(method)
        if endpoint is None or not endpoint.immediate:
            return None
        try:
            call = self._call_at_once(endpoint, path, Headers(raw=headers), body)
            response = endpoint.handler(call) if call is not None else None
        except GovernorError:
            return None
        if not isinstance(response, Response):
            return None
        self._services.metrics.requests.labels(method, self._route, str(endpoint.status)).inc()
        return endpoint.status

    def _call_at_once(self, endpoint: Endpoint, path: Mapping[str, str], headers: Headers, body: bytes) -> Call | None:
        principal = self._services.identity.known(_credential(headers))
        if principal is None:
            return None
        check_access(endpoint.access, principal, path.get("runtime"))
        return Call(self._services, principal, path, {}, headers, decode_small(endpoint, headers, body))

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
    return Response(body, body.status, _EXTRA_HEADERS.get(error.kind, ()), PROBLEM)


async def _send(send: Send, response: Response) -> None:
    body = response.body or b"" if isinstance(response.body, bytes | None) else msgspec.json.encode(response.body)
    headers: list[tuple[bytes, bytes]] = [(name.lower().encode(), value.encode()) for name, value in response.headers]
    if response.body is not None:
        headers += [(b"content-type", response.media_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
