"""The leader elector: acquires and renews a Lease, runs the work while leading and stops it when the lease is lost.

``candidate`` makes the decisions.
"""

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Limits
from governor.kube.errors import ApiError
from governor.kube.lease.candidate import Candidate, Lease, LeaseSpec, Moment, Step, Timing
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import BreakerPolicy
from governor.process.supervise import EXIT_FAILED, exit_at_once
from governor.process.telemetry import logging
from governor.process.telemetry.instruments import Gauge, Registry

LEASES: Final = ApiResource("coordination.k8s.io", "v1", "Lease", "leases", namespaced=True)
LIMITS: Final = Limits(
    breaker=BreakerPolicy(failures=5, backoff=Backoff(initial_s=1.0, max_s=2.0)), attempts=1, keepalive_s=15.0
)
"""For a separate client, so that renewals do not queue behind other requests; the elector retries by itself.

The connection is kept from one renewal to the next, which needs no TLS handshake then.
"""
_MANAGER: Final = "leader-election"
_JITTER: Final = 1.2
"""The longest wait between two attempts to acquire, in retry periods."""

Result = TypeVar("Result")
_log = logging.get_logger(__name__)


def master_status_gauge(registry: Registry) -> Gauge:
    """Return the gauge for all leader electors of one program."""
    return Gauge(
        "leader_election_master_status",
        "1 while this process holds the lease, otherwise 0.",
        ["name"],
        registry=registry,
    )


class LeaderElector:
    """A candidate for one Lease; its identity is ``identity_prefix`` with a random suffix."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity_prefix: str,
        *,
        clock: Clock,
        status: Gauge,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        rng: random.Random | None = None,
        exit_process: Callable[[int], NoReturn] = exit_at_once,
    ) -> None:
        self._client = client
        self._ref = ObjectRef(LEASES.group, LEASES.kind, namespace, name)
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - jitter only
        self._exit_process = exit_process
        self._candidate = Candidate(f"{identity_prefix}_{uuid.uuid4().hex}", timing)
        self._work_deadline_s = 0.0
        self._last_warning = ""
        self._last_holder = ""
        status.labels(name).set_function(lambda: float(self.is_leader))

    @property
    def identity(self) -> str:
        """Return the holder identity in the Lease while this elector leads."""
        return self._candidate.identity

    @property
    def is_leader(self) -> bool:
        """Return whether this elector leads now, even right after the process was paused."""
        return self.remaining_s > 0

    @property
    def remaining_s(self) -> float:
        """Return how long no other candidate can lead; zero when not leading.

        Check it before a write that must not happen twice, and use it as the timeout of that write.
        """
        return max(0.0, self._candidate.remaining_s(self._now()))

    @property
    def epoch(self) -> int:
        """Return the number of this term (``leaseTransitions``), which is higher than that of earlier ones, or zero."""
        return self._candidate.term.epoch if self._candidate.term else 0

    @property
    def failure(self) -> str:
        """Return why the last attempt to acquire or renew the Lease failed, or ``""`` if it did not."""
        return self._last_warning

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Run ``lead`` whenever leading; return when it finishes, or raise its error.

        ``lead`` is cancelled when the lease is lost, and called again when it is acquired again. When ``run`` is
        cancelled, it cancels ``lead``, renews the lease until ``lead`` has stopped, and then releases it, so that
        another candidate can acquire it at once.

        Work that does not stop after the lease is lost must not continue beside another leader: halfway between the
        renew deadline and the end of the Lease, ``exit_process`` ends the whole program. Work that blocks the event
        loop cannot be cancelled: it must check ``remaining_s``.
        """
        while True:
            await self._acquire()
            if not await self._lead(lead):
                return

    async def _acquire(self) -> None:
        while True:
            try:
                if await self._with_timeout(self._attempt_timeout_s, self._try_acquire()):
                    self._last_warning = self._last_holder = ""
                    _log.info("acquired lease", lease=str(self._ref), identity=self.identity, epoch=self.epoch)
                    return
                self._last_warning = ""
                self._log_holder()
            except GovernorError as error:
                self._warn_once("cannot acquire lease", error)
            retry_period_s = self._candidate.timing.retry_period_s
            await self._clock.sleep(self._rng.uniform(retry_period_s, _JITTER * retry_period_s))

    async def _try_acquire(self) -> bool:
        await self._read()
        if self._candidate.next_step(self._now()) is Step.ACQUIRE:
            try:
                await self._write(self._candidate.acquire_spec(self._now()))
            except ApiError as error:
                if error.kind not in (Kind.CONFLICT, Kind.EXISTS):
                    raise
        return self.is_leader

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Run while leading. Return True if the lease was lost, False if the work finished."""
        work = asyncio.create_task(_as_coroutine(lead))
        renewal = asyncio.create_task(self._renew_until_lost())
        try:
            await asyncio.wait({work, renewal}, return_when=asyncio.FIRST_COMPLETED)
            lost = not work.done()
        finally:
            try:
                await self._stop(work)
            finally:
                await _cancel_and_wait(renewal)
            await self._release()
            if not work.cancelled():
                work.result()
        if not renewal.cancelled():
            renewal.result()
        return lost

    async def _renew_until_lost(self) -> None:
        while True:
            await self._clock.sleep(min(self._candidate.timing.retry_period_s, self.remaining_s))
            if self._candidate.next_step(self._now()) is Step.RENEW:
                try:
                    timeout_s = min(self._attempt_timeout_s, self.remaining_s)
                    await self._with_timeout(timeout_s, self._update(Candidate.renew_spec))
                except GovernorError as error:
                    self._warn_once("cannot renew lease", error)
                else:
                    self._last_warning = ""
            if self._candidate.next_step(self._now()) is Step.STEP_DOWN:
                _log.warning("lease lost", lease=str(self._ref), identity=self.identity, epoch=self.epoch)
                self._candidate = self._candidate.lost()
                return

    async def _stop(self, work: "asyncio.Task[None]") -> None:
        """Cancel the work and wait for it while the Lease lasts; exit the process if it takes longer."""
        work.cancel()
        earliest_exit_s = self._clock.monotonic() + self._candidate.timing.retry_period_s
        while not work.done():
            remaining_s = max(earliest_exit_s, self._work_deadline_s) - self._clock.monotonic()
            if remaining_s <= 0:
                _log.error("work did not stop after the lease was lost, exiting", lease=str(self._ref))
                self._exit_process(EXIT_FAILED)
            await self._wait(work, remaining_s)

    async def _release(self) -> None:
        if self._candidate.term is None:
            return
        timeout_s = min(self._attempt_timeout_s, self.remaining_s)
        self._candidate = self._candidate.lost()
        try:
            await self._with_timeout(timeout_s, self._update(Candidate.release_spec))
            _log.info("released lease", lease=str(self._ref), identity=self.identity)
        except GovernorError as error:
            self._warn_once("cannot release lease, it stays held until it expires", error)

    async def _update(self, spec_of: Callable[[Candidate, Moment], LeaseSpec]) -> None:
        """Write the Lease; if it changed, read it and write once more if it still names this candidate."""
        try:
            await self._write(spec_of(self._candidate, self._now()))
        except ApiError as error:
            if error.kind not in (Kind.CONFLICT, Kind.NOT_FOUND):
                raise
            await self._read()
            if self._candidate.is_holder:
                await self._write(spec_of(self._candidate, self._now()))

    async def _read(self) -> None:
        try:
            lease = Lease.from_manifest(await self._client.get(LEASES, self._ref.name, self._ref.namespace))
        except ApiError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            lease = None
        self._candidate = self._candidate.observed(lease, self._now())

    async def _write(self, spec: LeaseSpec) -> None:
        sent = self._now()
        self._candidate = self._candidate.sending(spec)
        if self._candidate.lease is None:
            response = await self._client.create(LEASES, self._manifest(spec), manager=_MANAGER)
        else:
            response = await self._client.replace(LEASES, self._candidate.lease.with_spec(spec), manager=_MANAGER)
        self._candidate = self._candidate.written(Lease.from_manifest(response), sent)
        timing = self._candidate.timing
        self._work_deadline_s = sent.monotonic + (timing.renew_deadline_s + timing.lease_duration_s) / 2

    def _manifest(self, spec: LeaseSpec) -> Object:
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"namespace": self._ref.namespace, "name": self._ref.name},
            "spec": msgspec.to_builtins(spec),
        }

    @property
    def _attempt_timeout_s(self) -> float:
        """Return half the renew deadline, so that a connection that hangs leaves time for another."""
        return self._candidate.timing.renew_deadline_s / 2

    async def _with_timeout(self, seconds: float, call: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of the call; DEADLINE if it takes longer on the injected clock."""
        task = asyncio.create_task(call)
        try:
            await self._wait(task, seconds)
            if task.done():
                return task.result()
        finally:
            await _cancel_and_wait(task)
        raise GovernorError(Kind.DEADLINE, "lease-deadline", f"{self._ref}: no response within {seconds:g} s")

    async def _wait(self, task: "asyncio.Task[Any]", seconds: float) -> None:
        """Wait until the task is done or the time has passed."""
        timer = asyncio.create_task(self._clock.sleep(seconds))
        try:
            await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel_and_wait(timer)

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.now())

    def _log_holder(self) -> None:
        """Log which candidate holds the Lease, once for each holder."""
        lease = self._candidate.lease
        holder = lease.spec.holder_identity if lease else None
        if holder and holder != self._last_holder:
            self._last_holder = holder
            _log.info("waiting for lease", lease=str(self._ref), holder=holder)

    def _warn_once(self, event: str, error: GovernorError) -> None:
        """Log a warning unless the last attempt failed with the same error."""
        if self._last_warning != str(error):
            self._last_warning = str(error)
            _log.warning(event, lease=str(self._ref), error=str(error), kind=error.kind, code=error.code)


async def _as_coroutine(lead: Callable[[], Awaitable[None]]) -> None:
    await lead()


async def _cancel_and_wait(task: "asyncio.Task[Any]") -> None:
    """Cancel a task that stops when cancelled, and ignore its result."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
