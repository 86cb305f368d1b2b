"""Requests of one client with its credential, rate limit, circuit breaker and retries.

These count as failures for the breaker: no connection, a lost one, a 5xx that came from an intermediary, and some
timeouts. A 5xx with a Status comes from a working API server: it may concern one object (a failing webhook) or one
group (an unavailable aggregated server), so it neither opens nor closes the circuit. Nor does a 404 without a Status,
which an API server or a load balancer may have sent. Any other response is a success.

A timeout counts unless another component may be the one that hangs: admission webhooks hang only writes, and a
conversion webhook or aggregated server hangs the reads of its kinds while the client receives other responses. A server
that hangs opens the circuit of a client without reads too: its next writes need new connections, whose TLS handshakes
fail.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, TypeAlias, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.client.body import LineSplitter
from governor.kube.client.connections import Exchange
from governor.kube.client.rest import CONNECTION_LOST, UNREACHABLE, RestClient
from governor.kube.client.transport import Request, Response, Transport
from governor.kube.config.access import Access, Credential
from governor.kube.config.credentials import Credentials
from governor.kube.errors import NO_API, ApiError
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import Breaker, BreakerPolicy
from governor.process.flowcontrol.limiter import Limiter, Rate

_UNAUTHORIZED: Final = 401
_TOO_MANY_REQUESTS: Final = 429
_INTERNAL_ERROR: Final = 500
_TRANSIENT: Final = frozenset({_TOO_MANY_REQUESTS, _INTERNAL_ERROR, 502, 503, 504})

_Result = TypeVar("_Result", Response, Exchange)
_Send: TypeAlias = Callable[[RestClient, Request, Credential], Awaitable[_Result]]


class Limits(msgspec.Struct, frozen=True):
    """Rate limit, circuit breaker and retry settings of one client."""

    rate: Rate = Rate(per_s=50.0, burst=100)
    breaker: BreakerPolicy = BreakerPolicy(failures=5, backoff=Backoff(initial_s=1.0, max_s=60.0))
    attempts: int = 4
    backoff: Backoff = Backoff(initial_s=0.1, max_s=5.0)
    """Between attempts; added to a Retry-After."""
    keepalive_s: float = 2.0
    """How long an idle connection is kept. Each holds a TLS context, which adds up over many clusters: 1,000 clients
    used one after another took 34 KiB each with 15 s, and 20 KiB with this."""


class RetryingClient:
    """Sends the requests of one client, with retries."""

    __slots__ = ("_access", "_breaker", "_credentials", "_limiter", "_limits", "_responses", "_rest", "_transport")

    def __init__(self, transport: Transport, access: Access, limits: Limits) -> None:
        self._transport = transport
        self._access = access
        self._limits = limits
        self._rest = RestClient(transport, access, limits.keepalive_s)
        self._credentials = Credentials(access, transport.clock)
        self._limiter = Limiter(limits.rate, transport.clock)
        self._breaker = Breaker(access.server, limits.breaker, transport.clock, transport.rng)
        self._responses = 0

    def update_access(self, access: Access) -> None:
        """Use another credential for the same server from now on; requests in flight end with the old one."""
        if access.server != self._access.server:
            message = f"the client of {self._access.server} cannot change to another server; create another client"
            raise GovernorError(Kind.PRECONDITION, "kube-server-changed", message)
        if access != self._access:
            self._access = access
            self._rest = RestClient(self._transport, access, self._limits.keepalive_s)
            self._credentials = Credentials(access, self._transport.clock)

    @property
    def access(self) -> Access:
        """The present access."""
        return self._access

    async def send(self, request: Request) -> Response:
        """Return the response; an error response is an ``ApiError``, a missing one UNAVAILABLE or DEADLINE."""
        return await self._authenticated(request, RestClient.send)

    async def stream_lines(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a streamed response as they arrive; UNAVAILABLE if the connection is lost."""
        response = await self._authenticated(request, RestClient.open_stream)
        splitter = LineSplitter()
        try:
            while (lines := await self._rest.read_lines(request, response, splitter)) is not None:
                for line in lines:
                    yield line
            if rest := splitter.rest():
                yield rest
        finally:
            response.close()

    async def _authenticated(self, request: Request, send: _Send[_Result]) -> _Result:
        """Send with the current credential; if the server rejects it, send again with a renewed one."""
        rest, credentials = self._rest, self._credentials
        credential = credentials.cached() or await credentials.get()
        try:
            return await self._with_retries(request, send, rest, credential)
        except ApiError as error:
            if error.status != _UNAUTHORIZED:
                raise
            rest, credentials = self._rest, self._credentials
            renewed = await credentials.get(rejected=credential)
            if renewed is credential:
                raise
        return await self._with_retries(request, send, rest, renewed)

    async def _with_retries(
        self, request: Request, send: _Send[_Result], rest: RestClient, credential: Credential
    ) -> _Result:
        """Repeat attempts until one succeeds, the error is not retryable, or the timeout expires."""
        clock = self._transport.clock
        deadline_s = clock.monotonic() + request.timeout_s
        failures = 0
        last_error: GovernorError | None = None
        responses_before = -1
        try:
            async with asyncio.timeout(request.timeout_s):
                while True:
                    self._breaker.check()
                    await self._limiter.acquire()
                    responses_before = self._responses
                    try:
                        return await self._attempt(request, send, rest, credential)
                    except GovernorError as error:
                        responses_before = -1
                        failures += 1
                        last_error = error
                        delay_s = self._retry_delay_s(request, error, failures)
                        if delay_s is None or clock.monotonic() + delay_s >= deadline_s:
                            raise
                    await clock.sleep(delay_s)
        except TimeoutError as error:
            raise self._timed_out(request, responses_before, last_error) from error

    async def _attempt(
        self, request: Request, send: _Send[_Result], rest: RestClient, credential: Credential
    ) -> _Result:
        started_s = self._transport.clock.monotonic()
        status = 0
        try:
            response = await send(rest, request, credential)
            status = response.status
        except ApiError as error:
            status = error.status
            self._responses += 1
            self._report_to_breaker(error)
            raise
        except GovernorError as error:
            if error.kind in (Kind.UNAVAILABLE, Kind.UNAUTHENTICATED):
                self._breaker.failed(error)
            raise
        finally:
            if self._transport.metrics:
                duration_s = self._transport.clock.monotonic() - started_s
                self._transport.metrics.record(request.method, status, duration_s)
        self._responses += 1
        self._breaker.succeeded()
        return response

    def _report_to_breaker(self, error: ApiError) -> None:
        if error.status < 500 and error.code != NO_API:
            self._breaker.succeeded()
        elif error.status >= 500 and not error.from_server:
            self._breaker.failed(error)

    def _retry_delay_s(self, request: Request, error: GovernorError, failures: int) -> float | None:
        if failures >= self._limits.attempts:
            return None
        min_s = min_retry_delay_s(request, error)
        if min_s is None:
            return None
        return min_s + self._limits.backoff.delay_s(failures, self._transport.rng)

    def _timed_out(self, request: Request, responses_before: int, last_error: GovernorError | None) -> GovernorError:
        where = f"{request} at {self._access.server}"
        was_sent = responses_before >= 0
        if was_sent:
            reason = f"no response within {request.timeout_s:g} s"
        else:
            reason = f"not sent within {request.timeout_s:g} s: the client's rate limit delayed it"
        timed_out = GovernorError(Kind.DEADLINE, "kube-deadline", f"{where}: {reason}")
        if request.method == "GET" and responses_before == self._responses:
            self._breaker.failed(timed_out)
        if last_error is None or (was_sent and not request.retryable):
            # An earlier error would say that the request was not executed, which the last attempt may have changed.
            return timed_out
        # It names the cause, such as the webhook that hangs.
        return last_error


def min_retry_delay_s(request: Request, error: GovernorError) -> float | None:
    """Return the minimum delay before a retry, or None if the request must not be retried or a retry cannot help.

    A request that is not retryable is sent again only if it was certainly not executed: it was never sent, or the
    server deferred it (429 with Retry-After; without that header a 429 may be final, as for an eviction). An internal
    error of the API server is final unless it asks for a retry: a webhook that fails is likely to fail again.
    """
    if isinstance(error, ApiError):
        deferred = error.retry_after_s is not None
        final = error.status == _INTERNAL_ERROR and error.from_server and not deferred
        retry = (deferred and error.status == _TOO_MANY_REQUESTS) or (
            request.retryable and error.status in _TRANSIENT and not final
        )
        return (error.retry_after_s or 0.0) if retry else None
    retry = error.code == UNREACHABLE or (error.code == CONNECTION_LOST and request.retryable)
    return 0.0 if retry else None
