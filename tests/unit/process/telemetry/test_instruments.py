"""Instruments and their text format, which the reference client's parser reads."""

import math
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from governor.process.telemetry.instruments import Counter, Gauge, Histogram, Registry


def parsed(registry: Registry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return every sample as the reference client parses it."""
    families: Any = text_string_to_metric_families(registry.text())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_families_are_parsed_with_their_types_and_help_texts() -> None:
    registry = Registry()
    Counter("calls_total", "Calls.", registry=registry)
    Gauge("depth", 'What "waits",\nin a \\ queue.', registry=registry)
    Histogram("seconds", "Time.", buckets=(1.0,), registry=registry)
    families: Any = list(text_string_to_metric_families(registry.text()))
    assert [(each.name, each.type, each.documentation) for each in families] == [
        ("calls", "counter", "Calls."),
        ("depth", "gauge", 'What "waits",\nin a \\ queue.'),
        ("seconds", "histogram", "Time."),
    ]


@given(st.lists(st.tuples(st.text(), st.floats(min_value=0, allow_nan=False, allow_infinity=False)), max_size=20))
def test_counters_add_up_for_each_label_value(counted: list[tuple[str, float]]) -> None:
    registry = Registry()
    counter = Counter("seen_total", "Seen.", ["what"], registry=registry)
    sums: dict[str, float] = {}
    for what, by in counted:
        counter.labels(what).inc(by)
        sums[what] = sums.get(what, 0.0) + by
    assert {what: registry.value("seen_total", {"what": what}) for what in sums} == sums


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")),
        st.floats(),
        max_size=5,
    )
)
def test_any_label_value_is_parsed_back(values: dict[str, float]) -> None:
    registry = Registry()
    gauge = Gauge("g", "G.", ["name", "other"], registry=registry)
    for name, value in values.items():
        gauge.labels(name, "x").set(value)
    read = parsed(registry)
    for name, value in values.items():
        got = read["g", frozenset({("name", name), ("other", "x")})]
        assert got == value or (math.isnan(got) and math.isnan(value))


@given(st.lists(st.floats(min_value=-10, max_value=10), max_size=30))
def test_a_histogram_counts_values_up_to_each_bound(values: list[float]) -> None:
    registry = Registry()
    histogram = Histogram("h", "H.", ["of"], buckets=(-1, 0.0, 2.5), registry=registry)
    child = histogram.labels("x")
    for value in values:
        child.observe(value)
    read = parsed(registry)
    for bound in (-1.0, 0.0, 2.5, math.inf):
        le = "+Inf" if math.isinf(bound) else str(bound)
        assert read["h_bucket", frozenset({("of", "x"), ("le", le)})] == sum(value <= bound for value in values)
    assert read["h_count", frozenset({("of", "x")})] == len(values)
    assert read["h_sum", frozenset({("of", "x")})] == pytest.approx(sum(values))


def test_a_block_is_timed_even_if_it_raises() -> None:
    registry = Registry()
    histogram = Histogram("h", "H.", buckets=(60.0,), registry=registry)
    with histogram.time():
        pass
    with pytest.raises(KeyError), histogram.time():
        raise KeyError
    assert registry.value("h_bucket", {"le": "60.0"}) == 2


def test_a_function_is_called_on_each_read() -> None:
    registry, queue = Registry(), [1]
    Gauge("g", "G.", registry=registry).set_function(lambda: len(queue))
    Counter("c_total", "C.", registry=registry).set_function(lambda: 10 * len(queue))
    queue.append(2)
    assert (registry.value("g"), registry.value("c_total")) == (2, 20)


def test_no_count_is_lost_between_threads() -> None:
    registry = Registry()
    counter = Counter("c_total", "C.", ["x"], registry=registry)
    histogram = Histogram("h", "H.", buckets=(1.0,), registry=registry)

    def count() -> None:
        for _ in range(10_000):
            counter.labels("1").inc()
            histogram.observe(0.5)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (registry.value("c_total", {"x": "1"}), registry.value("h_count")) == (40_000, 40_000)


def test_an_instrument_that_was_never_used_has_no_value() -> None:
    registry = Registry()
    Counter("c_total", "C.", ["x"], registry=registry)
    assert registry.value("c_total", {"x": "1"}) is None
    assert registry.value("nothing") is None


def test_invalid_definitions_and_uses_are_rejected() -> None:
    registry = Registry()
    counter = Counter("c_total", "C.", ["x"], registry=registry)
    with pytest.raises(ValueError, match="already a metric c_total"):
        Counter("c_total", "C.", registry=registry)
    with pytest.raises(ValueError, match="does not end with _total"):
        Counter("c", "C.", registry=registry)
    with pytest.raises(ValueError, match="not a valid name"):
        Gauge("g g", "G.", registry=registry)
    with pytest.raises(ValueError, match="not a valid name"):
        Gauge("g", "G.", ["la-bel"], registry=registry)
    with pytest.raises(ValueError, match="do not increase"):
        Histogram("h", "H.", buckets=(2, 1), registry=registry)
    with pytest.raises(ValueError, match="has the labels"):
        counter.labels("1", "2")
    with pytest.raises(ValueError, match="cannot decrease"):
        counter.labels("1").inc(-1)


def test_an_included_registry_is_part_of_another_one_until_the_block_ends() -> None:
    registry, term = Registry(), Registry()
    Gauge("always", "A.", registry=registry).set(1)
    Counter("calls_total", "C.", registry=term).inc()
    for _ in range(2):
        with registry.including(term):
            assert [registry.value(name) for name in ("always", "calls_total")] == [1, 1]
        assert [registry.value(name) for name in ("always", "calls_total")] == [1, None]
