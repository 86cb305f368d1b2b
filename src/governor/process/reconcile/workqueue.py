"""A deduplicating queue of keys with delays and backoff, as in client-go; used from one event loop.

A key is queued once however often it is added, and no two workers process it at once: a key added while it is processed
is queued again when that worker is done. The order of queued keys is in ``fair_queue``, the workers are in
``reconciler``. No state is kept for a key that is neither queued, delayed, processing nor failing.
"""

import asyncio
import heapq
import random
from collections.abc import Callable, Hashable, Iterator
from typing import Final, Generic, TypeVar

from governor.process.clock import Clock, wait_at_most
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.fair_queue import FairQueue, Priority
from governor.process.telemetry.instruments import Counter, Gauge, Histogram, Registry

K = TypeVar("K", bound=Hashable)

_MAX_STALE: Final = 64
"""Stale heap entries that are kept, in addition to one for each live entry, before the heap is rebuilt."""

_BUCKETS_S: Final = (0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


class QueueMetrics:
    """Metrics of all queues of one registry, under the names and labels that client-go uses."""

    def __init__(self, registry: Registry) -> None:
        labels = ["name"]
        self.depth = Gauge("workqueue_depth", "Keys waiting for a worker.", labels, registry=registry)
        self.adds = Counter("workqueue_adds_total", "Keys added.", labels, registry=registry)
        self.retries = Counter("workqueue_retries_total", "Keys retried after a failure.", labels, registry=registry)
        self.queue_s = Histogram(
            "workqueue_queue_duration_seconds",
            "Time that a key waited for a worker, in seconds.",
            labels,
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.work_s = Histogram(
            "workqueue_work_duration_seconds",
            "Time that a worker spent on a key, in seconds.",
            labels,
            buckets=_BUCKETS_S,
            registry=registry,
        )


class QueueShutDownError(Exception):
    """The queue is shut down."""


class Workqueue(Generic[K]):
    """A work queue that serves the groups of ``group_of`` round-robin; by default all keys are one group."""

    def __init__(
        self,
        name: str,
        *,
        metrics: QueueMetrics,
        clock: Clock,
        backoff: Backoff,
        rng: random.Random | None = None,
        group_of: Callable[[K], Hashable] | None = None,
    ) -> None:
        self._clock = clock
        self._backoff = backoff
        self._rng = rng or random.Random()  # noqa: S311 - jitter only
        self._group_of: Callable[[K], Hashable] = group_of or _one_group
        self._queue = FairQueue(self._group_of)
        self._processing: dict[K, float] = {}
        self._dirty: dict[K, tuple[Priority, float]] = {}
        self._failures: dict[K, int] = {}
        self._delays = _Delays[K]()
        self._wakeup: asyncio.Future[None] | None = None
        self._getters: dict[asyncio.Future[None], None] = {}
        self._shut_down = False
        self._adds = metrics.adds.labels(name)
        self._retries = metrics.retries.labels(name)
        self._queue_s = metrics.queue_s.labels(name)
        self._work_s = metrics.work_s.labels(name)
        metrics.depth.labels(name).set_function(lambda: len(self._queue) + len(self._dirty))

    @property
    def processing(self) -> int:
        """Number of keys that workers process now."""
        return len(self._processing)

    def add(self, key: K, priority: Priority = Priority.CHANGE) -> None:
        """Queue ``key``, or raise its priority if it is queued; a key being processed is queued after ``done``."""
        if self._shut_down:
            return
        if key in self._processing:
            self._mark_dirty(key, priority)
        elif self._queue.put(key, priority, self._clock.monotonic()):
            self._adds.inc()
            self._wake_getter()

    def add_after(self, key: K, seconds: float, priority: Priority = Priority.CHANGE) -> None:
        """Add ``key`` after a delay; repeated calls keep the earliest time and the highest priority."""
        if not self._shut_down and self._delays.put(key, self._clock.monotonic() + max(0.0, seconds), priority):
            self._wake_run()

    def retry(self, key: K, backoff: Backoff | None = None) -> None:
        """Count a failure of ``key`` and add it after a backoff that grows with its failures in a row.

        ``backoff`` replaces that of the queue.
        """
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self._retries.inc()
        self.add_after(key, (backoff or self._backoff).delay_s(failures, self._rng), Priority.RETRY)

    def forget(self, key: K) -> None:
        """Reset the backoff of ``key``."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Wait for the next key and return it; the caller must call ``done``.

        Raise QueueShutDownError once the queue is shut down.
        """
        while not self._queue:
            if self._shut_down:
                raise QueueShutDownError
            await self._wait_for_key()
        key, since_s = self._queue.take()
        now_s = self._processing[key] = self._clock.monotonic()
        self._queue_s.observe(now_s - since_s)
        return key

    def done(self, key: K) -> None:
        """Mark ``key`` as processed; queue it again if it was added meanwhile."""
        self._work_s.observe(self._clock.monotonic() - self._processing.pop(key))
        if key in self._dirty:
            self._queue.put(key, *self._dirty.pop(key))
            self._wake_getter()

    def shut_down(self) -> None:
        """Drop all keys that are not being processed and reject new ones; workers get QueueShutDownError."""
        self._shut_down = True
        self._queue = FairQueue(self._group_of)
        self._dirty.clear()
        self._delays = _Delays()
        self._wake_run()
        while self._getters:
            self._wake_getter()

    async def run(self) -> None:
        """Queue delayed keys when they are due, until ``shut_down`` or cancelled."""
        while not self._shut_down:
            for key, priority in self._delays.pop_due(self._clock.monotonic()):
                self.add(key, priority)
            await self._sleep(self._delays.next_due_s())

    def _mark_dirty(self, key: K, priority: Priority) -> None:
        before = self._dirty.get(key)
        if before is None:
            self._adds.inc()
            self._dirty[key] = (priority, self._clock.monotonic())
        elif before[0] < priority:
            self._dirty[key] = (priority, before[1])

    async def _wait_for_key(self) -> None:
        getter = asyncio.get_running_loop().create_future()
        self._getters[getter] = None
        try:
            await getter
        except asyncio.CancelledError:
            self._getters.pop(getter, None)
            if self._queue and not getter.cancelled():
                # It was woken for a key: wake another waiter instead.
                self._wake_getter()
            raise

    def _wake_getter(self) -> None:
        while self._getters:
            getter, _ = self._getters.popitem()
            if not getter.done():
                getter.set_result(None)
                return

    def _wake_run(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    async def _sleep(self, until_s: float | None) -> None:
        """Sleep until the given time or until ``_wake_run``."""
        self._wakeup = asyncio.get_running_loop().create_future()
        seconds = None if until_s is None else until_s - self._clock.monotonic()
        await wait_at_most(self._wakeup, seconds, self._clock)


class _Delays(Generic[K]):
    """Delayed keys, each once, in the order in which they are due."""

    def __init__(self) -> None:
        self._due: dict[K, tuple[float, Priority]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = 0

    def put(self, key: K, when_s: float, priority: Priority) -> bool:
        """Delay ``key``; return True if it is due before all others."""
        before = self._due.get(key)
        if before is not None:
            priority = max(priority, before[1])
            if before[0] <= when_s:
                self._due[key] = (before[0], priority)
                return False
        self._due[key] = (when_s, priority)
        self._order += 1
        heapq.heappush(self._heap, (when_s, self._order, key))
        self._drop_stale()
        return self._heap[0][1] == self._order

    def next_due_s(self) -> float | None:
        """Return when the next entry is due, live or stale."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_s: float) -> Iterator[tuple[K, Priority]]:
        """Remove and yield the keys that are due, earliest first."""
        while self._heap and self._heap[0][0] <= now_s:
            when_s, _, key = heapq.heappop(self._heap)
            if self._is_live(when_s, key):
                yield key, self._due.pop(key)[1]

    def _is_live(self, when_s: float, key: K) -> bool:
        due = self._due.get(key)
        return due is not None and due[0] == when_s

    def _drop_stale(self) -> None:
        if len(self._heap) > 2 * len(self._due) + _MAX_STALE:
            self._heap = [entry for entry in self._heap if self._is_live(entry[0], entry[2])]
            heapq.heapify(self._heap)


def _one_group(_key: Hashable) -> Hashable:
    return None
