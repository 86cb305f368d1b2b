"""``/healthz``, ``/readyz`` and ``/metrics`` of a program. How they are served is ``httpserver``'s business."""

import http
import socket
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from governor.process.address import Address, bound_address
from governor.process.telemetry import logging
from governor.process.telemetry.http_server import (
    EXCHANGE_S,
    MOST_CONNECTIONS,
    Answer,
    HttpServer,
    Target,
    json_answer,
    text_answer,
)
from governor.process.telemetry.instruments import CONTENT_TYPE, Registry

Check: TypeAlias = Callable[[], str]
"""Says in words why something is not well; nothing when it is."""

_log = logging.get_logger(__name__)


class Verdict(msgspec.Struct, frozen=True):
    """The body of ``/healthz`` and ``/readyz``: whether all is well, and by name what is not."""

    ok: bool
    failing: dict[str, str]


class Checks:
    """What is asked about a program: ``alive`` (restart it if not) and ``ready`` (send it no work if not)."""

    def __init__(self) -> None:
        self._alive: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}

    def alive(self, name: str, check: Check) -> None:
        """Add a condition of being alive."""
        self._alive[name] = check

    def ready(self, name: str, check: Check) -> None:
        """Add a condition of being ready."""
        self._ready[name] = check

    def aliveness(self) -> Verdict:
        """Ask all conditions of being alive."""
        return _verdict(self._alive)

    def readiness(self) -> Verdict:
        """Ask all conditions of being ready; what is not alive is not ready."""
        return _verdict(self._alive | self._ready)


def _verdict(checks: Mapping[str, Check]) -> Verdict:
    failing = {name: reason for name, check in checks.items() if (reason := _reason(name, check))}
    return Verdict(ok=not failing, failing=failing)


def _reason(name: str, check: Check) -> str:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a broken check is an answer, not the end of the server
        _log.warning("health check raised", check=name, exc_info=error)
        return f"the check itself failed: {type(error).__name__}"


class HealthServer:
    """The server, on a socket that is already bound (``address.listen``), so that its port is known before it runs."""

    def __init__(
        self,
        listener: socket.socket,
        checks: Checks,
        registry: Registry,
        *,
        exchange_s: float = EXCHANGE_S,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        self._listener = listener
        self._checks = checks
        self._registry = registry
        self._server = HttpServer(
            "health", listener, self._answer, exchange_s=exchange_s, most_connections=most_connections
        )

    @property
    def address(self) -> Address:
        """Where the server really listens."""
        return bound_address(self._listener)

    async def run(self) -> None:
        """Serve until cancelled, then close the socket and all connections."""
        _log.info("health listens", address=str(self.address))
        await self._server.run()

    async def _answer(self, target: Target) -> Answer:
        match target.path:
            case "/healthz":
                return _verdict_answer(self._checks.aliveness())
            case "/readyz":
                return _verdict_answer(self._checks.readiness())
            case "/metrics":
                return Answer(http.HTTPStatus.OK, CONTENT_TYPE, self._registry.text().encode())
            case _:
                return text_answer(http.HTTPStatus.NOT_FOUND, "only /healthz, /readyz and /metrics are here\n")


def _verdict_answer(verdict: Verdict) -> Answer:
    return json_answer(http.HTTPStatus.OK if verdict.ok else http.HTTPStatus.SERVICE_UNAVAILABLE, verdict)
