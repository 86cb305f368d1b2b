"""Clients of the registered plugins: one connection and one circuit breaker per plugin.

The circuit of a plugin that repeatedly times out or returns garbage opens; when it may be retried, one call tries the
plugin on a new connection. An unreachable plugin fails at once and does not count. A reconnect, for example after a
restart of the plugin, closes the circuit. Nor does a timeout count if the caller's deadline left the plugin much less
time than configured.
"""

import random
from collections.abc import Callable
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import Breaker, BreakerPolicy
from governor.process.telemetry import logging
from governor.runtimeproxy.grpc.unary import Metadata, UnaryClient
from governor.runtimeproxy.plugins.registration import Registration
from governor.runtimeproxy.plugins.registry import Problem, Registrations
from governor.wire.hooks.points import Hook, HookRequest, HookResponse, decode_response

_BREAKER_POLICY: Final = BreakerPolicy(failures=5, backoff=Backoff(initial_s=1.0, max_s=30.0))
_NOT_COUNTED: Final = ("unreachable", "connection-lost")
_MIN_TIMEOUT_SHARE: Final = 0.5
"""A timeout counts as a failure only if the plugin had at least this share of its configured timeout."""

_log = logging.get_logger(__name__)


class Plugins:
    """All registered plugins; ``changed`` is called after the registrations have changed.

    ``timeout_s`` applies to plugins whose file sets no timeout.
    """

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self.registrations = Registrations()
        self.changed: Callable[[], None] = lambda: None
        self._clock = clock
        self._timeout_s = timeout_s
        self._rng = random.Random()  # noqa: S311 - jitter, not a secret
        self._clients: dict[tuple[str, str], PluginClient] = {}

    def replace(self, registrations: Registrations) -> None:
        """Replace the registrations and retire the clients of removed plugins."""
        before, self.registrations = self.registrations, registrations
        _log_problems(set(registrations.problems) - set(before.problems))
        registered = {_key(each) for each in registrations.by_file.values()}
        for key in self._clients.keys() - registered:
            self._clients.pop(key).retire()
        if before.by_file != registrations.by_file:
            _log.info("plugins registered", plugins=sorted(each.name for each in registrations.by_file.values()))
            self.changed()

    async def call(
        self, registration: Registration, hook: Hook, request: HookRequest, timeout_s: float, metadata: Metadata
    ) -> HookResponse:
        """Call a plugin and return its response; raise GovernorError if the call fails."""
        key = _key(registration)
        if key not in self._clients:
            self._clients[key] = PluginClient(registration, self._clock, self._rng)
        min_timeout_s = _MIN_TIMEOUT_SHARE * (registration.timeout_s or self._timeout_s)
        call = _HookCall(hook, request, metadata, timeout_s, is_shortened=timeout_s < min_timeout_s)
        return await self._clients[key].call(call)

    def circuit_open(self, registration: Registration) -> str:
        """Return why a plugin's circuit is open, or ``""``."""
        client = self._clients.get(_key(registration))
        return client.circuit_open() if client is not None else ""

    def close(self) -> None:
        """Close all connections."""
        for each in self._clients.values():
            each.close()
        self._clients.clear()


class _HookCall(msgspec.Struct, frozen=True):
    """One call of a plugin."""

    hook: Hook
    request: HookRequest
    metadata: Metadata
    timeout_s: float
    is_shortened: bool
    """Whether the caller's deadline left the plugin too little time for a timeout to count."""


class PluginClient:
    """Connection and circuit breaker of one plugin."""

    def __init__(self, registration: Registration, clock: Clock, rng: random.Random) -> None:
        self._name = f"plugin {registration.name}"
        self._clock = clock
        self._rng = rng
        self._client = UnaryClient(registration.endpoint, self._name)
        self._breaker = self._new_breaker()
        self._calls = 0
        self._retired = False
        self._is_half_open = False
        """Whether one call is trying the plugin on a new connection."""

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def retire(self) -> None:
        """Close the connection once all running calls have ended."""
        self._retired = True
        if not self._calls:
            self.close()

    async def call(self, call: _HookCall) -> HookResponse:
        """Call the plugin and return its response."""
        self._calls += 1
        try:
            return await self._call_through_breaker(call)
        finally:
            self._calls -= 1
            if self._retired:
                self.retire()

    async def _call_through_breaker(self, call: _HookCall) -> HookResponse:
        if not (self._client.connected or self._is_half_open):
            self._breaker = self._new_breaker()
        if not self._breaker.check():
            return await self._call(call)
        # The connection alone may be stuck.
        self._client.close()
        self._is_half_open = True
        try:
            return await self._call(call)
        finally:
            self._is_half_open = False

    async def _call(self, call: _HookCall) -> HookResponse:
        hook, message = call.hook, call.request.SerializeToString()
        try:
            raw = await self._client.call(hook.path, message, timeout_s=call.timeout_s, metadata=call.metadata)
            response = decode_response(hook, raw)
        except GovernorError as error:
            self._count_failure(error, is_shortened=call.is_shortened)
            raise
        self._breaker.succeeded()
        return response

    def circuit_open(self) -> str:
        """Return why the circuit is open, or ``""``."""
        return self._breaker.open_reason() if self._client.connected or self._is_half_open else ""

    def _count_failure(self, error: GovernorError, *, is_shortened: bool) -> None:
        """Count timeouts and garbage as failures; a status other than DEADLINE_EXCEEDED is a valid response.

        A plugin's gRPC library may report the timeout first, by a status or a reset.
        """
        if is_shortened and (error.kind is Kind.DEADLINE or error.code == "call-reset"):
            return
        if error.code == "grpc-status" and error.kind is not Kind.DEADLINE:
            self._breaker.succeeded()
        elif error.code not in _NOT_COUNTED:
            self._breaker.failed(error)

    def _new_breaker(self) -> Breaker:
        return Breaker(self._name, _BREAKER_POLICY, self._clock, self._rng)


def _key(registration: Registration) -> tuple[str, str]:
    return registration.name, registration.endpoint


def _log_problems(problems: set[Problem]) -> None:
    for problem in sorted(problems, key=str):
        event = "plugin file is invalid" if problem.is_error else "plugin file has a warning"
        _log.warning(event, problem=str(problem))
