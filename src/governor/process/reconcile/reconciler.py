"""The reconcile loop: workers run a function for each queued key and requeue it by the outcome.

Only keys are queued, in a ``workqueue``, so one key never runs twice at once. Each run has a correlation id
(``logging.correlation_id``), which its log lines have, too. What a key means, and how its state is shown, is up to the
caller.
"""

import asyncio
import contextlib
import random
import secrets
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, get_args

import msgspec

from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.fair_queue import Priority
from governor.process.reconcile.workqueue import QueueMetrics, QueueShutDownError, Workqueue
from governor.process.supervise import being_cancelled
from governor.process.telemetry import logging
from governor.process.telemetry.instruments import Counter, Gauge, Histogram, Registry

K = TypeVar("K", bound=Hashable)

_BUCKETS_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)
_RUN_BYTES: Final = 8
"""Length of a correlation id."""

_log = logging.get_logger(__name__)


class Done(msgspec.Struct, frozen=True):
    """The key is in its desired state; it runs again when it is added."""


class Requeue(msgspec.Struct, frozen=True):
    """Run the key again after a delay; not a failure."""

    after_s: float

    def __post_init__(self) -> None:
        """Reject a negative delay, which would run the key in a busy loop."""
        if self.after_s < 0:
            raise ValueError(f"a key cannot be run again after {self.after_s} s")


class Waiting(msgspec.Struct, frozen=True):
    """The key depends on something else; it is rechecked in case no event arrives."""

    reason: str
    recheck_s: float


class Stalled(msgspec.Struct, frozen=True):
    """A user must act and will cause an event; only ``add`` runs the key again. No error maps to this outcome."""

    reason: str


class Failed(msgspec.Struct, frozen=True):
    """The run failed; it is retried with backoff, slowly if the kind of the error is in ``NEEDS_USER``."""

    error: Exception


Outcome: TypeAlias = Done | Requeue | Waiting | Stalled | Failed


NEEDS_USER: Final = frozenset(
    {Kind.INVALID, Kind.EXISTS, Kind.UNAUTHENTICATED, Kind.DENIED, Kind.UNIMPLEMENTED},
)
"""Errors that usually last until a user acts. The action may cause no event for the key (a role is granted, a quota is
raised, a webhook is fixed), so the key is still retried, slowly."""
SLOW_BACKOFF: Final = Backoff(initial_s=30.0, max_s=900.0)
"""The backoff of these errors."""

_Result: TypeAlias = Literal["success", "error", "requeue", "requeue_after"]
"""The result label that controller-runtime uses."""


def _result(outcome: Outcome) -> _Result:
    match outcome:
        case Done():
            return "success"
        case Requeue(after_s=seconds) if seconds <= 0:
            return "requeue"
        case Requeue() | Waiting():
            return "requeue_after"
        case Stalled() | Failed():
            return "error"


def _checked(key: Hashable, returned: object) -> Outcome:
    """Return the outcome; TypeError for any other value, which an untyped reconcile function may return."""
    if isinstance(returned, Done | Requeue | Waiting | Stalled | Failed):
        return returned
    names = ", ".join(each.__name__ for each in get_args(Outcome))
    raise TypeError(f"the reconcile function returned {returned!r} for {key}; it must return one of {names}")


class ReconcileMetrics:
    """Metrics of all reconcilers of one registry and their queues, under controller-runtime's names."""

    def __init__(self, registry: Registry) -> None:
        self.queue = QueueMetrics(registry)
        self.runs = Counter(
            "controller_runtime_reconcile_total",
            "Reconciliations by result.",
            ["controller", "result"],
            registry=registry,
        )
        self.errors = Counter(
            "controller_runtime_reconcile_errors_total", "Failed reconciliations.", ["controller"], registry=registry
        )
        self.time_s = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "Duration of a reconciliation in seconds.",
            ["controller"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.active = Gauge(
            "controller_runtime_active_workers", "Workers that are processing a key.", ["controller"], registry=registry
        )


class Reconciler(Generic[K]):
    """Calls ``reconcile`` for each added key on ``workers`` tasks; used from one event loop.

    A run that takes longer than ``timeout_s`` is cancelled and fails with DEADLINE.
    """

    def __init__(
        self,
        reconcile: Callable[[K], Awaitable[Outcome]],
        *,
        name: str,
        metrics: ReconcileMetrics,
        clock: Clock,
        backoff: Backoff,
        rng: random.Random | None = None,
        workers: int = 1,
        timeout_s: float | None = None,
        group_of: Callable[[K], Hashable] | None = None,
        on_outcome: Callable[[K, Outcome], None] | None = None,
    ) -> None:
        self._reconcile = reconcile
        self._name = name
        self._clock = clock
        self._workers = workers
        self._timeout_s = timeout_s
        self._working: set[asyncio.Task[None]] = set()
        self._on_outcome = on_outcome
        self._queue = Workqueue[K](
            name, metrics=metrics.queue, clock=clock, backoff=backoff, rng=rng, group_of=group_of
        )
        self._runs = {result: metrics.runs.labels(name, result) for result in get_args(_Result)}
        self._errors = metrics.errors.labels(name)
        self._time_s = metrics.time_s.labels(name)
        metrics.active.labels(name).set_function(lambda: self._queue.processing)

    def add(self, key: K, priority: Priority = Priority.CHANGE) -> None:
        """Queue ``key`` for one run, after its current run if there is one."""
        self._queue.add(key, priority)

    def add_after(self, key: K, seconds: float, priority: Priority = Priority.CHANGE) -> None:
        """Add ``key`` after a delay; repeated calls keep the earliest time."""
        self._queue.add_after(key, seconds, priority)

    async def shut_down(self, grace_s: float) -> None:
        """Drop the queued keys, reject new ones and end ``run``; keys being processed are cancelled after ``grace_s``.

        The dropped keys are not lost to a level-triggered program: it adds every key when it starts.
        """
        self._queue.shut_down()
        if self._working:
            grace = asyncio.ensure_future(self._clock.sleep(grace_s))
            finished = asyncio.ensure_future(asyncio.wait(self._working))
            waits: set[asyncio.Future[Any]] = {grace, finished}
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in (*waits, *self._working):
                    each.cancel()
            await asyncio.wait(self._working)

    async def run(self) -> None:
        """Run the workers until cancelled or shut down."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run())
            self._working = {group.create_task(self._work()) for _ in range(self._workers)}

    async def _work(self) -> None:
        with contextlib.suppress(QueueShutDownError):
            while True:
                key = await self._queue.get()
                try:
                    with logging.correlated(secrets.token_hex(_RUN_BYTES)):
                        began_s = self._clock.monotonic()
                        outcome = await self._attempt(key)
                        self._time_s.observe(self._clock.monotonic() - began_s)
                        self._settle(key, outcome)
                finally:
                    self._queue.done(key)

    async def _attempt(self, key: K) -> Outcome:
        try:
            return _checked(key, await self._run_in_time(key))
        except GovernorError as error:
            return Failed(error)
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            # Propagated, it would end this worker silently.
            _log.error("reconcile awaited a cancelled task", controller=self._name, key=str(key), exc_info=error)
            return Failed(RuntimeError("an awaited task was cancelled"))
        except Exception as error:  # noqa: BLE001 - a bug in one key must not stop the others
            _log.error("reconcile raised", controller=self._name, key=str(key), exc_info=error)
            return Failed(error)

    async def _run_in_time(self, key: K) -> Outcome:
        if self._timeout_s is None:
            return await self._reconcile(key)
        try:
            async with asyncio.timeout(None) as deadline:
                watchdog = asyncio.create_task(self._expire(deadline, self._timeout_s))
                try:
                    return await self._reconcile(key)
                finally:
                    watchdog.cancel()
        except TimeoutError as error:
            if not deadline.expired():
                raise
            message = f"reconciling {key} took longer than {self._timeout_s:g} s"
            raise GovernorError(Kind.DEADLINE, "reconcile-timeout", message) from error

    async def _expire(self, deadline: asyncio.Timeout, timeout_s: float) -> None:
        await self._clock.sleep(timeout_s)
        deadline.reschedule(asyncio.get_running_loop().time())

    def _settle(self, key: K, outcome: Outcome) -> None:
        """Count the run, requeue the key by its outcome, then call ``on_outcome``."""
        self._count(_result(outcome))
        match outcome:
            case Failed(error=GovernorError(kind=kind)) if kind in NEEDS_USER:
                self._queue.retry(key, SLOW_BACKOFF)
            case Failed():
                self._queue.retry(key)
            case Requeue(after_s=seconds) | Waiting(recheck_s=seconds):
                self._queue.forget(key)
                self._queue.add_after(key, seconds, Priority.RETRY)
            case Done() | Stalled():
                self._queue.forget(key)
        if self._on_outcome:
            self._on_outcome(key, outcome)

    def _count(self, result: _Result) -> None:
        self._runs[result].inc()
        if result == "error":
            self._errors.inc()
