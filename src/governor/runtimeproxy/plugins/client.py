"""Clients of the registered plugins: one connection and one circuit breaker per plugin.

The circuit of a plugin opens after several calls in a row that lost time, however they ended, or returned garbage. When
it may be retried, one call tries the plugin on a new connection; if the plugin closed the connection, for example
because it was restarted, the first call does so at once. What fails at once, as connecting to a plugin that is not
running, costs nothing and does not count. Nor does a timeout count if the caller's deadline left the plugin much less
time than configured.
"""

import random
from collections.abc import Iterator
from functools import partial
from typing import Final

from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import Breaker, BreakerPolicy
from governor.process.telemetry import logging
from governor.runtimeproxy.grpc.unary import Metadata, Result, UnaryCall, UnaryClient, request_fields
from governor.runtimeproxy.hooks.answers import differences
from governor.runtimeproxy.hooks.changes import Difference
from governor.runtimeproxy.hooks.handlers import Done, FailurePolicy, Handlers, Limits
from governor.runtimeproxy.hooks.questions import Question
from governor.runtimeproxy.http2.header_blocks import Fields
from governor.runtimeproxy.plugins.messages import QuestionEncoder, decode_answer
from governor.runtimeproxy.plugins.registration import EnvironmentMode, Registration
from governor.runtimeproxy.plugins.registry import Problem, Registrations
from governor.runtimeproxy.plugins.resync import Backlog, ResyncMetrics
from governor.values.selectors import mismatch as selector_mismatch
from governor.wire.hooks.points import Hook

_BREAKER_POLICY: Final = BreakerPolicy(failures=5, backoff=Backoff(initial_s=1.0, max_s=30.0))
_UNCONNECTED: Final = ("unreachable", "connection-lost")
_MAX_CACHED_HEADERS: Final = 64
_MIN_LOST_S: Final = 0.05
"""A lost connection counts as a failure if it took at least this long, or the share below of a shorter timeout."""
_MIN_TIMEOUT_SHARE: Final = 0.5
"""A timeout counts as a failure only if the plugin had at least this share of its configured timeout."""

_log = logging.get_logger(__name__)


class Plugins:
    """All registered plugins, as handlers of hooks.

    ``timeout_s`` applies to plugins whose file sets no timeout.
    """

    def __init__(self, clock: Clock, timeout_s: float, handlers: Handlers, metrics: ResyncMetrics) -> None:
        self.registrations = Registrations()
        self._metrics = metrics
        self._handlers = handlers
        self._clock = clock
        self._timeout_s = timeout_s
        self._rng = random.Random()  # noqa: S311 - jitter, not a secret
        self._clients: dict[tuple[str, str], PluginClient] = {}
        self._encoder = QuestionEncoder()

    def replace(self, registrations: Registrations) -> None:
        """Replace the registrations and retire the clients of removed plugins."""
        before, self.registrations = self.registrations, registrations
        _log_problems(set(registrations.problems) - set(before.problems))
        registered = {_key(each) for each in registrations.by_file.values()}
        for key in self._clients.keys() - registered:
            self._clients.pop(key).retire()
        if before.by_file != registrations.by_file:
            _log.info("plugins registered", plugins=sorted(each.name for each in registrations.by_file.values()))
            self._handlers.replace("plugins", [self._plugin(each) for each in registrations.by_file.values()])

    def _plugin(self, registration: Registration) -> "RemotePlugin":
        key = _key(registration)
        client = self._clients.get(key)
        if client is None:
            backlog = Backlog(registration.name, self._metrics)
            client = self._clients[key] = PluginClient(registration, self._clock, self._rng, backlog)
        client.synchronizes = registration.synchronizes
        return RemotePlugin(registration, client, self._encoder, registration.timeout_s or self._timeout_s)

    @property
    def clients(self) -> "list[PluginClient]":
        """Return the clients of all plugins."""
        return list(self._clients.values())

    def close(self) -> None:
        """Close all connections."""
        for each in self._clients.values():
            each.close()
        self._clients.clear()


class RemotePlugin:
    """A plugin that is asked on its socket."""

    def __init__(
        self, registration: Registration, client: "PluginClient", encoder: QuestionEncoder, timeout_s: float
    ) -> None:
        self.settings = registration
        self._client = client
        self._encoder = encoder
        self._min_timeout_s = _MIN_TIMEOUT_SHARE * timeout_s
        """A shorter call does not count as a failure of the plugin."""

    def selects(self, question: Question) -> bool:
        """Return whether the plugin is called about a pod or its containers."""
        return self.settings.selects(question.labels)

    def mismatch(self, question: Question) -> str:
        """Return why the plugin is not called about a pod or its containers, or ``""``."""
        return selector_mismatch(question.labels, self.settings.match_labels, self.settings.match_expressions)

    def prepare(self, question: Question) -> bytes:
        """Return the encoded question."""
        return self._encoder.encode(question, remembers_environment=self.settings.remembers_environment)

    def start(self, hook: Hook, message: bytes, limits: Limits, done: Done) -> "PluginCall":
        """Send a question; raise if the plugin's circuit is open."""
        call = partial(self._client.start, hook, message, limits.timeout_s, self._min_timeout_s, limits.metadata)
        # What a required plugin has missed, kubelet repeats.
        if not hook.is_post or self.settings.policies[hook] is FailurePolicy.FAIL:
            return call(done)

        def ended(result: Result) -> None:
            if isinstance(result, GovernorError):
                self._client.backlog.add(hook, message, result)
            done(result)

        try:
            return call(ended)
        except GovernorError as error:
            self._client.backlog.add(hook, message, error)
            raise

    def changes(self, hook: Hook, original: Question, asked: Question, response: bytes) -> Iterator[Difference]:
        """Return what the plugin changes by its response; raise INVALID if it cannot be used."""
        replaces = self.settings.environment is EnvironmentMode.REPLACE
        return differences(original, asked, decode_answer(hook, response), replace_environment=replaces)

    def unavailable(self) -> str:
        """Return why the plugin's circuit is open, or ``""``."""
        return self._client.circuit_open()


class PluginClient:
    """Connection and circuit breaker of one plugin."""

    def __init__(self, registration: Registration, clock: Clock, rng: random.Random, backlog: Backlog) -> None:
        self._clock = clock
        self.name = registration.name
        self.backlog = backlog
        self.synchronizes = False
        name = f"plugin {registration.name}"
        self._client = UnaryClient(registration.endpoint, name)
        self._breaker = Breaker(name, _BREAKER_POLICY, clock, rng)
        self._headers: dict[tuple[Hook, float], Fields] = {}
        """Header fields by hook and timeout, which seldom vary: encoded once."""
        self._calls = 0
        self._retired = False
        self._is_half_open = False
        """Whether one call is trying the plugin on a new connection."""
        self._may_retry_early = True
        """Whether a lost connection allows to try the plugin before the backoff does: not if that has lost time."""

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @property
    def connection(self) -> UnaryClient:
        """Return the connection, for calls without a hook."""
        return self._client

    def retire(self) -> None:
        """Close the connection once all running calls have ended."""
        self._retired = True
        self.backlog.drop()
        if not self._calls:
            self.close()

    def start(
        self, hook: Hook, message: bytes, timeout_s: float, min_timeout_s: float, metadata: Metadata, done: Done
    ) -> "PluginCall":
        """Call the plugin; raise UNAVAILABLE if its circuit is open.

        ``done`` is called later, once, unless the call is cancelled. It must report what it makes of the result.
        """
        is_early = self._breaker.is_open and self._can_retry_early
        if is_early:
            self._breaker.allow_probe()
        is_probe = self._breaker.check()
        if is_probe:
            # The connection alone may be stuck.
            self._client.close()
            self._is_half_open = True
        call = PluginCall(self, timeout_s, min_timeout_s, done, is_probe=is_probe, is_early=is_probe and is_early)
        self._calls += 1
        call.start(self._client, self._fields(hook, timeout_s, metadata), message)
        return call

    def _fields(self, hook: Hook, timeout_s: float, metadata: Metadata) -> Fields:
        if metadata:
            return request_fields(hook.path, timeout_s, metadata)
        fields = self._headers.get((hook, timeout_s))
        if fields is None:
            if len(self._headers) >= _MAX_CACHED_HEADERS:
                self._headers.clear()
            fields = self._headers[hook, timeout_s] = request_fields(hook.path, timeout_s)
        return fields

    @property
    def _can_retry_early(self) -> bool:
        return self._may_retry_early and not self._is_half_open and not self._client.connected

    def circuit_open(self) -> str:
        """Return why the circuit is open, or ``""``."""
        return "" if self._can_retry_early else self._breaker.open_reason()

    def monotonic(self) -> float:
        """Return the time of the clock that judges the plugin."""
        return self._clock.monotonic()

    def ended(self, *, was_probe: bool) -> None:
        """Count a call that has ended in any way."""
        self._calls -= 1
        if was_probe:
            self._is_half_open = False
        if self._retired:
            self.retire()

    def succeeded(self) -> None:
        """Record a response."""
        self._breaker.succeeded()
        self._may_retry_early = True

    def failed(self, error: GovernorError, *, is_early: bool) -> None:
        """Record a failure that lost time, or garbage."""
        self._breaker.failed(error)
        self._may_retry_early = self._may_retry_early and not is_early


class PluginCall:
    """One call of a plugin."""

    __slots__ = ("_call", "_client", "_done", "_is_early", "_is_probe", "_min_timeout_s", "_started_s", "_timeout_s")

    def __init__(
        self,
        client: PluginClient,
        timeout_s: float,
        min_timeout_s: float,
        done: Done,
        *,
        is_probe: bool,
        is_early: bool,
    ) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._min_timeout_s = min_timeout_s
        self._done = done
        self._is_probe = is_probe
        self._is_early = is_early
        self._started_s = client.monotonic()
        self._call: UnaryCall | None = None

    def start(self, client: UnaryClient, fields: Fields, message: bytes) -> None:
        """Send the request."""
        self._call = client.start(fields, message, self._timeout_s, self._ended)

    def cancel(self) -> None:
        """End the call without a result."""
        if self._call is not None and not self._call.is_over:
            self._call.cancel()
            self._client.ended(was_probe=self._is_probe)

    def _ended(self, result: Result) -> None:
        if isinstance(result, GovernorError):
            self.report(result)
        self._client.ended(was_probe=self._is_probe)
        self._done(result)

    def report(self, error: GovernorError | None) -> None:
        """Judge the plugin by its response, or by the error of using it."""
        if error is None or _is_response(error):
            self._client.succeeded()
        elif self._counts(error):
            self._client.failed(error, is_early=self._is_early)

    def _counts(self, error: GovernorError) -> bool:
        """Return whether a call without a response counts as a failure of the plugin."""
        if error.code in _UNCONNECTED:
            return self._client.monotonic() - self._started_s >= min(_MIN_LOST_S, self._min_timeout_s)
        # A plugin's gRPC library may reset the call when its deadline expires.
        is_timeout = error.kind is Kind.DEADLINE or error.code == "call-reset"
        return not (is_timeout and self._timeout_s < self._min_timeout_s)


def _is_response(error: GovernorError) -> bool:
    """Return whether the plugin responded with a status; DEADLINE_EXCEEDED is its library's report of a timeout."""
    return error.code == "grpc-status" and error.kind is not Kind.DEADLINE


def _key(registration: Registration) -> tuple[str, str]:
    return registration.name, registration.endpoint


def _log_problems(problems: set[Problem]) -> None:
    for problem in sorted(problems, key=str):
        event = "plugin file is invalid" if problem.is_error else "plugin file has a warning"
        _log.warning(event, problem=str(problem))
