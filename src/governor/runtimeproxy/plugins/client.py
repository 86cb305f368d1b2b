"""Clients of the registered plugins: one connection and one circuit breaker per plugin.

The circuit of a plugin opens after several calls in a row that lost time, however they ended, or returned garbage. When
it may be retried, one call tries the plugin on a new connection; if the plugin closed the connection, for example
because it was restarted, the first call does so at once. What fails at once, as connecting to a plugin that is not
running, costs nothing and does not count. Nor does a timeout count if the caller's deadline left the plugin much less
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
_UNCONNECTED: Final = ("unreachable", "connection-lost")
_MIN_LOST_S: Final = 0.05
"""A lost connection counts as a failure if it took at least this long, or the share below of a shorter timeout."""
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
        call = _HookCall(hook, request, metadata, timeout_s, min_timeout_s)
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
    min_timeout_s: float
    """A shorter timeout, because of the caller's deadline, does not count as a failure."""


class PluginClient:
    """Connection and circuit breaker of one plugin."""

    def __init__(self, registration: Registration, clock: Clock, rng: random.Random) -> None:
        self._name = f"plugin {registration.name}"
        self._clock = clock
        self._client = UnaryClient(registration.endpoint, self._name)
        self._breaker = Breaker(self._name, _BREAKER_POLICY, clock, rng)
        self._calls = 0
        self._retired = False
        self._is_half_open = False
        """Whether one call is trying the plugin on a new connection."""
        self._may_retry_early = True
        """Whether a lost connection allows to try the plugin before the backoff does: not if that has lost time."""

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
        is_early = self._can_retry_early
        if is_early:
            self._breaker.allow_probe()
        if not self._breaker.check():
            return await self._call(call)
        # The connection alone may be stuck.
        self._client.close()
        self._is_half_open = True
        try:
            return await self._call(call, is_early=is_early)
        finally:
            self._is_half_open = False

    @property
    def _can_retry_early(self) -> bool:
        return self._may_retry_early and not self._client.connected and not self._is_half_open

    async def _call(self, call: _HookCall, *, is_early: bool = False) -> HookResponse:
        hook, message = call.hook, call.request.SerializeToString()
        started_s = self._clock.monotonic()
        try:
            raw = await self._client.call(hook.path, message, timeout_s=call.timeout_s, metadata=call.metadata)
            response = decode_response(hook, raw)
        except GovernorError as error:
            if _is_response(error):
                self._succeeded()
            elif _counts(error, call, self._clock.monotonic() - started_s):
                self._breaker.failed(error)
                self._may_retry_early = self._may_retry_early and not is_early
            raise
        self._succeeded()
        return response

    def _succeeded(self) -> None:
        self._breaker.succeeded()
        self._may_retry_early = True

    def circuit_open(self) -> str:
        """Return why the circuit is open, or ``""``."""
        return "" if self._can_retry_early else self._breaker.open_reason()


def _is_response(error: GovernorError) -> bool:
    """Return whether the plugin responded with a status; DEADLINE_EXCEEDED is its library's report of a timeout."""
    return error.code == "grpc-status" and error.kind is not Kind.DEADLINE


def _counts(error: GovernorError, call: _HookCall, lost_s: float) -> bool:
    """Return whether a call without a response counts as a failure of the plugin."""
    if error.code in _UNCONNECTED:
        return lost_s >= min(_MIN_LOST_S, call.min_timeout_s)
    # A plugin's gRPC library may reset the call when its deadline expires.
    is_timeout = error.kind is Kind.DEADLINE or error.code == "call-reset"
    return not (is_timeout and call.timeout_s < call.min_timeout_s)


def _key(registration: Registration) -> tuple[str, str]:
    return registration.name, registration.endpoint


def _log_problems(problems: set[Problem]) -> None:
    for problem in sorted(problems, key=str):
        event = "plugin file is invalid" if problem.is_error else "plugin file has a warning"
        _log.warning(event, problem=str(problem))
