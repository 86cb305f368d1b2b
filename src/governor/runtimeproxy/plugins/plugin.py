"""The plugins in force: who is registered, and asking one of them within its time.

A plugin that hangs or answers nonsense again and again is left alone for a while, then one call tries it on a new
connection. One that cannot be reached costs no time, so it is tried each time; one that was restarted is trusted anew.
One that was given much less than its time, as the caller was in a hurry, is not known to hang.
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
from governor.wire.hooks.points import Hook, Request, Response, decode_response

_TOLERANCE: Final = BreakerPolicy(failures=5, backoff=Backoff(initial_s=1.0, max_s=30.0))
_COSTS_NOTHING: Final = ("unreachable", "connection-lost")
_FAIR_PART: Final = 0.5
"""What of its time a plugin must have had to be known to hang."""

_log = logging.get_logger(__name__)


class Plugins:
    """All registered plugins; ``changed`` is called when there are others.

    ``timeout_s`` is what a plugin may take whose file does not say it.
    """

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self.registrations = Registrations()
        self.changed: Callable[[], None] = lambda: None
        self._clock = clock
        self._timeout_s = timeout_s
        self._chance = random.Random()  # noqa: S311 - spreads waits, keeps no secret
        self._plugins: dict[tuple[str, str], Plugin] = {}

    def replace(self, registrations: Registrations) -> None:
        """Other registrations are in force from now on."""
        before, self.registrations = self.registrations, registrations
        _report(set(registrations.problems) - set(before.problems))
        wanted = {_key(each) for each in registrations.by_file.values()}
        for key in self._plugins.keys() - wanted:
            self._plugins.pop(key).leave()
        if before.by_file != registrations.by_file:
            _log.info("plugins are in force", plugins=sorted(each.name for each in registrations.by_file.values()))
            self.changed()

    async def ask(
        self, registration: Registration, hook: Hook, question: Request, timeout_s: float, metadata: Metadata
    ) -> Response:
        """What the plugin answers; any GovernorError if it does not."""
        key = _key(registration)
        if key not in self._plugins:
            self._plugins[key] = Plugin(registration, self._clock, self._chance)
        fair_s = _FAIR_PART * (registration.timeout_s or self._timeout_s)
        inquiry = _Inquiry(hook, question, metadata, timeout_s, is_hurried=timeout_s < fair_s)
        return await self._plugins[key].ask(inquiry)

    def left_alone(self, registration: Registration) -> str:
        """Why a plugin is not asked for a while, or nothing."""
        plugin = self._plugins.get(_key(registration))
        return plugin.left_alone() if plugin is not None else ""

    def close(self) -> None:
        """Let go of all connections."""
        for each in self._plugins.values():
            each.close()
        self._plugins.clear()


class _Inquiry(msgspec.Struct, frozen=True):
    """What a plugin is asked, and how long it may take."""

    hook: Hook
    question: Request
    metadata: Metadata
    timeout_s: float
    is_hurried: bool
    """Who does not answer in so little time is not known to hang."""


class Plugin:
    """The connection with one plugin, and whether it is worth a try."""

    def __init__(self, registration: Registration, clock: Clock, chance: random.Random) -> None:
        self._name = f"plugin {registration.name}"
        self._clock = clock
        self._chance = chance
        self._client = UnaryClient(registration.endpoint, self._name)
        self._breaker = self._new_breaker()
        self._asked = 0
        self._leaving = False
        self._trying = False
        """One call tries, on a new connection, whether it is well again."""

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def leave(self) -> None:
        """Nobody will ask it any more; who does now gets an answer: an operator's change must not fail a call."""
        self._leaving = True
        if not self._asked:
            self.close()

    async def ask(self, inquiry: _Inquiry) -> Response:
        """What it answers."""
        self._asked += 1
        try:
            return await self._ask(inquiry)
        finally:
            self._asked -= 1
            if self._leaving:
                self.leave()

    async def _ask(self, inquiry: _Inquiry) -> Response:
        if not (self._client.connected or self._trying):
            self._breaker = self._new_breaker()
        if not self._breaker.check():
            return await self._call(inquiry)
        # What hangs may be the connection alone.
        self._client.close()
        self._trying = True
        try:
            return await self._call(inquiry)
        finally:
            self._trying = False

    async def _call(self, inquiry: _Inquiry) -> Response:
        hook, message = inquiry.hook, inquiry.question.SerializeToString()
        try:
            raw = await self._client.call(hook.path, message, timeout_s=inquiry.timeout_s, metadata=inquiry.metadata)
            answer = decode_response(hook, raw)
        except GovernorError as error:
            self._failed(error, is_hurried=inquiry.is_hurried)
            raise
        self._breaker.succeeded()
        return answer

    def left_alone(self) -> str:
        """Why it is not asked now, or nothing."""
        return self._breaker.open_reason() if self._client.connected or self._trying else ""

    def _failed(self, error: GovernorError, *, is_hurried: bool) -> None:
        """A status is an answer; only what costs time or means nothing speaks against the plugin.

        That the time is over is said by the plugin's library, by a status or by breaking off, if it comes before us.
        """
        if is_hurried and (error.kind is Kind.DEADLINE or error.code == "call-reset"):
            return
        if error.code == "grpc-status" and error.kind is not Kind.DEADLINE:
            self._breaker.succeeded()
        elif error.code not in _COSTS_NOTHING:
            self._breaker.failed(error)

    def _new_breaker(self) -> Breaker:
        return Breaker(self._name, _TOLERANCE, self._clock, self._chance)


def _key(registration: Registration) -> tuple[str, str]:
    return registration.name, registration.endpoint


def _report(problems: set[Problem]) -> None:
    for problem in sorted(problems, key=str):
        _log.warning("a plugin's file is wrong" if problem.is_error else "a plugin's file is odd", problem=str(problem))
