"""Aggregation and rate limit of Events, in virtual time."""

import datetime

from governor.kube.controller.event_correlator import (
    BURST,
    MAX_MESSAGE,
    MAX_SIMILAR,
    REFILL_S,
    SIMILAR_WINDOW_S,
    EventCorrelator,
    EventType,
    EventWrite,
    Occurrence,
)
from governor.kube.objects import ObjectRef

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Object:
    """An object to which things happen."""

    def __init__(self, correlator: EventCorrelator, name: str = "a") -> None:
        self._correlator = correlator
        self._name = name
        self.now = START

    def occurs(self, message: str = "m", reason: str = "R", *, after_s: float = 1.0) -> EventWrite | None:
        self.now += datetime.timedelta(seconds=after_s)
        ref = ObjectRef("", "ConfigMap", "ns", self._name)
        occurrence = Occurrence(ref, "v1", f"uid-{self._name}", EventType.NORMAL, reason, message)
        return self._correlator.correlate(occurrence, self.now)


def written(write: EventWrite | None) -> EventWrite:
    assert write is not None
    return write


def test_a_repeated_event_is_the_same_with_a_higher_count_and_a_later_time() -> None:
    it = Object(EventCorrelator())
    first, second = written(it.occurs()), written(it.occurs())
    assert (first.count, second.count) == (1, 2)
    assert second.name == first.name
    assert (second.first, second.last) == (first.first, it.now)
    assert written(it.occurs("other")).name != first.name
    assert written(it.occurs("m", "Other")).count == 1


def test_objects_do_not_share_events_or_limits() -> None:
    correlator = EventCorrelator()
    one, two = Object(correlator), Object(correlator, "b")
    for _ in range(BURST + 1):
        last = one.occurs(after_s=0)
    assert last is None
    assert written(two.occurs()).count == 1


def test_many_messages_of_one_reason_are_combined_until_a_quiet_window() -> None:
    it = Object(EventCorrelator())
    names = {written(it.occurs(f"m{number}")).name for number in range(MAX_SIMILAR)}
    assert len(names) == MAX_SIMILAR
    combined = written(it.occurs("m10"))
    assert combined.occurrence.message == "(combined from similar events): m10"
    again = written(it.occurs("m11"))
    assert (again.name, again.count) == (combined.name, 2)
    assert written(it.occurs("m0")).count == 2, "a known message keeps its own event"
    assert written(it.occurs("m12", after_s=SIMILAR_WINDOW_S + 1)).occurrence.message == "m12"


def test_the_rate_limit_of_an_object_refills_slowly_and_its_counts_include_what_was_dropped() -> None:
    it = Object(EventCorrelator())
    writes = [it.occurs(after_s=0) for _ in range(BURST + 5)]
    assert [each is None for each in writes] == [False] * BURST + [True] * 5
    assert it.occurs(after_s=REFILL_S / 2) is None
    assert written(it.occurs(after_s=REFILL_S / 2)).count == BURST + 7


def test_a_wall_clock_set_back_neither_refills_nor_fails() -> None:
    it = Object(EventCorrelator())
    for _ in range(BURST):
        it.occurs(after_s=0)
    assert it.occurs(after_s=-86_400) is None


def test_names_and_messages_fit_what_the_api_server_accepts() -> None:
    it = Object(EventCorrelator(), "n" * 230 + "." + "m" * 22)
    first, second = written(it.occurs("é" * MAX_MESSAGE, after_s=0)), written(it.occurs("x", after_s=0))
    assert len(first.name) <= 253
    assert first.name != second.name
    assert len(first.occurrence.message.encode()) <= MAX_MESSAGE
    assert first.occurrence.message.endswith("...")
    assert ".." not in first.name
