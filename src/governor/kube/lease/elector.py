"""One candidate at work: asks the API server, runs the work while it leads, and ends it in time.

The decisions are ``candidate``'s.
"""

import asyncio
import os
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Limits
from governor.kube.errors import ApiError
from governor.kube.lease.candidate import Candidate, Lease, Moment, Spec, Step, Timing
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import BreakerPolicy
from governor.process.supervise import EXIT_FAILED
from governor.process.telemetry import logging
from governor.process.telemetry.instruments import Gauge, Registry

LEASES: Final = ApiResource("coordination.k8s.io", "v1", "Lease", "leases", namespaced=True)
LIMITS: Final = Limits(breaker=BreakerPolicy(failures=5, backoff=Backoff(initial_s=1.0, max_s=2.0)), attempts=1)
"""For a client of the election's own: behind those of busy work renewals come late, and it tries again by itself."""
_MANAGER: Final = "leader-election"
_JITTER: Final = 1.2
"""The longest wait between two looks of a candidate, in retries."""

Result = TypeVar("Result")
_log = logging.get_logger(__name__)


def master_status(registry: Registry) -> Gauge:
    """The metric of all elections of one program."""
    return Gauge("leader_election_master_status", "1 while this process leads.", ["name"], registry=registry)


class Election:
    """A candidate for one Lease; ``candidate`` names it for people, and each instance has an identity of its own."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        candidate: str,
        *,
        clock: Clock,
        status: Gauge,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        chance: random.Random | None = None,
        leave: Callable[[int], NoReturn] = os._exit,
    ) -> None:
        self._client = client
        self._ref = ObjectRef(LEASES.group, LEASES.kind, namespace, name)
        self._clock = clock
        self._chance = chance or random.Random()  # noqa: S311 - spreads requests, guards nothing
        self._leave = leave
        self._me = Candidate(f"{candidate}_{uuid.uuid4().hex}", timing)
        self._last_end_s = 0.0
        self._complaint = ""
        status.labels(name).set_function(lambda: float(self.is_leader))

    @property
    def identity(self) -> str:
        """What the Lease names while this one leads."""
        return self._me.identity

    @property
    def is_leader(self) -> bool:
        """Whether it leads at this moment, even if the process was paused just before."""
        return self.remaining_s > 0

    @property
    def remaining_s(self) -> float:
        """For how long nobody else can lead: zero when not leading.

        Look before a write that must not happen twice, and bound that write by it.
        """
        return max(0.0, self._me.remaining_s(self._moment()))

    @property
    def epoch(self) -> int:
        """The number of this term (``leaseTransitions``), which tells it from earlier ones; zero without one."""
        return self._me.term.epoch if self._me.term else 0

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Lead whenever possible; end when ``lead`` ends by itself, with its error if it has one.

        ``lead`` is cancelled as soon as the Lease is lost, and called again when it is won again. When ``run`` is
        cancelled it cancels ``lead``, keeps the Lease until that has ended, and then gives it back, so that another
        takes over at once.

        Work that does not end when the Lease is lost must not go on beside another leader: halfway between the renew
        deadline and the end of the Lease the whole program ends by ``leave``. Work that blocks the event loop cannot
        be ended: it must look at ``remaining_s``.
        """
        while True:
            await self._acquire()
            if not await self._hold(lead):
                return

    async def _acquire(self) -> None:
        while True:
            try:
                if await self._within(self._attempt_s, self._attempt()):
                    self._complaint = ""
                    _log.info("leading", lease=str(self._ref), identity=self.identity, epoch=self.epoch)
                    return
            except GovernorError as error:
                self._complain("cannot look for leadership", error)
            retry_s = self._me.timing.retry_s
            await self._clock.sleep(self._chance.uniform(retry_s, _JITTER * retry_s))

    async def _attempt(self) -> bool:
        await self._look()
        if self._me.step(self._moment()) is Step.TAKE:
            try:
                await self._write(self._me.claim(self._moment()))
            except ApiError as error:
                if error.kind not in (Kind.CONFLICT, Kind.EXISTS):
                    raise
        return self.is_leader

    async def _hold(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Lead until the Lease is lost, which is true, or until the work ends by itself."""
        work = asyncio.create_task(_awaited(lead))
        renewing = asyncio.create_task(self._renew())
        try:
            await asyncio.wait({work, renewing}, return_when=asyncio.FIRST_COMPLETED)
            lost = not work.done()
        finally:
            try:
                await self._end(work)
            finally:
                await _ended(renewing)
            await self._give_back()
            if not work.cancelled():
                work.result()
        if not renewing.cancelled():
            renewing.result()
        return lost

    async def _renew(self) -> None:
        """Return when the Lease is lost."""
        while True:
            await self._clock.sleep(min(self._me.timing.retry_s, self.remaining_s))
            if self._me.step(self._moment()) is Step.RENEW:
                try:
                    await self._within(min(self._attempt_s, self.remaining_s), self._rewrite(Candidate.renewal))
                except GovernorError as error:
                    self._complain("cannot renew leadership", error)
                else:
                    self._complaint = ""
            if self._me.step(self._moment()) is Step.STEP_DOWN:
                _log.warning("no longer leading", lease=str(self._ref), identity=self.identity, epoch=self.epoch)
                self._me = self._me.lost()
                return

    async def _end(self, work: "asyncio.Task[None]") -> None:
        """Cancel the work and wait for it while the Lease lasts; a program whose work goes on longer is ended."""
        work.cancel()
        least_end_s = self._clock.monotonic() + self._me.timing.retry_s
        while not work.done():
            patience_s = max(least_end_s, self._last_end_s) - self._clock.monotonic()
            if patience_s <= 0:
                _log.error("the work of a former leader does not end, so the program does", lease=str(self._ref))
                self._leave(EXIT_FAILED)
            await self._first(work, patience_s)

    async def _give_back(self) -> None:
        if self._me.term is None:
            return
        bound_s = min(self._attempt_s, self.remaining_s)
        self._me = self._me.lost()
        try:
            await self._within(bound_s, self._rewrite(Candidate.release))
            _log.info("gave leadership back", lease=str(self._ref), identity=self.identity)
        except GovernorError as error:
            self._complain("cannot give leadership back, others wait until it has run out", error)

    async def _rewrite(self, spec_of: Callable[[Candidate, Moment], Spec]) -> None:
        """Write; if the Lease has changed, look, and write once more if it still names this candidate."""
        try:
            await self._write(spec_of(self._me, self._moment()))
        except ApiError as error:
            if error.kind not in (Kind.CONFLICT, Kind.NOT_FOUND):
                raise
            await self._look()
            if self._me.is_holder:
                await self._write(spec_of(self._me, self._moment()))

    async def _look(self) -> None:
        try:
            lease = Lease.of(await self._client.get(LEASES, self._ref.name, self._ref.namespace))
        except ApiError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            lease = None
        self._me = self._me.saw(lease, self._moment())

    async def _write(self, spec: Spec) -> None:
        sent = self._moment()
        self._me = self._me.sends(spec)
        if self._me.lease is None:
            answer = await self._client.create(LEASES, self._new(spec), manager=_MANAGER)
        else:
            answer = await self._client.replace(LEASES, self._me.lease.with_spec(spec), manager=_MANAGER)
        self._me = self._me.wrote(Lease.of(answer), sent)
        timing = self._me.timing
        self._last_end_s = sent.steady + (timing.renew_deadline_s + timing.lease_s) / 2

    def _new(self, spec: Spec) -> Object:
        metadata = {"namespace": self._ref.namespace, "name": self._ref.name}
        described = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata}
        return {**described, "spec": msgspec.to_builtins(spec)}

    @property
    def _attempt_s(self) -> float:
        """A connection that hangs must leave time for another."""
        return self._me.timing.renew_deadline_s / 2

    async def _within(self, seconds: float, doing: Coroutine[Any, Any, Result]) -> Result:
        """The result, or DEADLINE once the injected clock says so, whatever the API server does."""
        task = asyncio.create_task(doing)
        try:
            await self._first(task, seconds)
            if task.done():
                return task.result()
        finally:
            await _ended(task)
        raise GovernorError(Kind.DEADLINE, "lease-deadline", f"{self._ref}: no answer within {seconds:g} s")

    async def _first(self, task: "asyncio.Task[Any]", seconds: float) -> None:
        """Wait until the task is done or the time is over."""
        timer = asyncio.create_task(self._clock.sleep(seconds))
        try:
            await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _ended(timer)

    def _moment(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.now())

    def _complain(self, what: str, error: GovernorError) -> None:
        """Once for each error: it is tried again every few seconds."""
        if self._complaint != str(error):
            self._complaint = str(error)
            _log.warning(what, lease=str(self._ref), error=str(error), kind=error.kind, code=error.code)


async def _awaited(lead: Callable[[], Awaitable[None]]) -> None:
    await lead()


async def _ended(task: "asyncio.Task[Any]") -> None:
    """Cancel a task of this module, which ends when it is cancelled; what it says then is of no interest."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
