"""The order of queued keys: priorities without starvation, groups round-robin."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from governor.process.reconcile.fair_queue import MAX_PASSED_OVER, FairQueue, Priority

CHANGE, RETRY, RESYNC = Priority.CHANGE, Priority.RETRY, Priority.RESYNC


def group_of(key: str) -> str:
    """Return the group of a key ``group/name``."""
    return key.partition("/")[0]


def filled(*keys: tuple[str, Priority]) -> FairQueue[str]:
    queue = FairQueue[str](group_of)
    for key, priority in keys:
        queue.put(key, priority, 0.0)
    return queue


def taken(queue: FairQueue[str], limit: int = 1_000_000) -> list[str]:
    return [queue.take()[0] for _ in range(min(limit, len(queue)))]


def test_higher_priorities_come_first_and_each_is_first_in_first_out() -> None:
    queue = filled(("g/1", RESYNC), ("g/2", CHANGE), ("g/3", RETRY), ("g/4", CHANGE), ("g/5", RETRY))
    assert taken(queue) == ["g/2", "g/4", "g/3", "g/5", "g/1"]


def test_the_priority_of_a_queued_key_is_raised_and_never_lowered() -> None:
    queue = filled(("g/1", RETRY), ("g/2", RESYNC), ("g/3", RETRY))
    assert not queue.put("g/2", CHANGE, 5.0)
    assert not queue.put("g/1", RESYNC, 5.0)
    assert len(queue) == 3
    assert queue.take() == ("g/2", 0.0)
    assert taken(queue) == ["g/1", "g/3"]


def test_groups_are_served_round_robin() -> None:
    queue = filled(*[(f"big/{n}", CHANGE) for n in range(10_000)], ("small/0", CHANGE), ("small/1", CHANGE))
    assert taken(queue, 5) == ["big/0", "small/0", "big/1", "small/1", "big/2"]


def test_a_group_that_returns_does_not_overtake_waiting_groups() -> None:
    queue = filled(("a/0", CHANGE), ("b/0", CHANGE), ("b/1", CHANGE), ("c/0", CHANGE))
    order = []
    for _ in range(4):
        order += taken(queue, 1)
        queue.put("a/again", CHANGE, 0.0)
    assert order == ["a/0", "b/0", "c/0", "a/again"]


@pytest.mark.parametrize("starved", [[RETRY], [RESYNC], [RETRY, RESYNC]])
def test_a_flood_of_changes_leaves_each_lower_priority_its_share(starved: list[Priority]) -> None:
    queue = filled(*[(f"{priority.name}/{n}", priority) for priority in starved for n in range(100)])
    order = []
    for n in range(1000):
        queue.put(f"CHANGE/{n}", CHANGE, 0.0)
        order += taken(queue, 1)
    groups = Counter(map(group_of, order))
    for priority in starved:
        positions = [at for at, key in enumerate(order) if group_of(key) == priority.name]
        assert positions[0] <= MAX_PASSED_OVER + 1
        assert max(later - earlier for earlier, later in pairwise(positions)) <= MAX_PASSED_OVER + 2
        assert groups[priority.name] == pytest.approx(1000 / (MAX_PASSED_OVER + 1), abs=2)
    assert groups["CHANGE"] >= 1000 * (1 - len(starved) / MAX_PASSED_OVER)


def test_a_low_priority_alone_is_served_without_delay() -> None:
    queue = filled(*[(f"g/{n}", RESYNC) for n in range(100)])
    assert taken(queue) == [f"g/{n}" for n in range(100)]


def test_taking_from_an_empty_queue_raises() -> None:
    with pytest.raises(IndexError):
        filled().take()


class FairQueueMachine(RuleBasedStateMachine):
    """No key is lost or duplicated, and none waits longer than the rules allow."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue[str](group_of)
        self.queued: dict[str, Priority] = {}
        self.order: dict[str, int] = {}
        self.count = 0
        self.passed_over: Counter[Priority] = Counter()
        self.overtaken: dict[tuple[Priority, str], Counter[str]] = {}

    @rule(group=st.sampled_from("abc"), name=st.integers(0, 9), priority=st.sampled_from(Priority))
    def put(self, group: str, name: int, priority: Priority) -> None:
        key = f"{group}/{name}"
        before = self.queued.get(key)
        assert self.queue.put(key, priority, 0.0) is (before is None)
        if before is None or before < priority:
            self.count += 1
            self.order[key] = self.count
            self.queued[key] = priority
        self._forget_absent()

    @precondition(lambda self: self.queued)
    @rule(times=st.integers(1, 30))
    def take(self, times: int) -> None:
        for _ in range(min(times, len(self.queued))):
            self._take_one()
        assert len(self.queue) == len(self.queued)

    def _take_one(self) -> None:
        present = {(priority, group_of(key)) for key, priority in self.queued.items()}
        key, _ = self.queue.take()
        priority, group = self.queued[key], group_of(key)
        same = [other for other, its in self.queued.items() if its is priority and group_of(other) == group]
        assert key == min(same, key=lambda other: self.order[other])
        self._check_priority(priority, {each for each, _ in present})
        self._check_group(priority, group, {name for each, name in present if each is priority})
        del self.queued[key]
        self._forget_absent()

    def _check_priority(self, served: Priority, present: set[Priority]) -> None:
        assert served is max(present) or self.passed_over[served] >= MAX_PASSED_OVER
        for each in present - {served}:
            self.passed_over[each] += 1
            assert self.passed_over[each] <= MAX_PASSED_OVER + 1
        self.passed_over[served] = 0

    def _check_group(self, priority: Priority, served: str, present: set[str]) -> None:
        for each in present - {served}:
            passed = self.overtaken.setdefault((priority, each), Counter())
            passed[served] += 1
            assert passed[served] == 1
        self.overtaken.pop((priority, served), None)

    def _forget_absent(self) -> None:
        present = {(priority, group_of(key)) for key, priority in self.queued.items()}
        self.overtaken = {each: passed for each, passed in self.overtaken.items() if each in present}


TestFairQueueMachine = FairQueueMachine.TestCase
TestFairQueueMachine.settings = settings(stateful_step_count=60)


def test_a_key_whose_group_cannot_be_computed_is_not_queued() -> None:
    def group_of(key: str) -> str:
        raise LookupError(key)

    queue = FairQueue[str](group_of)
    with pytest.raises(LookupError):
        queue.put("a", Priority.CHANGE, 0.0)
    assert len(queue) == 0
