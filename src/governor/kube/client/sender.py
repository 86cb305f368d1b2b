"""The requests of one client: with its credential, within its rate, not to a server that is down, again when it helps.

What counts as a failure for the breaker: no answer (no connection, a broken one, none in time), and a 5xx that did not
come from the API server but from something before it. A 5xx with a Status comes from an API server that works: it may
be about one object only (a webhook that fails) or one group (an aggregated server that is away), so it opens no
circuit, nor does it close one. Every other answer is a success.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, TypeAlias, TypeVar

import aiohttp
import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.client.endpoint import LOST, UNREACHABLE, Endpoint
from governor.kube.client.streams import Lines
from governor.kube.client.transport import Answer, Request, Transport
from governor.kube.config.access import Access, Credential
from governor.kube.config.credentials import Credentials
from governor.kube.errors import ApiError
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import Breaker, BreakerPolicy
from governor.process.flowcontrol.limiter import Limiter, Rate

_UNAUTHORIZED: Final = 401
_TOO_MANY: Final = 429
_PASSING: Final = frozenset({_TOO_MANY, 500, 502, 503, 504})

_Begun = TypeVar("_Begun", Answer, aiohttp.ClientResponse)
_Act: TypeAlias = Callable[[Request, Credential], Awaitable[_Begun]]


class Limits(msgspec.Struct, frozen=True):
    """How much one client asks of its cluster."""

    rate: Rate = Rate(per_s=50.0, burst=100)
    tolerance: BreakerPolicy = BreakerPolicy(failures=5, backoff=Backoff(initial_s=1.0, max_s=60.0))
    attempts: int = 4
    backoff: Backoff = Backoff(initial_s=0.1, max_s=5.0)
    """Between attempts when the server does not say how long to wait."""


class Sender:
    """Sends the requests of one client."""

    __slots__ = ("_access", "_breaker", "_credentials", "_endpoint", "_limiter", "_limits", "_transport")

    def __init__(self, transport: Transport, access: Access, limits: Limits) -> None:
        self._transport = transport
        self._access = access
        self._limits = limits
        self._endpoint = Endpoint(transport, access)
        self._credentials = Credentials(access, transport.clock)
        self._limiter = Limiter(limits.rate, transport.clock)
        self._breaker = Breaker(access.server, limits.tolerance, transport.clock, transport.chance)

    async def exchange(self, request: Request) -> Answer:
        """The answer; a refusal is an ``ApiError``, no answer UNAVAILABLE or DEADLINE."""
        return await self._known(request, self._endpoint.exchange)

    async def lines(self, request: Request) -> AsyncGenerator[bytes, None]:
        """The lines of a streamed answer as they come; UNAVAILABLE if it breaks off."""
        response = await self._known(request, self._endpoint.open)
        lines = Lines()
        try:
            while (ended := await self._endpoint.more(request, response, lines)) is not None:
                for line in ended:
                    yield line
            if rest := lines.rest():
                yield rest
        finally:
            response.close()

    async def _known(self, request: Request, act: _Act[_Begun]) -> _Begun:
        """With the present credential, and if the server refuses that one, with a newer one."""
        credential = self._credentials.held() or await self._credentials.fresh()
        try:
            return await self._in_time(request, act, credential)
        except ApiError as error:
            if error.status != _UNAUTHORIZED:
                raise
            renewed = await self._credentials.fresh(refused=credential)
            if renewed is credential:
                raise
        return await self._in_time(request, act, renewed)

    async def _in_time(self, request: Request, act: _Act[_Begun], credential: Credential) -> _Begun:
        """Attempt after attempt until one succeeds, repeating does not help, or the time is over."""
        clock = self._transport.clock
        end_s = clock.monotonic() + request.timeout_s
        failures = 0
        answering = False
        try:
            async with asyncio.timeout(request.timeout_s):
                while True:
                    self._breaker.check()
                    await self._limiter.acquire()
                    answering = True
                    try:
                        return await self._attempt(request, act, credential)
                    except GovernorError as error:
                        answering = False
                        failures += 1
                        pause_s = self._pause_s(request, error, failures)
                        if pause_s is None or clock.monotonic() + pause_s >= end_s:
                            raise
                    await clock.sleep(pause_s)
        except TimeoutError as error:
            raise self._late(request, answering=answering) from error

    async def _attempt(self, request: Request, act: _Act[_Begun], credential: Credential) -> _Begun:
        began_s = self._transport.clock.monotonic()
        status = 0
        try:
            answer = await act(request, credential)
            status = answer.status
        except ApiError as error:
            status = error.status
            self._judge(error)
            raise
        except GovernorError as error:
            if error.kind in (Kind.UNAVAILABLE, Kind.UNAUTHENTICATED):
                self._breaker.failed(error)
            raise
        finally:
            if self._transport.metrics:
                took_s = self._transport.clock.monotonic() - began_s
                self._transport.metrics.record(request.method, status, took_s)
        self._breaker.succeeded()
        return answer

    def _judge(self, error: ApiError) -> None:
        if error.status < 500:
            self._breaker.succeeded()
        elif not error.from_server:
            self._breaker.failed(error)

    def _pause_s(self, request: Request, error: GovernorError, failures: int) -> float | None:
        if failures >= self._limits.attempts:
            return None
        least_s = least_pause_s(request, error)
        if least_s is None:
            return None
        return least_s + self._limits.backoff.delay_s(failures, self._transport.chance)

    def _late(self, request: Request, *, answering: bool) -> GovernorError:
        where = f"{request} at {self._access.server}"
        if not answering:
            message = f"{where}: not sent within {request.timeout_s:g} s, so many requests to it wait already"
            return GovernorError(Kind.DEADLINE, "kube-deadline", message)
        late = GovernorError(Kind.DEADLINE, "kube-deadline", f"{where}: no answer within {request.timeout_s:g} s")
        self._breaker.failed(late)
        return late


def least_pause_s(request: Request, error: GovernorError) -> float | None:
    """How long to wait at least before the request is sent again; None if it must not be, or if that cannot help.

    A request that is not repeatable is sent again only if it surely was not carried out: nothing was sent, or the
    server put it off (429 with Retry-After; without it, it may be a refusal, such as of an eviction).
    """
    if isinstance(error, ApiError):
        put_off = error.status == _TOO_MANY and error.retry_after_s is not None
        again = put_off or (request.repeatable and error.status in _PASSING)
        return (error.retry_after_s or 0.0) if again else None
    again = error.code == UNREACHABLE or (error.code == LOST and request.repeatable)
    return 0.0 if again else None
