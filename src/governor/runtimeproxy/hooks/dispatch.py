"""One hooked call: plugins are asked before the runtime is, and told after it; what they change, what they refuse.

| a plugin fails, or cannot be asked | the call |
|---|---|
| under ``Fail`` | is refused with a status that names the plugin and the reason |
| under ``Ignore`` | goes on as if the plugin were not there |

Which streams are held, and bytes, are ``relaying``'s business.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.process.telemetry import logging
from governor.runtimeproxy.grpc import status_codes
from governor.runtimeproxy.grpc.deadlines import allowance_s
from governor.runtimeproxy.grpc.framing import unwrap
from governor.runtimeproxy.hooks.calls import CriRequest, question, read, write
from governor.runtimeproxy.hooks.conflicts import ConflictPolicy
from governor.runtimeproxy.hooks.consulting import Consultation, consult
from governor.runtimeproxy.hooks.held_call import Held
from governor.runtimeproxy.hooks.subject import subject_of
from governor.runtimeproxy.http2.exchanges import grpc_status_in
from governor.runtimeproxy.http2.header_blocks import Fields
from governor.runtimeproxy.metrics import HookMetrics
from governor.runtimeproxy.ops import audit
from governor.runtimeproxy.plugins.plugin import Plugins
from governor.runtimeproxy.plugins.registration import FailurePolicy, Registration
from governor.runtimeproxy.plugins.registry import skips
from governor.runtimeproxy.store.history import History
from governor.runtimeproxy.store.store import Store
from governor.wire.hooks.hooks_pb2 import PodSandboxHookRequest
from governor.wire.hooks.points import Hook, Request, Response

RUNTIME_RESERVE_S: Final = 5.0
ANSWER_RESERVE_S: Final = 0.5
_LEARN_S: Final = 5.0
_OK: Final = b"%d" % status_codes.OK
_NOT_FOUND: Final = b"%d" % status_codes.NOT_FOUND

_log = logging.get_logger(__name__)


class Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    """Kubelet is answered in the runtime's place."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Rules(msgspec.Struct, frozen=True):
    """What an operator decides about hooks."""

    plugin_timeout_s: float
    conflicts: ConflictPolicy
    skip_key: str
    skip_value: str


class Dispatch:
    """Asks plugins, in order and within the call's time."""

    def __init__(self, plugins: Plugins, store: Store, rules: Rules, metrics: HookMetrics, history: History) -> None:
        self._plugins = plugins
        self._store = store
        self._rules = rules
        self._metrics = metrics
        self._history = history

    async def before(self, held: Held, body: bytes) -> None:
        """Ask the plugins of a call before the runtime gets it; raises Refused."""
        hook = held.call.shape.pre
        try:
            held.request = read(held.call, body, held.encoding)
            held.subject = subject_of(held.request, self._store)
            if hook is not None and self._plugins.registrations.of(hook):
                await self._consult(held, held.request, hook)
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001 - a defect of ours must not keep pods from starting
            self._not_asked(held, hook, _reason(error))

    def done(self, held: Held, fields: Fields, body: bytes, trailers: Fields) -> Hook | None:
        """The runtime has answered: remember what it has done; the hook by which plugins are to be told, if any."""
        request, hook = held.request, held.call.shape.post
        status = grpc_status_in(trailers) or grpc_status_in(fields)
        if request is None:
            return None
        if status != _OK:
            if status == _NOT_FOUND:
                self._store.note_gone(request)
            return None
        held.is_done = True
        self._remember(request, fields, body)
        return hook if hook is not None and self._plugins.registrations.of(hook) else None

    async def after(self, held: Held, hook: Hook) -> None:
        """Tell the plugins what the runtime has done; raises Refused."""
        if held.request is None:
            return
        try:
            await self._tell(held, held.request, hook)
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001 - the runtime has done it, and a defect of ours is no reason to deny it
            self._not_told(held, hook, _reason(error))

    def over(self, held: Held) -> None:
        """The call is over, however it ended."""
        if held.request is not None and not held.is_done and not held.refusal:
            self._store.note_unsure(held.request)
        if held.concerned_plugins:
            self._history.note(held.subject, held.trail())

    def _remember(self, request: CriRequest, fields: Fields, body: bytes) -> None:
        encoding = dict(fields).get(b"grpc-encoding", b"").decode(errors="replace")
        try:
            self._store.note(request, unwrap(body, encoding))
        except Exception as error:  # noqa: BLE001 - the runtime has done it; what it says can still be asked later
            _log.warning("the runtime's answer cannot be read", request=type(request).__name__, error=str(error))

    async def _consult(self, held: Held, request: CriRequest, hook: Hook) -> None:
        await self._learn(held, request, RUNTIME_RESERVE_S)
        consultation = consult(held.call, request, self._store)
        for registration, allowed_s in self._turns(held, hook, consultation.question, RUNTIME_RESERVE_S):
            try:
                answer = await self._ask(held, registration, hook, consultation.question, allowed_s)
                consultation = consultation.answered(registration.name, answer, self._rules.conflicts)
            except GovernorError as error:
                self._failed(held, registration, hook, consultation.question, error)
        self._apply(held, consultation)

    def _apply(self, held: Held, consultation: Consultation) -> None:
        held.consultation = consultation
        self._metrics.conflicts.inc(len(consultation.conflicts))
        for change in consultation.changes:
            self._metrics.changes.labels(change.plugin).inc()
        if consultation.changes:
            held.request = consultation.result()
            held.body = write(held.request)

    async def _tell(self, held: Held, request: CriRequest, hook: Hook) -> None:
        await self._learn(held, request, ANSWER_RESERVE_S)
        asked = question(request, self._store)
        for registration, allowed_s in self._turns(held, hook, asked, ANSWER_RESERVE_S):
            try:
                await self._ask(held, registration, hook, asked, allowed_s)
            except GovernorError as error:
                self._failed(held, registration, hook, asked, error)

    async def _learn(self, held: Held, request: CriRequest, reserve_wanted_s: float) -> None:
        """Ask the runtime about what is unknown, within the call's time; CRI's own errors are told later."""
        if self._store.knows(request):
            return
        left_s = held.left_s(reserve_wanted_s)
        try:
            async with asyncio.timeout(_LEARN_S if left_s is None else min(_LEARN_S, left_s)):
                await self._store.learn(request)
        except TimeoutError as error:
            message = "the runtime did not say in time what the call is about"
            raise GovernorError(Kind.DEADLINE, "unknown", message) from error
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
        if not held.subject.pod:
            held.subject = subject_of(request, self._store)

    def _turns(
        self, held: Held, hook: Hook, asked: Request, reserve_wanted_s: float
    ) -> Iterator[tuple[Registration, float]]:
        """The plugins to be asked, each when its turn comes, with how long it may take then."""
        labels, annotations = _pod_of(asked)
        if skips(self._rules.skip_key, self._rules.skip_value, labels, annotations):
            return
        registrations = self._plugins.registrations.asked(hook, labels)
        timeouts_s = [each.timeout_s or self._rules.plugin_timeout_s for each in registrations]
        for index, registration in enumerate(registrations):
            yield registration, allowance_s(held.left_s(reserve_wanted_s), timeouts_s[index:])

    async def _ask(
        self, held: Held, registration: Registration, hook: Hook, asked: Request, allowed_s: float
    ) -> Response:
        result, error = "failed", "the call ended before it answered"
        # Not the loop's clock, which moves on once in a turn.
        began_s = time.perf_counter()
        try:
            if allowed_s <= 0:
                raise GovernorError(Kind.DEADLINE, "no-time", "the call's deadline leaves no time to ask")
            answer = await self._plugins.ask(registration, hook, asked, allowed_s, held.metadata)
            result, error = "answered", ""
            return answer
        finally:
            seconds = time.perf_counter() - began_s
            if allowed_s > 0:
                self._metrics.seconds.labels(registration.name).observe(seconds)
            self._metrics.asked.labels(registration.name, str(hook), result).inc()
            held.note_asked(registration.name, hook, seconds, error)

    def _failed(self, held: Held, registration: Registration, hook: Hook, asked: Request, error: GovernorError) -> None:
        held.note_failed(error.message)
        is_refusal = registration.policies[hook] is FailurePolicy.FAIL or error.code == "plugins-conflict"
        _log.warning(
            "plugin failed",
            plugin=registration.name,
            hook=str(hook),
            refused=is_refusal,
            error=str(error),
            **audit.subject_of(asked),
        )
        if is_refusal:
            message = f"plugin {registration.name} refuses {hook}: {error.message}"
            raise Refused(status_codes.CODE[error.kind], message) from error

    def _not_asked(self, held: Held, hook: Hook | None, error: GovernorError) -> None:
        """Nobody can be asked about the call: so nobody who must be asked has agreed."""
        held.unasked = error.message if hook is not None else ""
        refusing = self._plugins.registrations.refusing(hook) if hook is not None else ()
        names = ", ".join(each.name for each in refusing)
        _log.warning("plugins could not be asked", call=str(held.call), error=error.message, refused_for=names)
        if refusing:
            message = f"plugin {names} could not be asked by {hook}: {error.message}"
            raise Refused(status_codes.CODE[error.kind], message) from error

    def _not_told(self, held: Held, hook: Hook, error: GovernorError) -> None:
        """What the runtime does not know either is gone, and who stops it must not be kept at it for ever."""
        if error.kind is Kind.NOT_FOUND:
            held.unasked = error.message
            _log.warning("plugins could not be told", call=str(held.call), error=error.message)
        else:
            self._not_asked(held, hook, error)


def _reason(error: Exception) -> GovernorError:
    if isinstance(error, GovernorError):
        return error
    _log.error("a hooked call failed here", exc_info=error)
    return GovernorError(Kind.INTERNAL, "defect", "a defect of the runtime proxy; see its log")


def _pod_of(asked: Request) -> tuple[Mapping[str, str], Mapping[str, str]]:
    if isinstance(asked, PodSandboxHookRequest):
        return asked.labels, asked.annotations
    return asked.pod_labels, asked.pod_annotations
