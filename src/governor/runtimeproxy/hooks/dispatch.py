"""Dispatch of hooked calls to plugins: before the runtime receives the call, and after it has succeeded.

| a plugin fails or cannot be called | the call |
|---|---|
| failure policy ``Fail`` | is rejected with a status that names the plugin and the reason |
| failure policy ``Ignore`` | continues as if the plugin were not registered |

A container that was started and then rejected at PostStartContainer is stopped: a container that kubelet counts as
failed must not run.

Streams and bytes are handled by the runtime's protocol, the calls of plugins in ``rounds``, merging in ``merge``.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

import msgspec

from governor.errors import GovernorError, Kind
from governor.process.telemetry import logging
from governor.runtimeproxy.environment import Environment
from governor.runtimeproxy.hooks import fields
from governor.runtimeproxy.hooks.calls import Call
from governor.runtimeproxy.hooks.held_call import Applied, Held, Rejected
from governor.runtimeproxy.hooks.merge import MergedRequest
from governor.runtimeproxy.hooks.questions import question_for
from governor.runtimeproxy.hooks.requests import Message, Request
from governor.runtimeproxy.hooks.rounds import LARGE_BYTES, HookContext, MergingRound, Round
from governor.runtimeproxy.hooks.subject import subject_of
from governor.runtimeproxy.store.cache import RecordCache
from governor.runtimeproxy.store.history import History
from governor.runtimeproxy.store.records import ContainerRecord, new_container
from governor.wire.hooks.points import Hook
from governor.wire.hooks.workload import Container, Pod

RUNTIME_RESERVE_S: Final = 5.0
"""Part of a call's deadline that is kept for the runtime."""
RESPONSE_RESERVE_S: Final = 0.5
"""Part of a call's deadline that is kept for returning the runtime's response."""
_FETCH_TIMEOUT_S: Final = 5.0
_FEW_VARIABLES: Final = 512
"""With more, or if they are kept, a container's record is made before the request is sent: if large, in a thread."""

StopContainer: TypeAlias = Callable[[str], Awaitable[None]]
Done: TypeAlias = Callable[[Rejected | None], None]
"""Called when all plugins have been called; with the status for the client if the call is rejected."""

_log = logging.get_logger(__name__)


class Dispatcher:
    """Calls plugins in order, within each call's deadline."""

    def __init__(
        self, context: HookContext, records: RecordCache, history: History, stop_container: StopContainer
    ) -> None:
        self._context = context
        self._handlers = context.handlers
        self._records = records
        self._history = history
        self._stop_container = stop_container

    def before(self, held: Held, body: bytes, done: Done) -> None:
        """Call the plugins of the call's pre hook and merge their changes into it."""
        read = partial(self._context.codec.read, held.call, body, held.encoding)
        if len(body) <= LARGE_BYTES:
            self._begin(held, body, read, done)
        else:
            future = asyncio.get_running_loop().run_in_executor(self._context.thread, read)
            future.add_done_callback(lambda ended: self._begin(held, body, ended.result, done))

    def too_large(self, held: Held, done: Done) -> None:
        """Let a request pass that is too large to be held, unless a plugin with failure policy Fail must be called."""
        done(self.pass_uncalled(held, Kind.EXHAUSTED, "the request is too large to be held for plugins"))

    def pass_uncalled(self, held: Held, kind: Kind, reason: str) -> Rejected | None:
        """Return the rejection of a call that cannot be held, if a plugin with failure policy Fail must be called."""
        hook = held.call.shape.pre
        if hook is None or not self._handlers.of(hook):
            return None
        return self._not_called(held, hook, GovernorError(kind, "not-held", reason))

    def _begin(self, held: Held, body: bytes, read: Callable[[], Message], done: Done) -> None:
        """Read the request and call its plugins; a defect of the proxy must not keep pods from starting."""
        if held.is_cancelled:
            return
        try:
            self._call_plugins(held, body, read(), done)
        except Exception as error:  # noqa: BLE001 - see above
            done(self._not_called(held, held.call.shape.pre, _as_governor_error(error)))

    def _call_plugins(self, held: Held, body: bytes, message: Message, done: Done) -> None:
        hook, request = held.call.shape.pre, message.request
        held.subject = subject_of(request, self._records)
        if hook is None or not self._handlers.of(hook):
            if request.container is not None:
                held.created = self._created(request.sandbox_id, request.container, request.environment)
            held.request = _kept(request)
            done(None)
            return
        # The round decodes a large request again when it needs it.
        held.request = None if len(body) > LARGE_BYTES else _kept(request)

        def start(error: Exception | None) -> None:
            if error is not None:
                done(self._not_called(held, hook, _as_governor_error(error)))
            else:
                MergingRound(self._context, held, hook, RUNTIME_RESERVE_S, end, body, self._apply).start_with(message)

        def end(error: Exception | None) -> None:
            if error is None or isinstance(error, Rejected):
                done(error)
            else:
                done(self._not_called(held, hook, _as_governor_error(error)))

        self._with_records(held, request, RUNTIME_RESERVE_S, start)

    def _apply(self, merged: MergedRequest) -> Applied:
        """Return what the runtime gets, and what is kept of it. For large requests in a thread."""
        changes, request = merged.changes, merged.message.request
        created: Callable[[], ContainerRecord] | None = None
        body = merged.message.edited(changes) if changes else None
        if request.call is Call.CREATE_CONTAINER:
            created = partial(self._created_from, merged)
            if self._records.remembers_environment or len(request.environment.entries) > _FEW_VARIABLES:
                created = partial(msgspec.structs.replace, created())
        elif request.call is Call.RUN_POD_SANDBOX:
            request = msgspec.structs.replace(request, pod=merged.question.pod)
        elif changes:
            request = fields.with_changes(request, changes)
        return Applied(_kept(request), body, created, changes, merged.conflicts, merged.unused, merged.observed)

    def _created_from(self, merged: MergedRequest) -> ContainerRecord:
        question = merged.question
        return self._created(merged.message.request.sandbox_id, question.container or Container(), question.environment)

    def _created(self, sandbox_id: str, container: Container, environment: Environment) -> ContainerRecord:
        remembers = self._records.remembers_environment
        return new_container(sandbox_id, container, environment, with_environment=remembers)

    def responded(self, held: Held, error: Kind | None, body: bytes, encoding: str) -> Hook | None:
        """Record the runtime's response, or the kind of its error. Return the post hook if plugins are registered."""
        request = held.request
        if request is None:
            return None
        if error is None:
            self._record(held, request, body, encoding)
        elif error is Kind.NOT_FOUND:
            self._records.confirm_absent(request)
        return self.post_hook(held, error)

    def responded_unread(self, held: Held, error: Kind | None) -> Hook | None:
        """Like ``responded``, for a response that was not read; what it may have created is fetched when needed."""
        return self.post_hook(held, error)

    def post_hook(self, held: Held, error: Kind | None) -> Hook | None:
        """Return the post hook of a call that ended so, if plugins are registered for it."""
        if held.request is None:
            return None
        held.succeeded = error is None
        hook = held.call.shape.post if held.succeeded else None
        return hook if hook is not None and self._handlers.of(hook) else None

    def after(self, held: Held, hook: Hook, done: Done) -> None:
        """Notify the plugins of a post hook."""
        request = held.request
        if request is None:
            done(None)
        elif request.call is Call.START_CONTAINER:
            self._notify(held, request, hook, partial(self._stop_if_rejected, held, request.container_id, done))
        else:
            self._notify(held, request, hook, done)

    def _notify(self, held: Held, request: Request, hook: Hook, done: Done) -> None:
        def start(error: Exception | None) -> None:
            if error is None:
                try:
                    question = question_for(request, self._records)
                except Exception as raised:  # noqa: BLE001 - a defect must not hide that the runtime succeeded
                    error = raised
            if error is not None:
                done(self._not_notified(held, hook, _as_governor_error(error)))
            else:
                Round(self._context, held, hook, RESPONSE_RESERVE_S, end).start(question)

        def end(error: Exception | None) -> None:
            if error is None or isinstance(error, Rejected):
                done(error)
            else:
                done(self._not_notified(held, hook, _as_governor_error(error)))

        self._with_records(held, request, RESPONSE_RESERVE_S, start)

    def _stop_if_rejected(self, held: Held, container_id: str, done: Done, rejected: Rejected | None) -> None:
        if rejected is None:
            done(None)
            return
        task = asyncio.get_running_loop().create_task(self._stop_started(container_id))
        held.work = None
        task.add_done_callback(lambda ended: done(Rejected(rejected.kind, f"{rejected.message}; {ended.result()}")))

    async def _stop_started(self, container_id: str) -> str:
        """Stop a container that was rejected after its start, notify plugins of it, and return the outcome."""
        try:
            await self._stop_container(container_id)
        except GovernorError as error:
            _log.error("a rejected container could not be stopped", container_id=container_id, error=error.message)
            return f"the container could not be stopped and runs: {error.message}"
        # Kubelet does not stop a container that has exited, so plugins would never be notified.
        request = Request(Call.STOP_CONTAINER, container_id=container_id)
        stop, notified = Held(Call.STOP_CONTAINER), asyncio.Event()
        stop.subject = subject_of(request, self._records)
        self._notify(stop, request, Hook.POST_STOP_CONTAINER, lambda _rejected: notified.set())
        await notified.wait()
        return "the container was stopped"

    def finish(self, held: Held) -> None:
        """Clean up after a call has ended in whatever way, and add it to the pod's history."""
        if held.request is not None and not held.succeeded and not held.rejection:
            self._records.invalidate(held.request)
        if held.is_notable:
            self._history.ended(held)

    def _record(self, held: Held, request: Request, body: bytes, encoding: str) -> None:
        try:
            if request.call is Call.RUN_POD_SANDBOX:
                sandbox_id = self._context.codec.created_id(request.call, body, encoding)
                self._records.add_sandbox(sandbox_id, request.pod or Pod())
            elif held.created is not None:
                self._records.add_container(self._context.codec.created_id(request.call, body, encoding), held.created)
            else:
                self._records.record(request)
        except Exception as error:  # noqa: BLE001 - the runtime succeeded; its state can still be fetched later
            _log.warning("cannot decode the runtime's response", call=str(request.call), error=str(error))

    def _with_records(
        self, held: Held, request: Request, max_reserve_s: float, then: Callable[[Exception | None], None]
    ) -> None:
        """Continue when the records of a request are there, fetched from the runtime if they are missing."""
        if self._records.has_records_for(request):
            then(None)
            return
        task = asyncio.get_running_loop().create_task(self._fetch(held, request, max_reserve_s))
        held.work = task

        def fetched(ended: "asyncio.Task[None]") -> None:
            if not ended.cancelled():
                then(ended.exception())  # type: ignore[arg-type]

        task.add_done_callback(fetched)

    async def _fetch(self, held: Held, request: Request, max_reserve_s: float) -> None:
        """Fetch missing records; NOT_FOUND is left to the question."""
        left_s = held.left_s(max_reserve_s)
        try:
            async with asyncio.timeout(_FETCH_TIMEOUT_S if left_s is None else min(_FETCH_TIMEOUT_S, left_s)):
                await self._records.fetch(request)
        except TimeoutError as error:
            message = "the runtime did not describe the call's sandbox or container in time"
            raise GovernorError(Kind.DEADLINE, "unknown", message) from error
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
        if not held.subject.pod:
            held.subject = subject_of(request, self._records)

    def _not_called(self, held: Held, hook: Hook | None, error: GovernorError) -> Rejected | None:
        """Return the rejection of a call for which plugins cannot be called, if one has failure policy Fail."""
        held.not_called = error.message if hook is not None else ""
        required = self._handlers.required(hook) if hook is not None else ()
        names = ", ".join(each.settings.name for each in required)
        _log.warning("plugins could not be called", call=str(held.call), error=error.message, refused_for=names)
        if not required:
            return None
        message = f"plugin {names} could not be called for {hook}: {error.message}"
        return Rejected(error.kind, message)

    def _not_notified(self, held: Held, hook: Hook, error: GovernorError) -> Rejected | None:
        """Let a call pass whose sandbox or container is gone, so that kubelet does not retry the stop for ever."""
        if error.kind is not Kind.NOT_FOUND:
            return self._not_called(held, hook, error)
        held.not_called = error.message
        _log.warning("plugins could not be notified", call=str(held.call), error=error.message)
        return None


def _as_governor_error(error: Exception) -> GovernorError:
    if isinstance(error, GovernorError):
        return error
    _log.error("hooked call failed in the proxy", exc_info=error)
    return GovernorError(Kind.INTERNAL, "defect", "internal error of the runtime proxy; see its log")


def _kept(request: Request) -> Request:
    """Return what is needed of a request when the runtime has responded: variables may be large."""
    return Request(request.call, request.sandbox_id) if request.container is not None else request
