"""The order of queued keys: priorities without starvation, fair among groups. Pure, constant time per operation.

Waiting for a key is in ``workqueue``.

| among | rule | why |
|---|---|---|
| priorities | the highest first; a priority passed over 16 times in a row is served next | a flood of changes leaves \
each lower priority one key in 17. Ageing would let an old full resync overtake changes |
| groups of a priority | round-robin, one key each | a group of 10,000 keys delays a group of one by one key |
| keys of a group | first in, first out; a key raised to a higher priority goes last there | |
"""

import enum
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

MAX_PASSED_OVER: Final = 16
"""How often in a row a priority that has keys may be passed over."""


class Priority(enum.IntEnum):
    """Why a key is queued."""

    RESYNC = 0
    RETRY = 1
    CHANGE = 2


class FairQueue(Generic[K]):
    """Queued keys, each once. ``group_of`` must return the same group for a key for as long as it is queued."""

    def __init__(self, group_of: Callable[[K], Hashable]) -> None:
        self._group_of = group_of
        self._priorities: dict[K, Priority] = {}
        self._lanes = [_Lane[K]() for _ in Priority]
        self._highest_first = self._lanes[::-1]

    def __len__(self) -> int:
        return len(self._priorities)

    def put(self, key: K, priority: Priority, now_s: float) -> bool:
        """Queue ``key`` or raise its priority, never lower it. Return True if it was not queued before."""
        before = self._priorities.get(key)
        if before is None:
            # Called first because it may raise: a key with a priority but no lane would stop every worker.
            group = self._group_of(key)
            self._priorities[key] = priority
            self._lanes[priority].put(key, group, now_s)
        elif before < priority:
            group = self._group_of(key)
            self._priorities[key] = priority
            self._lanes[priority].put(key, group, self._lanes[before].remove(key, group))
        return before is None

    def take(self) -> tuple[K, float]:
        """Remove and return the next key and the time it was queued; raise IndexError if the queue is empty."""
        key, since_s = self._next_lane().take()
        del self._priorities[key]
        return key, since_s

    def _next_lane(self) -> "_Lane[K]":
        """Return the lane to serve next and count the other lanes that have keys as passed over."""
        waiting = [lane for lane in self._highest_first if lane.groups]
        chosen = waiting[0]
        if len(waiting) > 1:
            chosen = next((lane for lane in waiting if lane.passed_over >= MAX_PASSED_OVER), chosen)
            for lane in waiting:
                lane.passed_over += 1
        chosen.passed_over = 0
        return chosen


class _Lane(Generic[K]):
    """Keys of one priority by group; the first group is served next."""

    __slots__ = ("groups", "passed_over")

    def __init__(self) -> None:
        # An OrderedDict removes from the front and from the middle in constant time.
        self.groups: OrderedDict[Hashable, OrderedDict[K, float]] = OrderedDict()
        self.passed_over = 0

    def put(self, key: K, group: Hashable, since_s: float) -> None:
        keys = self.groups.get(group)
        if keys is None:
            keys = self.groups[group] = OrderedDict()
        keys[key] = since_s

    def remove(self, key: K, group: Hashable) -> float:
        keys = self.groups[group]
        since_s = keys.pop(key)
        if not keys:
            del self.groups[group]
        return since_s

    def take(self) -> tuple[K, float]:
        group, keys = self.groups.popitem(last=False)
        taken = keys.popitem(last=False)
        if keys:
            self.groups[group] = keys
        return taken
