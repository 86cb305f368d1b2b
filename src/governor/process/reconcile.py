"""The loop that brings things into their wanted state, one key at a time; every controller is a function in it.

A key is all that is queued. It never runs twice at once, is queued once however often it is added, and runs again
when it was added while it ran. What a key means, and showing its state, is the caller's.
"""

import asyncio
import heapq
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.process import logging
from governor.process.backoff import Backoff
from governor.process.clock import Clock

K = TypeVar("K")

_log = logging.get_logger(__name__)


class Done(msgspec.Struct, frozen=True):
    """As wanted; nothing more to do until something changes."""


class Again(msgspec.Struct, frozen=True):
    """Look again after a time; not a failure."""

    after_s: float


class Waiting(msgspec.Struct, frozen=True):
    """Something named must happen first; looked at again in case nobody tells."""

    for_what: str
    recheck_s: float


class Stalled(msgspec.Struct, frozen=True):
    """A person must act; repeating cannot help, so only a new ``add`` runs the key."""

    reason: str


class Failed(msgspec.Struct, frozen=True):
    """It did not work; tried again with growing waits."""

    error: Exception


Outcome: TypeAlias = Done | Again | Waiting | Stalled | Failed


def _stalled(error: GovernorError) -> Outcome:
    return Stalled(str(error))


OUTCOME_OF_KIND: Final[Mapping[Kind, Callable[[GovernorError], Outcome]]] = {
    Kind.INVALID: _stalled,
    Kind.NOT_FOUND: Failed,
    Kind.EXISTS: _stalled,
    Kind.CONFLICT: Failed,
    Kind.PRECONDITION: Failed,
    Kind.UNAUTHENTICATED: _stalled,
    Kind.DENIED: _stalled,
    Kind.EXHAUSTED: Failed,
    Kind.UNAVAILABLE: Failed,
    Kind.DEADLINE: Failed,
    Kind.UNIMPLEMENTED: _stalled,
    Kind.INTERNAL: Failed,
}
"""The reconcile edge of the error kinds: whether time can heal it or only a person."""


class Reconciler(Generic[K]):
    """Runs ``reconcile`` for each added key on ``workers`` tasks; used from one event loop only."""

    def __init__(
        self,
        reconcile: Callable[[K], Awaitable[Outcome]],
        *,
        clock: Clock,
        backoff: Backoff,
        chance: random.Random | None = None,
        workers: int = 1,
        on_outcome: Callable[[K, Outcome], None] | None = None,
    ) -> None:
        self._reconcile = reconcile
        self._clock = clock
        self._backoff = backoff
        self._chance = chance or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._workers = workers
        self._on_outcome = on_outcome
        self._queue: asyncio.Queue[K] = asyncio.Queue()
        self._wanted: set[K] = set()
        self._running: set[K] = set()
        self._failures: dict[K, int] = {}
        self._later = _Later[K](clock)

    def add(self, key: K) -> None:
        """Have ``key`` run soon, once, and after its present run if there is one."""
        if key in self._wanted:
            return
        self._wanted.add(key)
        if key not in self._running:
            self._queue.put_nowait(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Have ``key`` added after a time; of several times the earliest counts."""
        self._later.put(key, seconds)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._add_due())
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _add_due(self) -> None:
        while True:
            self.add(await self._later.get())

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            self._wanted.discard(key)
            self._running.add(key)
            try:
                self._settle(key, await self._attempt(key))
            finally:
                self._running.discard(key)
                if key in self._wanted:
                    self._queue.put_nowait(key)

    async def _attempt(self, key: K) -> Outcome:
        try:
            return await self._reconcile(key)
        except GovernorError as error:
            return OUTCOME_OF_KIND[error.kind](error)
        except Exception as error:  # noqa: BLE001 - one key's bug must not stop the others
            _log.error("reconcile raised", key=str(key), exc_info=error)
            return Failed(error)

    def _settle(self, key: K, outcome: Outcome) -> None:
        """Decide when the key runs again, then tell the observer."""
        failures = self._failures.pop(key, 0)
        match outcome:
            case Again(after_s=seconds) | Waiting(recheck_s=seconds):
                self.add_after(key, seconds)
            case Failed():
                self._failures[key] = failures + 1
                self.add_after(key, self._backoff.delay_s(failures + 1, self._chance))
        if self._on_outcome:
            self._on_outcome(key, outcome)


class _Later(Generic[K]):
    """Keys with the time at which they are due, each key once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = 0
        self._sooner = asyncio.Event()

    def put(self, key: K, seconds: float) -> None:
        when = self._clock.monotonic() + max(0.0, seconds)
        if self._due.get(key, when + 1) <= when:
            return
        self._due[key] = when
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, key))
        if self._heap[0][2] == key:
            self._sooner.set()

    async def get(self) -> K:
        """The next key, once it is due."""
        while True:
            self._sooner.clear()
            self._drop_replaced()
            wait_s = self._heap[0][0] - self._clock.monotonic() if self._heap else None
            if wait_s is None:
                await self._sooner.wait()
            elif wait_s > 0:
                await self._sleep_or_sooner(wait_s)
            else:
                key = heapq.heappop(self._heap)[2]
                del self._due[key]
                return key

    def _drop_replaced(self) -> None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)

    async def _sleep_or_sooner(self, seconds: float) -> None:
        tasks = {asyncio.ensure_future(self._clock.sleep(seconds)), asyncio.ensure_future(self._sooner.wait())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
