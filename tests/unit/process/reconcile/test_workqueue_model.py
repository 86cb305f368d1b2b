"""The work queue against a simple model: no key is lost, and no two workers get the same key."""

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from governor.process.clock import VirtualClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.fair_queue import Priority
from governor.process.reconcile.workqueue import QueueMetrics, QueueShutDownError, Workqueue
from governor.process.telemetry.instruments import Registry

ONE_SECOND = Backoff(initial_s=1, max_s=1)
KEYS = st.sampled_from(["a/1", "a/2", "b/1", "c/1"])
PRIORITIES = st.sampled_from(Priority)


class WorkqueueMachine(RuleBasedStateMachine):
    """Any interleaving of adds, workers and time agrees with the model."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = VirtualClock()
        self.registry = Registry()
        self.queue = Workqueue[str](
            "q", metrics=QueueMetrics(self.registry), clock=self.clock, backoff=ONE_SECOND, group_of=lambda key: key[0]
        )
        self.runner.run(self._start())
        self.queued: dict[str, Priority] = {}
        self.dirty: dict[str, Priority] = {}
        self.delayed: dict[str, tuple[float, Priority]] = {}
        self.processing: set[str] = set()
        self.getters: list[asyncio.Task[str | None]] = []

    async def _start(self) -> None:
        self.delays = asyncio.create_task(self.queue.run())

    @rule(key=KEYS, priority=PRIORITIES)
    def add(self, key: str, priority: Priority) -> None:
        self.runner.run(self._add(key, priority))
        self._settle()

    @rule(key=KEYS, priority=PRIORITIES, seconds=st.integers(0, 5))
    def add_after(self, key: str, priority: Priority, seconds: int) -> None:
        self.queue.add_after(key, seconds, priority)
        self._expect_later(key, seconds, priority)
        self._settle()

    @rule(key=KEYS)
    def retry(self, key: str) -> None:
        self.queue.retry(key)
        self._expect_later(key, 1, Priority.RETRY)
        self._settle()

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self.queue.forget(key)

    @precondition(lambda self: len(self.getters) < 3)
    @rule()
    def get(self) -> None:
        self.runner.run(self._get())
        self._settle()

    @precondition(lambda self: self.getters)
    @rule(key=KEYS, priority=PRIORITIES, number=st.integers(0, 2))
    def add_and_cancel_a_worker(self, key: str, priority: Priority, number: int) -> None:
        self.runner.run(self._add(key, priority, cancel=self.getters[number % len(self.getters)]))
        self._settle()

    @precondition(lambda self: self.processing)
    @rule(number=st.integers(0, 9))
    def done(self, number: int) -> None:
        key = sorted(self.processing)[number % len(self.processing)]
        self.runner.run(self._done(key))
        self._settle()

    @rule(seconds=st.integers(1, 3))
    def advance(self, seconds: int) -> None:
        for _ in range(seconds):
            self.runner.run(self.clock.advance(1))
            self._settle()

    async def _add(self, key: str, priority: Priority, cancel: "asyncio.Task[str | None] | None" = None) -> None:
        self.queue.add(key, priority)
        if cancel:
            cancel.cancel()
        self._expect(key, priority)

    async def _get(self) -> None:
        self.getters.append(asyncio.create_task(self._key_or_end()))

    async def _key_or_end(self) -> str | None:
        try:
            return await self.queue.get()
        except QueueShutDownError:
            return None

    async def _done(self, key: str) -> None:
        self.queue.done(key)
        self.processing.remove(key)
        if key in self.dirty:
            self.queued[key] = self.dirty.pop(key)

    def _expect(self, key: str, priority: Priority) -> None:
        where = self.dirty if key in self.processing else self.queued
        where[key] = max(priority, where.get(key, priority))

    def _expect_later(self, key: str, seconds: float, priority: Priority) -> None:
        when = self.clock.monotonic() + seconds
        before = self.delayed.get(key, (when, priority))
        self.delayed[key] = (min(when, before[0]), max(priority, before[1]))

    def _settle(self) -> None:
        """Run all ready tasks and compare with the model."""
        self.runner.run(self.clock.advance(0))
        now = self.clock.monotonic()
        for key, (_, priority) in [each for each in self.delayed.items() if each[1][0] <= now]:
            del self.delayed[key]
            self._expect(key, priority)
        finished = [getter for getter in self.getters if getter.done()]
        self.getters = [getter for getter in self.getters if not getter.done()]
        self._got([got for getter in finished if not getter.cancelled() and (got := getter.result())])
        assert not (self.getters and self.queued)
        assert self.registry.value("workqueue_depth", {"name": "q"}) == len(self.queued) + len(self.dirty)
        assert self.queue.processing == len(self.processing)

    def _got(self, keys: list[str]) -> None:
        assert self.processing.isdisjoint(keys)
        got = [self.queued.pop(key) for key in keys]
        # A run has too few steps for a low priority to be served because it was passed over.
        assert not got or min(got) >= max(self.queued.values(), default=min(got))
        self.processing.update(keys)

    def teardown(self) -> None:
        """Shut down: workers finish the keys that they process, then stop."""
        try:
            self.queue.shut_down()
            self.queued.clear()
            self.dirty.clear()
            self.delayed.clear()
            self._settle()
            assert not self.getters
            self.runner.run(self._finish())
        finally:
            self.runner.close()

    async def _finish(self) -> None:
        for key in sorted(self.processing):
            await self._done(key)
        with pytest.raises(QueueShutDownError):
            await self.queue.get()
        await self.delays


TestWorkqueueMachine = WorkqueueMachine.TestCase
TestWorkqueueMachine.settings = settings(stateful_step_count=40)
