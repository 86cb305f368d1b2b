"""The handlers of one hook, called one after another for one held call.

Everything happens in callbacks of the event loop: most calls need neither a task nor a wait. Large messages are encoded
and merged in a thread, one at a time, so that other calls do not wait for them, and only what is needed of them is kept
while a plugin works.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.process.telemetry import logging
from governor.runtimeproxy.grpc.deadlines import allowance_s
from governor.runtimeproxy.hooks.changes import ConflictPolicy
from governor.runtimeproxy.hooks.handlers import Handler, HandlerCall, Handlers, Limits, Mode, Result, is_required
from governor.runtimeproxy.hooks.held_call import Applied, Held, Rejected
from governor.runtimeproxy.hooks.merge import MergedRequest, begin
from governor.runtimeproxy.hooks.questions import Question
from governor.runtimeproxy.hooks.requests import Codec, Message
from governor.runtimeproxy.metrics import HookMetrics
from governor.runtimeproxy.ops import audit
from governor.runtimeproxy.store.records import Records
from governor.wire.hooks.points import Hook

LARGE_BYTES: Final = 128 * 1024
"""Messages above this size are processed in a thread."""
_INTERRUPTED: Final = "the call ended before the plugin responded"

P = ParamSpec("P")
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


def skips(settings: HookSettings, labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
    """Return whether a pod opts out of all handlers by a label or an annotation."""
    key, value = settings.skip_key, settings.skip_value
    return bool(key) and value in (labels.get(key), annotations.get(key))


class HookContext(msgspec.Struct, frozen=True):
    """What all rounds use."""

    codec: Codec
    handlers: Handlers
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
        self._handlers: tuple[Handler, ...] = ()
        self._timeouts_s: list[float] = []
        self._index = 0
        self._call: HandlerCall | None = None
        self._is_advancing = False
        self._started_s = 0.0
        held.work = self

    @property
    def _handler(self) -> Handler:
        return self._handlers[self._index]

    def start(self, question: Question) -> None:
        """Call the first plugin that selects the pod; end at once if there is none."""
        self._guard(self._begin, question)

    def cancel(self) -> None:
        """Cancel the call of the current plugin; the round ends without a result."""
        self._finish = None
        if self._call is not None:
            self._call.cancel()
            self._observe(self._handler, "failed", self._elapsed_s(), _INTERRUPTED)

    def _guard(self, step: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a step; whatever it raises ends the round."""
        if self._finish is None:
            return
        try:
            step(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - passed on
            self._end(error)

    def _end(self, error: Exception | None = None) -> None:
        finish, self._finish = self._finish, None
        if finish is not None:
            finish(error)
        elif error is not None:
            _log.error("hooked call failed in the proxy after its request was sent", exc_info=error)

    def _begin(self, question: Question) -> None:
        settings = self._context.settings
        self._question = question
        if not skips(settings, question.labels, question.annotations):
            self._handlers = self._context.handlers.selecting(self._hook, question)
            self._timeouts_s = [each.settings.timeout_s or settings.plugin_timeout_s for each in self._handlers]
        self._next()

    def _next(self) -> None:
        """Call one handler after the other; those that answer at once in a loop, since there may be many."""
        if self._is_advancing:
            return
        self._is_advancing, before = True, -1
        try:
            while before != self._index < len(self._handlers) and self._finish is not None:
                before = self._index
                self._run(self._prepare, self._ask)
        finally:
            self._is_advancing = False
        if self._index == len(self._handlers) and self._finish is not None:
            self._complete()

    def _complete(self) -> None:
        self._end()

    def _prepare(self) -> bytes:
        """Return the encoded question for the current handler."""
        if self._question is None:
            raise RuntimeError("the round has no question")
        return self._handler.prepare(self._question)

    def _ask(self, message: bytes) -> None:
        self._started_s = time.perf_counter()
        timeout_s = allowance_s(self._held.left_s(self._reserve_s), self._timeouts_s[self._index :])
        if timeout_s <= 0:
            self._failed(GovernorError(Kind.DEADLINE, "no-time", "the call's deadline leaves no time for this plugin"))
            return
        try:
            call = self._handler.start(self._hook, message, Limits(timeout_s, self._held.metadata), self._responded)
        except GovernorError as error:
            self._failed(error)
            return
        self._call = call
        if call is None:
            self._answered(None, b"")

    def _responded(self, result: Result) -> None:
        self._guard(self._handle, result)

    def _handle(self, result: Result) -> None:
        call, self._call = self._call, None
        if isinstance(result, GovernorError):
            self._failed(result)
        elif call is not None:
            self._answered(call, result)

    def _answered(self, call: HandlerCall | None, response: bytes) -> None:
        self._run(partial(self._use, response), partial(self._used, call, self._elapsed_s()))

    def _use(self, response: bytes) -> GovernorError | None:
        """Process a response; return why it cannot be used, if so."""
        try:
            self._merge(response)
        except GovernorError as error:
            return error
        return None

    def _merge(self, response: bytes) -> None:
        """Use a response; a notification needs only to be decoded."""
        if self._question is not None:
            self._handler.changes(self._hook, self._question, self._question, response)

    def _used(self, call: HandlerCall | None, elapsed_s: float, error: GovernorError | None) -> None:
        # A conflict between handlers, or a value out of range, is not the fault of its connection.
        if call is not None:
            call.report(error if error is not None and error.code == "hook-message" else None)
        handler = self._handler
        if error is not None:
            self._observe(handler, "answered", elapsed_s, error.message)
            self._apply_policy(error)
            self._advance()
        else:
            self._advance()
            # The next message has been written.
            self._observe(handler, "answered", elapsed_s)

    def _failed(self, error: GovernorError) -> None:
        self._observe(self._handler, "failed", self._elapsed_s(), error.message)
        self._apply_policy(error)
        self._advance()

    def _advance(self) -> None:
        self._index += 1
        self._next()

    def _elapsed_s(self) -> float:
        return time.perf_counter() - self._started_s

    def _observe(self, handler: Handler, result: str, elapsed_s: float, error: str = "") -> None:
        name = handler.settings.name
        self._context.metrics.count_plugin_call(name, self._hook, result, elapsed_s)
        self._held.add_plugin_call(name, self._hook, elapsed_s, error)

    def _apply_policy(self, error: GovernorError) -> None:
        """Raise Rejected if the plugin's failure rejects the call."""
        settings, hook = self._handler.settings, self._hook
        is_conflict = error.code == "plugins-conflict" and settings.mode is Mode.ENFORCE
        is_rejected = is_conflict or is_required(settings, hook)
        _log.warning(
            "plugin failed",
            plugin=settings.name,
            hook=str(hook),
            refused=is_rejected,
            error=str(error),
            **audit.pod_fields(self._held.subject),
        )
        if is_rejected:
            message = f"plugin {settings.name} rejected {hook}: {error.message}"
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
        self._progress: tuple[Any, ...] = ((), (), (), ())
        """Changes, conflicts, unused and observed changes so far."""

    def start_with(self, message: Message) -> None:
        """Call the first plugin that selects the request's pod."""
        self._guard(self._run, partial(self._first, message), self._begin)

    def _complete(self) -> None:
        self._run(lambda: self._apply(self._resumed()), self._applied)

    def _applied(self, applied: Applied) -> None:
        held = self._held
        held.apply(applied)
        self._end()
        # The request has been sent: what follows does not delay the call.
        if applied.created is not None:
            held.created = applied.created()
        metrics = self._context.metrics
        if applied.conflicts:
            metrics.conflicts.inc(len(applied.conflicts))
        for change in applied.changes:
            metrics.changes.labels(change.plugin).inc()
        for change in applied.observed:
            metrics.observed.labels(change.plugin).inc()

    def _first(self, message: Message) -> Question:
        self._merged = begin(message, self._context.records)
        return self._merged.question

    def _prepare(self) -> bytes:
        self._question = self._resumed().question
        message = super()._prepare()
        self._suspend()
        return message

    def _merge(self, response: bytes) -> None:
        settings, merged = self._handler.settings, self._resumed()
        changed = self._handler.changes(self._hook, merged.original, merged.question, response)
        add = merged.observe if settings.mode is Mode.OBSERVE else merged.add
        self._merged = add(settings.name, changed, self._context.settings.conflicts)
        self._progress = (
            self._merged.applied,
            self._merged.conflicts,
            self._merged.unused,
            self._merged.observed,
        )
        self._suspend()

    def _suspend(self) -> None:
        """Keep only the body of a large request while a plugin works: decoded, it takes several times the memory."""
        if self._is_large:
            self._merged = self._question = None

    def _resumed(self) -> MergedRequest:
        if self._merged is None:
            message = self._context.codec.read(self._held.call, self._body, self._held.encoding)
            started = begin(message, self._context.records)
            applied, conflicts, unused, observed = self._progress
            self._merged = msgspec.structs.replace(
                started, applied=applied, conflicts=conflicts, unused=unused, observed=observed
            )
        return self._merged

    def _run(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        if not self._is_large:
            then(work())
            return
        future = asyncio.get_running_loop().run_in_executor(self._context.thread, work)
        future.add_done_callback(lambda ended: self._guard(lambda: then(ended.result())))
