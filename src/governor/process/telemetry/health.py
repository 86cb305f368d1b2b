"""The endpoints ``/healthz``, ``/readyz`` and ``/metrics`` of a program, served by ``http_server``."""

import http
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import msgspec

from governor.process.address import Address, bound_address
from governor.process.telemetry import logging
from governor.process.telemetry.http_server import (
    EXCHANGE_TIMEOUT_S,
    MAX_CONNECTIONS,
    HttpServer,
    Response,
    Target,
    json_response,
    text_response,
)
from governor.process.telemetry.instruments import CONTENT_TYPE, Registry

Check: TypeAlias = Callable[[], str]
"""Returns the reason for a failure, or ``""`` if all is well."""

_log = logging.get_logger(__name__)


class Health(msgspec.Struct, frozen=True):
    """The body of ``/healthz`` and ``/readyz``; ``failing`` maps the name of a failing check to its reason."""

    ok: bool
    failing: dict[str, str]


class Checks:
    """Liveness checks (restart the program if one fails) and readiness checks (send it no work if one fails)."""

    def __init__(self) -> None:
        self._alive: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}

    def alive(self, name: str, check: Check) -> None:
        """Add a liveness check."""
        self._alive[name] = check

    def ready(self, name: str, check: Check) -> None:
        """Add a readiness check."""
        self._ready[name] = check

    @contextmanager
    def including(self, other: "Checks") -> Iterator[None]:
        """Run the checks of another one too for the duration of the block, as they are when it begins."""
        alive, ready = self._alive, self._ready
        self._alive, self._ready = alive | other._alive, ready | other._ready  # noqa: SLF001 - of the same class
        try:
            yield
        finally:
            self._alive, self._ready = alive, ready

    def liveness(self) -> Health:
        """Run all liveness checks."""
        return _run(self._alive)

    def readiness(self) -> Health:
        """Run all checks: a program that is not alive is not ready."""
        return _run(self._alive | self._ready)


def _run(checks: Mapping[str, Check]) -> Health:
    failing = {name: reason for name, check in checks.items() if (reason := _reason(name, check))}
    return Health(ok=not failing, failing=failing)


def _reason(name: str, check: Check) -> str:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a check that raises has failed
        _log.warning("health check raised", check=name, exc_info=error)
        return f"the check itself failed: {type(error).__name__}"


class HealthServer:
    """The health server, on a socket that is already bound (``address.listen``)."""

    def __init__(
        self,
        listener: socket.socket,
        checks: Checks,
        registry: Registry,
        *,
        exchange_timeout_s: float = EXCHANGE_TIMEOUT_S,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._listener = listener
        self._checks = checks
        self._registry = registry
        self._server = HttpServer(
            "health", listener, self._handle, exchange_timeout_s=exchange_timeout_s, max_connections=max_connections
        )

    @property
    def address(self) -> Address:
        """The bound address."""
        return bound_address(self._listener)

    def pause(self) -> None:
        """Accept no more connections; open ones continue."""
        self._server.pause()

    async def resume(self) -> None:
        """Accept connections again."""
        await self._server.resume()

    async def run(self) -> None:
        """Serve until cancelled, then close the socket and all connections."""
        _log.info("health server listening", address=str(self.address))
        await self._server.run()

    async def _handle(self, target: Target) -> Response:
        match target.path:
            case "/healthz":
                return _health_response(self._checks.liveness())
            case "/readyz":
                return _health_response(self._checks.readiness())
            case "/metrics":
                return Response(http.HTTPStatus.OK, CONTENT_TYPE, self._registry.text().encode())
            case _:
                return text_response(http.HTTPStatus.NOT_FOUND, "not found: use /healthz, /readyz or /metrics\n")


def _health_response(health: Health) -> Response:
    return json_response(http.HTTPStatus.OK if health.ok else http.HTTPStatus.SERVICE_UNAVAILABLE, health)
