"""A queue of keys for workers, used from one event loop; it says what is next, never what to do.

A key is queued once however often it is added, and is never with two workers: added while one has it, it is queued
again when that one is done. Delays and the backoff after failures are here; which queued key is next is ``turns``'s,
running workers is ``reconcile``'s. Nothing is kept of a key that is neither queued, delayed, worked on nor failing.
"""

import asyncio
import heapq
import random
from collections.abc import Callable, Hashable, Iterator
from typing import Final, Generic, TypeVar

from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.turns import Priority, Turns
from governor.process.telemetry.instruments import Counter, Gauge, Histogram, Registry

K = TypeVar("K", bound=Hashable)

_REPLACED_MOST: Final = 64
"""Replaced delays that are carried along, beside as many as there are live ones, before they are dropped."""

_BUCKETS_S: Final = (0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


class QueueMetrics:
    """The figures of all queues of one registry, by the names and labels that dashboards for controllers know."""

    def __init__(self, registry: Registry) -> None:
        labels = ["name"]
        self.depth = Gauge("workqueue_depth", "Keys that wait for a worker.", labels, registry=registry)
        self.adds = Counter("workqueue_adds_total", "Keys that were queued.", labels, registry=registry)
        self.retries = Counter("workqueue_retries_total", "Failures to be tried again.", labels, registry=registry)
        self.queue_s = Histogram(
            "workqueue_queue_duration_seconds",
            "How long a key waited for a worker.",
            labels,
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.work_s = Histogram(
            "workqueue_work_duration_seconds",
            "How long a worker had a key.",
            labels,
            buckets=_BUCKETS_S,
            registry=registry,
        )


class QueueEndedError(Exception):
    """The queue was shut down and is empty: a worker has nothing more to do."""


class Workqueue(Generic[K]):
    """The keys of one kind of work; ``group_of`` says which of them share their turns, by default all."""

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
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._turns = Turns[K](group_of or _one_group)
        self._worked: dict[K, float] = {}
        self._again: dict[K, tuple[Priority, float]] = {}
        self._failures: dict[K, int] = {}
        self._delays = _Delays[K]()
        self._sooner: asyncio.Future[None] | None = None
        self._getters: dict[asyncio.Future[None], None] = {}
        self._ended = False
        self._adds = metrics.adds.labels(name)
        self._retries = metrics.retries.labels(name)
        self._queue_s = metrics.queue_s.labels(name)
        self._work_s = metrics.work_s.labels(name)
        metrics.depth.labels(name).set_function(lambda: len(self._turns) + len(self._again))

    @property
    def worked_on(self) -> int:
        """How many keys workers have now."""
        return len(self._worked)

    def add(self, key: K, priority: Priority = Priority.CHANGE) -> None:
        """Queue ``key``, or lift it if it is queued; if a worker has it, it is queued when that is done."""
        if self._ended:
            return
        if key in self._worked:
            self._note_again(key, priority)
        elif self._turns.put(key, priority, self._clock.monotonic()):
            self._adds.inc()
            self._wake_getter()

    def add_after(self, key: K, seconds: float, priority: Priority = Priority.CHANGE) -> None:
        """Add ``key`` after a time: of several times the earliest, of several priorities the highest."""
        if not self._ended and self._delays.put(key, self._clock.monotonic() + max(0.0, seconds), priority):
            self._wake_run()

    def retry(self, key: K) -> None:
        """Count a failure of ``key``, and add it after a wait that grows with its failures in a row."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self._retries.inc()
        self.add_after(key, self._backoff.delay_s(failures, self._rng), Priority.RETRY)

    def forget(self, key: K) -> None:
        """Forget the failures of ``key``."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key, which is the caller's until ``done``; QueueEndedError once nothing is left after the end."""
        while not self._turns:
            # What runs again at the end is queued by its own worker, which then comes here once more.
            if self._ended:
                raise QueueEndedError
            await self._something_queued()
        key, since_s = self._turns.take()
        now_s = self._worked[key] = self._clock.monotonic()
        self._queue_s.observe(now_s - since_s)
        return key

    def done(self, key: K) -> None:
        """Give ``key`` back, so that it may run again."""
        self._work_s.observe(self._clock.monotonic() - self._worked.pop(key))
        if key in self._again:
            self._turns.put(key, *self._again.pop(key))
            self._wake_getter()

    def shut_down(self) -> None:
        """Take no more keys and drop the delayed ones; workers get what is queued, and then the end."""
        self._ended = True
        self._delays = _Delays()
        self._wake_run()
        while self._getters:
            self._wake_getter()

    async def run(self) -> None:
        """Queue delayed keys when their time has come; until ``shut_down`` or cancelled."""
        while not self._ended:
            for key, priority in self._delays.pop_due(self._clock.monotonic()):
                self.add(key, priority)
            await self._sleep(self._delays.next_s())

    def _note_again(self, key: K, priority: Priority) -> None:
        before = self._again.get(key)
        if before is None:
            self._adds.inc()
            self._again[key] = (priority, self._clock.monotonic())
        elif before[0] < priority:
            self._again[key] = (priority, before[1])

    async def _something_queued(self) -> None:
        getter = asyncio.get_running_loop().create_future()
        self._getters[getter] = None
        try:
            await getter
        except asyncio.CancelledError:
            self._getters.pop(getter, None)
            if self._turns and not getter.cancelled():
                # It was woken for a key that now another must take.
                self._wake_getter()
            raise

    def _wake_getter(self) -> None:
        while self._getters:
            getter, _ = self._getters.popitem()
            if not getter.done():
                getter.set_result(None)
                return

    def _wake_run(self) -> None:
        if self._sooner is not None and not self._sooner.done():
            self._sooner.set_result(None)

    async def _sleep(self, until_s: float | None) -> None:
        """Sleep until a moment, or until somebody wakes ``run``."""
        self._sooner = asyncio.get_running_loop().create_future()
        waits: set[asyncio.Future[None]] = {self._sooner}
        if until_s is not None:
            waits.add(asyncio.ensure_future(self._clock.sleep(until_s - self._clock.monotonic())))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()


class _Delays(Generic[K]):
    """Keys with the moment at which they are due, each key once."""

    def __init__(self) -> None:
        self._due: dict[K, tuple[float, Priority]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = 0

    def put(self, key: K, when_s: float, priority: Priority) -> bool:
        """Whether ``key`` is now the next of all."""
        before = self._due.get(key)
        if before is not None:
            priority = max(priority, before[1])
            if before[0] <= when_s:
                self._due[key] = (before[0], priority)
                return False
        self._due[key] = (when_s, priority)
        self._order += 1
        heapq.heappush(self._heap, (when_s, self._order, key))
        self._drop_replaced()
        return self._heap[0][1] == self._order

    def next_s(self) -> float | None:
        """When the next key is due, or one that was replaced."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_s: float) -> Iterator[tuple[K, Priority]]:
        """Take out the keys whose moment has come, in the order of their moments."""
        while self._heap and self._heap[0][0] <= now_s:
            when_s, _, key = heapq.heappop(self._heap)
            if self._is_live(when_s, key):
                yield key, self._due.pop(key)[1]

    def _is_live(self, when_s: float, key: K) -> bool:
        due = self._due.get(key)
        return due is not None and due[0] == when_s

    def _drop_replaced(self) -> None:
        if len(self._heap) > 2 * len(self._due) + _REPLACED_MOST:
            self._heap = [entry for entry in self._heap if self._is_live(entry[0], entry[2])]
            heapq.heapify(self._heap)


def _one_group(_key: Hashable) -> Hashable:
    return None
