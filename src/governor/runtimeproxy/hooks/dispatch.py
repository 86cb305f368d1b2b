"""Dispatch of hooked calls to plugins: before the runtime receives the call, and after it has succeeded.

| a plugin fails or cannot be called | the call |
|---|---|
| failure policy ``Fail`` | is rejected with a status that names the plugin and the reason |
| failure policy ``Ignore`` | continues as if the plugin were not registered |

A container that was started and then rejected at PostStartContainer is stopped: a container that kubelet counts as
failed must not run.

Streams and bytes are handled in ``connections``, merging in ``merge``.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from governor.errors import GovernorError, Kind
from governor.process.telemetry import logging
from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.grpc import status_codes
from governor.runtimeproxy.grpc.deadlines import allowance_s
from governor.runtimeproxy.grpc.framing import unwrap
from governor.runtimeproxy.hooks.calls import Call, CriRequest, hook_request_for, read, write
from governor.runtimeproxy.hooks.changes import ConflictPolicy
from governor.runtimeproxy.hooks.held_call import Held
from governor.runtimeproxy.hooks.merge import MergedRequest, begin
from governor.runtimeproxy.hooks.subject import subject_of
from governor.runtimeproxy.http2.exchanges import grpc_status_in
from governor.runtimeproxy.http2.header_blocks import Fields
from governor.runtimeproxy.metrics import HookMetrics
from governor.runtimeproxy.ops import audit
from governor.runtimeproxy.plugins.client import Plugins
from governor.runtimeproxy.plugins.registration import EnvironmentMode, FailurePolicy, Registration
from governor.runtimeproxy.plugins.registry import skips
from governor.runtimeproxy.store.cache import RecordCache
from governor.runtimeproxy.store.history import History
from governor.wire.hooks.hooks_pb2 import PodSandboxHookRequest
from governor.wire.hooks.points import Hook, HookRequest, HookResponse

RUNTIME_RESERVE_S: Final = 5.0
"""Part of a call's deadline that is kept for the runtime."""
RESPONSE_RESERVE_S: Final = 0.5
"""Part of a call's deadline that is kept for returning the runtime's response."""
_FETCH_TIMEOUT_S: Final = 5.0
_OK: Final = b"%d" % status_codes.OK
_NOT_FOUND: Final = b"%d" % status_codes.NOT_FOUND

StopContainer: TypeAlias = Callable[[str], Awaitable[None]]

_log = logging.get_logger(__name__)


class Rejected(Exception):  # noqa: N818 - a response, not a defect
    """Ends a call with a status from the proxy instead of the runtime's response."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class HookSettings(msgspec.Struct, frozen=True):
    """The settings that concern hooks."""

    plugin_timeout_s: float
    conflicts: ConflictPolicy
    skip_key: str
    skip_value: str


class Dispatcher:
    """Calls plugins in order, within each call's deadline."""

    def __init__(
        self,
        plugins: Plugins,
        records: RecordCache,
        settings: HookSettings,
        metrics: HookMetrics,
        history: History,
        stop_container: StopContainer,
    ) -> None:
        self._plugins = plugins
        self._records = records
        self._settings = settings
        self._metrics = metrics
        self._history = history
        self._stop_container = stop_container

    async def before(self, held: Held, body: bytes) -> None:
        """Call the plugins of the call's pre hook and merge their changes into it; may raise Rejected."""
        hook = held.call.shape.pre
        try:
            held.request = read(held.call, body, held.encoding)
            held.subject = subject_of(held.request, self._records)
            if hook is not None and self._plugins.registrations.of(hook):
                await self._merge_responses(held, held.request, hook)
        except Rejected:
            raise
        except Exception as error:  # noqa: BLE001 - a defect of the proxy must not keep pods from starting
            self._not_called(held, hook, _as_governor_error(error))

    def responded(self, held: Held, fields: Fields, body: bytes, trailers: Fields) -> Hook | None:
        """Record the runtime's response. Return the post hook if plugins are registered for it."""
        request = held.request
        status = grpc_status_in(trailers) or grpc_status_in(fields)
        if request is None:
            return None
        if status == _OK:
            self._record(request, fields, body)
        elif status == _NOT_FOUND:
            self._records.confirm_absent(request)
        return self._post_hook(held, status)

    def responded_unread(self, held: Held, status: bytes) -> Hook | None:
        """Like ``responded``, for a response that was not read; what it may have created is fetched when needed."""
        return None if held.request is None else self._post_hook(held, status)

    def _post_hook(self, held: Held, status: bytes) -> Hook | None:
        held.succeeded = status == _OK
        hook = held.call.shape.post if held.succeeded else None
        return hook if hook is not None and self._plugins.registrations.of(hook) else None

    async def after(self, held: Held, hook: Hook) -> None:
        """Notify the plugins of a post hook; may raise Rejected."""
        request = held.request
        if request is None:
            return
        try:
            await self._notify_all(held, request, hook)
        except Rejected as rejected:
            if not isinstance(request, cri_pb2.StartContainerRequest):
                raise
            outcome = await self._stop_started(request.container_id)
            raise Rejected(rejected.code, f"{rejected.message}; {outcome}") from rejected

    async def _stop_started(self, container_id: str) -> str:
        """Stop a container that was rejected after its start, notify plugins of it, and return the outcome."""
        try:
            await self._stop_container(container_id)
        except GovernorError as error:
            _log.error("a rejected container could not be stopped", container_id=container_id, error=error.message)
            return f"the container could not be stopped and runs: {error.message}"
        # Kubelet does not stop a container that has exited, so plugins would never be notified.
        stop = Held(Call.STOP_CONTAINER, ())
        with contextlib.suppress(Rejected):
            request = cri_pb2.StopContainerRequest(container_id=container_id)
            await self._notify_all(stop, request, Hook.POST_STOP_CONTAINER)
        return "the container was stopped"

    async def _notify_all(self, held: Held, request: CriRequest, hook: Hook) -> None:
        try:
            await self._notify(held, request, hook)
        except Rejected:
            raise
        except Exception as error:  # noqa: BLE001 - a defect of the proxy must not hide that the runtime succeeded
            self._not_notified(held, hook, _as_governor_error(error))

    def finish(self, held: Held) -> None:
        """Clean up after a call has ended in whatever way, and add it to the pod's history."""
        if held.request is not None and not held.succeeded and not held.rejection:
            self._records.invalidate(held.request)
        if held.involved_plugins:
            self._history.add(held.subject, held.trail())

    def _record(self, request: CriRequest, fields: Fields, body: bytes) -> None:
        encoding = dict(fields).get(b"grpc-encoding", b"").decode(errors="replace")
        try:
            self._records.record(request, unwrap(body, encoding))
        except Exception as error:  # noqa: BLE001 - the runtime succeeded; its state can still be fetched later
            _log.warning("cannot decode the runtime's response", request=type(request).__name__, error=str(error))

    async def _merge_responses(self, held: Held, request: CriRequest, hook: Hook) -> None:
        await self._fetch_records(held, request, RUNTIME_RESERVE_S)
        merged = begin(held.call, request, self._records)
        for registration, timeout_s in self._plugins_for(held, hook, merged.hook_request, RUNTIME_RESERVE_S):
            try:
                response = await self._call_plugin(held, registration, hook, merged.hook_request, timeout_s)
                merged = merged.add(
                    registration.name,
                    response,
                    self._settings.conflicts,
                    replace_environment=registration.environment is EnvironmentMode.REPLACE,
                )
            except GovernorError as error:
                self._failed(held, registration, hook, merged.hook_request, error)
        self._apply(held, merged)

    def _apply(self, held: Held, merged: MergedRequest) -> None:
        held.merged = merged
        self._metrics.conflicts.inc(len(merged.conflicts))
        for change in merged.changes:
            self._metrics.changes.labels(change.plugin).inc()
        if merged.changes:
            held.request = merged.result()
            held.body = write(held.request)

    async def _notify(self, held: Held, request: CriRequest, hook: Hook) -> None:
        await self._fetch_records(held, request, RESPONSE_RESERVE_S)
        hook_request = hook_request_for(request, self._records)
        for registration, timeout_s in self._plugins_for(held, hook, hook_request, RESPONSE_RESERVE_S):
            try:
                await self._call_plugin(held, registration, hook, hook_request, timeout_s)
            except GovernorError as error:
                self._failed(held, registration, hook, hook_request, error)

    async def _fetch_records(self, held: Held, request: CriRequest, max_reserve_s: float) -> None:
        """Fetch missing records from the runtime; NOT_FOUND is left to the hook request."""
        if self._records.has_records_for(request):
            return
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

    def _plugins_for(
        self, held: Held, hook: Hook, hook_request: HookRequest, max_reserve_s: float
    ) -> Iterator[tuple[Registration, float]]:
        """Yield each plugin to call, with its timeout computed at that moment."""
        labels, annotations = _pod_metadata(hook_request)
        if skips(self._settings.skip_key, self._settings.skip_value, labels, annotations):
            return
        registrations = self._plugins.registrations.selecting(hook, labels)
        timeouts_s = [each.timeout_s or self._settings.plugin_timeout_s for each in registrations]
        for index, registration in enumerate(registrations):
            yield registration, allowance_s(held.left_s(max_reserve_s), timeouts_s[index:])

    async def _call_plugin(
        self, held: Held, registration: Registration, hook: Hook, hook_request: HookRequest, timeout_s: float
    ) -> HookResponse:
        result, error = "failed", "the call ended before the plugin responded"
        # The loop's clock advances only once per iteration.
        started_s = time.perf_counter()
        try:
            if timeout_s <= 0:
                raise GovernorError(Kind.DEADLINE, "no-time", "the call's deadline leaves no time for this plugin")
            response = await self._plugins.call(registration, hook, hook_request, timeout_s, held.metadata)
            result, error = "answered", ""
            return response
        finally:
            seconds = time.perf_counter() - started_s
            if timeout_s > 0:
                self._metrics.seconds.labels(registration.name).observe(seconds)
            self._metrics.plugin_calls.labels(registration.name, str(hook), result).inc()
            held.add_plugin_call(registration.name, hook, seconds, error)

    def _failed(
        self, held: Held, registration: Registration, hook: Hook, hook_request: HookRequest, error: GovernorError
    ) -> None:
        held.mark_plugin_failed(error.message)
        is_rejected = registration.policies[hook] is FailurePolicy.FAIL or error.code == "plugins-conflict"
        _log.warning(
            "plugin failed",
            plugin=registration.name,
            hook=str(hook),
            refused=is_rejected,
            error=str(error),
            **audit.pod_fields(hook_request),
        )
        if is_rejected:
            message = f"plugin {registration.name} rejected {hook}: {error.message}"
            raise Rejected(status_codes.CODE[error.kind], message) from error

    def _not_called(self, held: Held, hook: Hook | None, error: GovernorError) -> None:
        """Reject a call for which plugins cannot be called if one of them has failure policy Fail."""
        held.not_called = error.message if hook is not None else ""
        required = self._plugins.registrations.required(hook) if hook is not None else ()
        names = ", ".join(each.name for each in required)
        _log.warning("plugins could not be called", call=str(held.call), error=error.message, refused_for=names)
        if required:
            message = f"plugin {names} could not be called for {hook}: {error.message}"
            raise Rejected(status_codes.CODE[error.kind], message) from error

    def _not_notified(self, held: Held, hook: Hook, error: GovernorError) -> None:
        """Let a call pass whose sandbox or container is gone, so that kubelet does not retry the stop for ever."""
        if error.kind is Kind.NOT_FOUND:
            held.not_called = error.message
            _log.warning("plugins could not be notified", call=str(held.call), error=error.message)
        else:
            self._not_called(held, hook, error)


def _as_governor_error(error: Exception) -> GovernorError:
    if isinstance(error, GovernorError):
        return error
    _log.error("hooked call failed in the proxy", exc_info=error)
    return GovernorError(Kind.INTERNAL, "defect", "internal error of the runtime proxy; see its log")


def _pod_metadata(hook_request: HookRequest) -> tuple[Mapping[str, str], Mapping[str, str]]:
    if isinstance(hook_request, PodSandboxHookRequest):
        return hook_request.labels, hook_request.annotations
    return hook_request.pod_labels, hook_request.pod_annotations
