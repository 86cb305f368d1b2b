"""The plugins of one hook, called one after another for one held call.

Everything happens in callbacks of the event loop: most calls need neither a task nor a wait. Large messages are encoded
and merged in a thread, one at a time, so that other calls do not wait for them, and only what is needed of them is kept
while a plugin works.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.process.telemetry import logging
from governor.runtimeproxy.grpc.deadlines import allowance_s
from governor.runtimeproxy.grpc.unary import Result
from governor.runtimeproxy.hooks.answers import Answer, differences
from governor.runtimeproxy.hooks.changes import ConflictPolicy
from governor.runtimeproxy.hooks.held_call import Applied, Held, Rejected
from governor.runtimeproxy.hooks.merge import MergedRequest, begin
from governor.runtimeproxy.hooks.questions import Question
from governor.runtimeproxy.hooks.requests import Codec, Message
from governor.runtimeproxy.metrics import HookMetrics
from governor.runtimeproxy.ops import audit
from governor.runtimeproxy.plugins.client import PluginCall, Plugins
from governor.runtimeproxy.plugins.messages import QuestionEncoder, decode_answer
from governor.runtimeproxy.plugins.registration import EnvironmentMode, FailurePolicy, Registration
from governor.runtimeproxy.plugins.registry import skips
from governor.runtimeproxy.store.records import Records
from governor.wire.hooks.points import Hook

LARGE_BYTES: Final = 128 * 1024
"""Messages above this size are processed in a thread."""
_INTERRUPTED: Final = "the call ended before the plugin responded"

T = TypeVar("T")
Finish: TypeAlias = Callable[[Exception | None], None]
"""Receives None, a Rejected, or the error because of which plugins could not be called."""

_log = logging.get_logger(__name__)


class HookSettings(msgspec.Struct, frozen=True):
    """The settings that concern hooks."""

    plugin_timeout_s: float
    conflicts: ConflictPolicy
    skip_key: str
    skip_value: str


class HookContext(msgspec.Struct, frozen=True):
    """What all rounds use."""

    codec: Codec
    plugins: Plugins
    encoder: QuestionEncoder
    records: Records
    settings: HookSettings
    metrics: HookMetrics
    thread: Executor
    """Processes large messages, one at a time."""


class Round:
    """Calls of plugins that only notify them; ``MergingRound`` merges their responses."""

    def __init__(self, context: HookContext, held: Held, hook: Hook, reserve_s: float, finish: Finish) -> None:
        self._context = context
        self._held = held
        self._hook = hook
        self._reserve_s = reserve_s
        self._finish: Finish | None = finish
        self._question: Question | None = None
        self._registrations: tuple[Registration, ...] = ()
        self._timeouts_s: list[float] = []
        self._index = 0
        self._call: PluginCall | None = None
        self._started_s = 0.0
        held.work = self

    @property
    def _registration(self) -> Registration:
        return self._registrations[self._index]

    def start(self, question: Question) -> None:
        """Call the first plugin that selects the pod; end at once if there is none."""
        self._guard(partial(self._begin, question))

    def cancel(self) -> None:
        """Cancel the call of the current plugin; the round ends without a result."""
        self._finish = None
        if self._call is not None:
            self._call.cancel()
            self._observe("failed", _INTERRUPTED)

    def _guard(self, step: Callable[[], None]) -> None:
        """Run a step; whatever it raises ends the round."""
        if self._finish is None:
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001 - passed on
            self._end(error)

    def _end(self, error: Exception | None = None) -> None:
        finish, self._finish = self._finish, None
        if finish is not None:
            finish(error)

    def _begin(self, question: Question) -> None:
        settings = self._context.settings
        self._question = question
        if not skips(settings.skip_key, settings.skip_value, question.labels, question.annotations):
            self._registrations = self._context.plugins.registrations.selecting(self._hook, question.labels)
            self._timeouts_s = [each.timeout_s or settings.plugin_timeout_s for each in self._registrations]
        self._next()

    def _next(self) -> None:
        if self._index == len(self._registrations):
            self._complete()
        else:
            self._run(self._encode, self._call_plugin)

    def _complete(self) -> None:
        self._end()

    def _encode(self) -> bytes:
        """Return the hook request for the current plugin."""
        if self._question is None:
            raise RuntimeError("the round has no question")
        remembers = self._registration.remembers_environment
        return self._context.encoder.encode(self._question, remembers_environment=remembers)

    def _call_plugin(self, message: bytes) -> None:
        registration, plugins = self._registration, self._context.plugins
        self._started_s = time.perf_counter()
        timeout_s = allowance_s(self._held.left_s(self._reserve_s), self._timeouts_s[self._index :])
        if timeout_s <= 0:
            self._failed(GovernorError(Kind.DEADLINE, "no-time", "the call's deadline leaves no time for this plugin"))
            return
        client, min_timeout_s = plugins.client(registration), plugins.min_timeout_s(registration)
        try:
            self._call = client.start(
                self._hook, message, timeout_s, min_timeout_s, self._held.metadata, self._responded
            )
        except GovernorError as error:
            self._failed(error)

    def _responded(self, result: Result) -> None:
        self._guard(partial(self._handle, result))

    def _handle(self, result: Result) -> None:
        call, self._call = self._call, None
        if isinstance(result, GovernorError):
            self._failed(result)
        elif call is not None:
            self._observe("answered", "")
            self._run(partial(self._use, result), partial(self._used, call))

    def _use(self, response: bytes) -> GovernorError | None:
        """Process a response; return why it cannot be used, if so."""
        try:
            self._merge(decode_answer(self._hook, response))
        except GovernorError as error:
            return error
        return None

    def _merge(self, answer: Answer) -> None:
        """Use a decoded response."""

    def _used(self, call: PluginCall, error: GovernorError | None) -> None:
        # A conflict between plugins, or a value out of range, is not the fault of its connection.
        call.report(error if error is not None and error.code == "hook-message" else None)
        if error is not None:
            self._held.mark_plugin_failed(error.message)
            self._apply_policy(error)
        self._index += 1
        self._next()

    def _failed(self, error: GovernorError) -> None:
        self._observe("failed", error.message)
        self._apply_policy(error)
        self._index += 1
        self._next()

    def _observe(self, result: str, error: str) -> None:
        name, seconds = self._registration.name, time.perf_counter() - self._started_s
        self._context.metrics.count_plugin_call(name, self._hook, result, seconds)
        self._held.add_plugin_call(name, self._hook, seconds, error)

    def _apply_policy(self, error: GovernorError) -> None:
        """Raise Rejected if the plugin's failure rejects the call."""
        registration, hook = self._registration, self._hook
        is_rejected = registration.policies[hook] is FailurePolicy.FAIL or error.code == "plugins-conflict"
        _log.warning(
            "plugin failed",
            plugin=registration.name,
            hook=str(hook),
            refused=is_rejected,
            error=str(error),
            **audit.pod_fields(self._held.subject),
        )
        if is_rejected:
            message = f"plugin {registration.name} rejected {hook}: {error.message}"
            raise Rejected(error.kind, message) from error

    def _run(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Do work, then continue with its result."""
        then(work())


class MergingRound(Round):
    """Calls of plugins that may change a request; ``body`` is the request as received."""

    def __init__(
        self,
        context: HookContext,
        held: Held,
        hook: Hook,
        reserve_s: float,
        finish: Finish,
        body: bytes,
        apply: Callable[[MergedRequest], Applied],
    ) -> None:
        super().__init__(context, held, hook, reserve_s, finish)
        self._body = body
        self._apply = apply
        self._is_large = len(body) > LARGE_BYTES
        self._merged: MergedRequest | None = None
        self._progress: tuple[Any, Any, Any] = ((), (), ())
        """Changes, conflicts and unused changes so far."""

    def start_with(self, message: Message) -> None:
        """Call the first plugin that selects the request's pod."""
        self._guard(lambda: self._run(partial(self._first, message), self._begin))

    def _complete(self) -> None:
        self._run(lambda: self._apply(self._resumed()), self._applied)

    def _applied(self, applied: Applied) -> None:
        metrics = self._context.metrics
        if applied.conflicts:
            metrics.conflicts.inc(len(applied.conflicts))
        for change in applied.changes:
            metrics.changes.labels(change.plugin).inc()
        self._held.apply(applied)
        self._end()

    def _first(self, message: Message) -> Question:
        self._merged = begin(message, self._context.records)
        return self._merged.question

    def _encode(self) -> bytes:
        self._question = self._resumed().question
        message = super()._encode()
        self._suspend()
        return message

    def _merge(self, answer: Answer) -> None:
        registration, merged = self._registration, self._resumed()
        replaces = registration.environment is EnvironmentMode.REPLACE
        changed = differences(merged.original, merged.question, answer, replace_environment=replaces)
        self._merged = merged.add(registration.name, changed, self._context.settings.conflicts)
        self._progress = self._merged.applied, self._merged.conflicts, self._merged.unused
        self._suspend()

    def _suspend(self) -> None:
        """Keep only the body of a large request while a plugin works: decoded, it takes several times the memory."""
        if self._is_large:
            self._merged = self._question = None

    def _resumed(self) -> MergedRequest:
        if self._merged is None:
            message = self._context.codec.read(self._held.call, self._body, self._held.encoding)
            started = begin(message, self._context.records)
            applied, conflicts, unused = self._progress
            self._merged = msgspec.structs.replace(started, applied=applied, conflicts=conflicts, unused=unused)
        return self._merged

    def _run(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        if not self._is_large:
            then(work())
            return
        future = asyncio.get_running_loop().run_in_executor(self._context.thread, work)
        future.add_done_callback(lambda ended: self._guard(lambda: then(ended.result())))
