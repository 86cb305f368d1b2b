"""Which of the queued keys is next; pure and in constant time. Waiting for a key is ``workqueue``'s.

| among | rule | why |
|---|---|---|
| priorities | the highest; but one that was passed over 16 times in a row has a turn | a flood of changes leaves each \
lower priority one turn in 17. Ageing would let a resync of everything overtake the changes once it is old enough |
| groups of a priority | in turn, one key each | a group of 10,000 keys holds back a group of one by one key |
| keys of a group | first come, first served; a lifted key comes last in its new priority | |
"""

import enum
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

PASSED_OVER_MOST: Final = 16
"""How often in a row a priority that has keys is passed over."""


class Priority(enum.IntEnum):
    """Why a key is queued."""

    RESYNC = 0
    RETRY = 1
    CHANGE = 2


class Turns(Generic[K]):
    """The queued keys, each once; ``group_of`` must not change its mind about a key while that is queued."""

    def __init__(self, group_of: Callable[[K], Hashable]) -> None:
        self._group_of = group_of
        self._priorities: dict[K, Priority] = {}
        self._lanes = [_Lane[K]() for _ in Priority]
        self._urgent_first = self._lanes[::-1]

    def __len__(self) -> int:
        return len(self._priorities)

    def put(self, key: K, priority: Priority, now_s: float) -> bool:
        """Whether ``key`` is new here; one that is not is lifted to a higher priority, and never lowered."""
        before = self._priorities.get(key)
        if before is None:
            # First, because it may raise: a key without a place would stop every worker.
            group = self._group_of(key)
            self._priorities[key] = priority
            self._lanes[priority].put(key, group, now_s)
        elif before < priority:
            group = self._group_of(key)
            self._priorities[key] = priority
            self._lanes[priority].put(key, group, self._lanes[before].remove(key, group))
        return before is None

    def take(self) -> tuple[K, float]:
        """The next key, and when it was put here; IndexError if there is none."""
        key, since_s = self._next_lane().take()
        del self._priorities[key]
        return key, since_s

    def _next_lane(self) -> "_Lane[K]":
        """The lane whose turn it is; the others that have keys are passed over."""
        waiting = [lane for lane in self._urgent_first if lane.groups]
        chosen = waiting[0]
        if len(waiting) > 1:
            chosen = next((lane for lane in waiting if lane.passed_over >= PASSED_OVER_MOST), chosen)
            for lane in waiting:
                lane.passed_over += 1
        chosen.passed_over = 0
        return chosen


class _Lane(Generic[K]):
    """The keys of one priority, by group; the first group is the next to have its turn."""

    __slots__ = ("groups", "passed_over")

    def __init__(self) -> None:
        # Ordered dictionaries take from the front and remove from the middle without a search.
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
