"""Requests that are held for plugins: what they concern, and their way through the hooks.

| operation | of a container | of a sandbox |
|---|---|---|
| create | CreateContainer | RunPodSandbox |
| start, restart | StartContainer | |
| stop, kill with SIGKILL | StopContainer | StopPodSandbox |
| update | UpdateContainerResources | UpdatePodSandboxResources |
| remove | RemoveContainer | RemovePodSandbox |

What concerns a container that is not Kubernetes' own, or none that dockerd knows, is forwarded as it is.
"""

import asyncio
import contextlib
import datetime
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.docker import responses
from governor.runtimeproxy.docker.bodies import UntilClose
from governor.runtimeproxy.docker.configuration import REPEATED, readable
from governor.runtimeproxy.docker.daemon import Daemon
from governor.runtimeproxy.docker.exchange import Disconnected
from governor.runtimeproxy.docker.heads import RequestHead, ResponseHead
from governor.runtimeproxy.docker.messages import ContainerRequest, created_name
from governor.runtimeproxy.docker.routes import Operation, Route
from governor.runtimeproxy.front import Parts
from governor.runtimeproxy.hooks.calls import Call
from governor.runtimeproxy.hooks.held_call import Held, Rejected
from governor.runtimeproxy.hooks.requests import Request
from governor.runtimeproxy.hooks.rounds import LARGE_BYTES
from governor.runtimeproxy.hooks.subject import subject_of
from governor.runtimeproxy.http2.connection import Limits
from governor.runtimeproxy.http2.held_budget import PROCESSING_BYTES, HeldBudget
from governor.runtimeproxy.http2.streams import Outcome
from governor.runtimeproxy.ops.audit import AuditLog
from governor.runtimeproxy.ops.control import Subject, TapCall
from governor.wire.hooks.points import Hook
from governor.wire.hooks.workload import PodIdentity

if TYPE_CHECKING:
    from governor.runtimeproxy.docker.session import DockerSession

_LIMITS: Final = Limits()
_TRACE_CONTEXT: Final = frozenset({b"traceparent", b"tracestate", b"baggage"})
_CALLS: Final = {
    (Operation.CREATE, False): Call.CREATE_CONTAINER,
    (Operation.CREATE, True): Call.RUN_POD_SANDBOX,
    (Operation.START, False): Call.START_CONTAINER,
    (Operation.RESTART, False): Call.START_CONTAINER,
    (Operation.STOP, False): Call.STOP_CONTAINER,
    (Operation.STOP, True): Call.STOP_POD_SANDBOX,
    (Operation.KILL, False): Call.STOP_CONTAINER,
    (Operation.KILL, True): Call.STOP_POD_SANDBOX,
    (Operation.UPDATE, False): Call.UPDATE_CONTAINER_RESOURCES,
    (Operation.UPDATE, True): Call.UPDATE_POD_SANDBOX_RESOURCES,
    (Operation.REMOVE, False): Call.REMOVE_CONTAINER,
    (Operation.REMOVE, True): Call.REMOVE_POD_SANDBOX,
}
"""The call of an operation on a container, or on a sandbox; a sandbox has no hook of its own when it starts."""


class DockerHooks:
    """What requests are held with while plugins are registered; reports all requests while a tap is open."""

    def __init__(self, parts: Parts, daemon: Daemon) -> None:
        self._handlers = parts.handlers
        self.dispatcher = parts.dispatcher
        self._metrics = parts.metrics
        self._tap = parts.tap
        self._records = parts.records
        self._thread = parts.thread
        self._daemon = daemon
        self.audit = AuditLog()
        self.budget = HeldBudget(_LIMITS.max_held_total - PROCESSING_BYTES)

    @property
    def has_plugins(self) -> bool:
        """Return whether there is any plugin or policy."""
        return bool(self._handlers.all)

    async def read(self, body: bytes) -> bytes:
        """Return a body as dockerd reads it; a large one is read in a thread."""
        if len(body) <= LARGE_BYTES:
            return readable(body)
        return await asyncio.get_running_loop().run_in_executor(self._thread, readable, body)

    async def find(self, name: str) -> tuple[str, bool] | None:
        """Return the id of one of Kubernetes' containers and whether it is a sandbox; None for any other.

        Raise UNAVAILABLE or INTERNAL if dockerd does not tell.
        """
        if self._records.sandbox(name) is not None:
            return name, True
        if self._records.container(name) is not None:
            return name, False
        try:
            found, kubernetes = await self._daemon.identify(name)
        except GovernorError as error:
            if error.kind is Kind.NOT_FOUND:
                return None
            raise
        return None if kubernetes is None else (found, kubernetes.is_sandbox)

    def sandbox_of(self, pod: PodIdentity) -> str:
        """Return the id of the newest recorded sandbox of a pod, or ``""``."""
        wanted = pod.namespace, pod.name, pod.uid
        known = [(each.pod.identity, each.id) for each in self._records.sandboxes()]
        found = [(own.attempt, each) for own, each in known if (own.namespace, own.name, own.uid) == wanted]
        return max(found)[1] if found else ""

    def ended(
        self, route: Route, started: float, outcome: Outcome, status: int, exchange: "HeldExchange | None"
    ) -> None:
        """Count a request that has ended, and report it to taps; after a prune, compare the records with dockerd."""
        held = None if exchange is None else exchange.held
        if route.is_prune:
            self._records.mark_stale()
        if held is not None:
            self._metrics.count_call(str(held.call), outcome.value)
        if not self._tap.is_open:
            return
        self._tap.publish(
            TapCall(
                time=datetime.datetime.fromtimestamp(started, datetime.UTC),
                path=route.summary,
                outcome=outcome.value,
                status=responses.name_of(status),
                seconds=max(0.0, time.time() - started),
                subject=self._subject(route) if held is None else held.subject,
                held=held is not None,
                trail=None if held is None else held.trail(),
            )
        )

    def _subject(self, route: Route) -> Subject:
        name = route.container
        if self._records.sandbox(name) is not None:
            return subject_of(Request(Call.STOP_POD_SANDBOX, name), self._records)
        if self._records.container(name) is not None:
            return subject_of(Request(Call.STOP_CONTAINER, "", name), self._records)
        return Subject()


class HeldExchange:
    """One request that is read whole, shown to plugins, and sent to dockerd."""

    def __init__(self, hooks: DockerHooks, session: "DockerSession", head: RequestHead, route: Route) -> None:
        self._hooks = hooks
        self._session = session
        self._client = session.client
        self._head = head
        self._route = route
        self._framing = head.body()
        self._raw = bytearray()
        self._payload = bytearray()
        self.held: Held | None = None
        """None as long as it is not known to concern one of Kubernetes' containers."""
        self.is_rejected = False

    @property
    def held_bytes(self) -> int:
        """Return the size of what is held."""
        return len(self._payload)

    async def run(self) -> bool:
        """Hold the request and serve it; return whether another may follow on the connection.

        Raise OSError if dockerd cannot be reached, ``Disconnected`` if it does not answer, INVALID if the body is
        malformed or has a member more than once.
        """
        size = _LIMITS.max_held_body if self._framing.size is None else self._framing.size
        if size > _LIMITS.max_held_body:
            return await self._pass_large()
        async with _reserved(self._hooks.budget, size):
            if not await self._read_body():
                return await self._pass_large()
            body = await self._readable()
            try:
                found = await self._identified(body)
            except GovernorError as error:
                return await self._pass_uncalled(error.kind, error.message)
            if found is None:
                return await self._pass()
            self.held = held = Held(
                found[0], None, "", [each for each in self._head.fields if each[0] in _TRACE_CONTEXT]
            )
            try:
                return await self._serve(held, found[1].encoded())
            finally:
                self._hooks.dispatcher.finish(held)

    async def _read_body(self) -> bool:
        """Read the body; return False if it is too large. Raise ``Disconnected`` if the client ends too early."""
        if self._head.expects_continue and not self._framing.is_complete and not self._client.has_data:
            self._client.write(responses.CONTINUE)
        is_plain = self._framing.size is not None
        while not self._framing.is_complete:
            if not await self._client.wait():
                self._client.abort()
                raise Disconnected("the client left")
            data = self._client.take()
            taken = self._framing.take(data, self._payload)
            self._client.put_back(data[taken:])
            if not is_plain:
                self._raw += data[:taken]
            if len(self._payload) > _LIMITS.max_held_body:
                return False
        return True

    async def _readable(self) -> bytes:
        """Return the body as dockerd reads it, or as it is if that fails: then the plugins' failure policies decide."""
        body = bytes(self._payload)
        try:
            return await self._hooks.read(body) if body else body
        except GovernorError as error:
            if error.code == REPEATED:
                raise
            return body

    async def _identified(self, body: bytes) -> tuple[Call, ContainerRequest] | None:
        """Return what the request concerns, or None if no hook concerns it; raise if that cannot be found out."""
        route = self._route
        if route.operation is Operation.CREATE:
            name = created_name(route.container, body)
            if name is None:
                return None
            sandbox_id = "" if name.is_sandbox or name.sandbox_id else self._hooks.sandbox_of(name.pod)
            return _CALLS[route.operation, name.is_sandbox], ContainerRequest(route.container, body, sandbox_id)
        found = await self._hooks.find(route.container)
        call = None if found is None else _CALLS.get((route.operation, found[1]))
        return None if found is None or call is None else (call, ContainerRequest(found[0], body))

    async def _pass_large(self) -> bool:
        return await self._pass_uncalled(Kind.EXHAUSTED, "the request is too large to be held for plugins")

    async def _pass_uncalled(self, kind: Kind, reason: str) -> bool:
        """Forward a request that cannot be held, or reject it if a plugin with failure policy Fail must be called."""
        self.held = held = Held(_CALLS[self._route.operation, False])
        rejected = self._hooks.dispatcher.pass_uncalled(held, kind, reason)
        if rejected is not None:
            self._reject(held, rejected)
            return self._framing.is_complete
        return await self._pass()

    async def _pass(self) -> bool:
        """Forward the request as it was received, and relay what follows."""
        exchange = await self._session.begin(self._head, self._route)
        received = bytes(self._payload if self._framing.size is not None else self._raw)
        is_read = bool(received) or self._framing.is_complete
        head = self._head.with_body(None) if is_read else self._head.raw
        return await exchange.relay(head + received, self._framing)

    def _reject(self, held: Held, rejected: Rejected) -> None:
        held.rejection, self.is_rejected = rejected.message, True
        closes = not self._framing.is_complete
        self._client.write(responses.error_response(responses.STATUS[rejected.kind], rejected.message, closes=closes))

    async def _serve(self, held: Held, message: bytes) -> bool:
        rejected = await self._before(held, message)
        if rejected is not None:
            self._reject(held, rejected)
            return not self._head.closes
        exchange = await self._session.begin(self._head, self._route)
        exchange.send(self._request(held))
        self._hooks.audit.record(held)
        response = await exchange.next_response()
        framing = response.body(self._head.method)
        read = await exchange.read_response(framing, _LIMITS.max_held_response)
        rejected = await self._after(held, response, read.payload if read.is_whole else None)
        if rejected is not None and read.is_whole:
            self._reject(held, rejected)
        else:
            exchange.send_response(response, read.raw)
            await exchange.relay_response(framing)
        return not (self._head.closes or response.closes or isinstance(framing, UntilClose))

    def _request(self, held: Held) -> bytes:
        """Return the request as dockerd gets it."""
        if held.body is not None:
            body, held.body = held.body, None
            return self._head.with_body(len(body)) + body
        is_sized = self._framing.size is not None
        return self._head.with_body(None if is_sized else len(self._payload)) + bytes(self._payload)

    async def _before(self, held: Held, message: bytes) -> Rejected | None:
        """Call the plugins of the hook before the call; raise ``Disconnected`` if the client goes meanwhile."""
        done: asyncio.Future[Rejected | None] = asyncio.get_running_loop().create_future()
        self._hooks.dispatcher.before(held, message, lambda rejected: _set(done, rejected))
        while not done.done():
            if self._client.is_gone():
                held.cancel()
                raise Disconnected("the client left")
            changed = self._client.changed()
            both: set[asyncio.Future[Any]] = {done, changed}
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
        held.work = None
        return done.result()

    async def _after(self, held: Held, response: ResponseHead, body: bytes | None) -> Rejected | None:
        """Record the response, or None for one that was not read, and notify plugins, even if the client has gone."""
        dispatcher, error = self._hooks.dispatcher, responses.kind_of(self._route.operation, response.status)
        read, unread = dispatcher.responded, dispatcher.responded_unread
        hook = unread(held, error) if body is None else read(held, error, body, "")
        return None if hook is None else await self._notified(held, hook)

    async def _notified(self, held: Held, hook: Hook) -> Rejected | None:
        done: asyncio.Future[Rejected | None] = asyncio.get_running_loop().create_future()
        self._hooks.dispatcher.after(held, hook, lambda rejected: _set(done, rejected))
        rejected = await done
        held.work = None
        return rejected


def _set(future: "asyncio.Future[Rejected | None]", value: Rejected | None) -> None:
    if not future.done():
        future.set_result(value)


@contextlib.asynccontextmanager
async def _reserved(budget: HeldBudget, size: int) -> AsyncIterator[None]:
    """Wait until there is memory for a request of this size, and reserve it."""
    if not budget.reserve(size):
        key, granted = object(), asyncio.Event()
        budget.wait(key, size, granted.set)
        try:
            await granted.wait()
        except asyncio.CancelledError:
            if granted.is_set():
                budget.release(size)
            budget.leave(key)
            raise
    try:
        yield
    finally:
        budget.release(size)
