"""Counters, gauges and histograms, and a registry that writes them in Prometheus' text format.

Not the client library, which would cost every program 3 to 6 MiB for servers, gateways and formats that none of them
uses (decision 0012). Instruments are thread-safe. The metrics of a program are defined in that program.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels: TypeAlias = Mapping[str, str]
Sample: TypeAlias = tuple[str, Labels, float]
"""Suffix of the family's name, labels, and value."""

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_INFINITY: Final = float("inf")

_lock = threading.Lock()
"""One lock for all instruments: it is held for one addition only."""


class CounterChild:
    """A value that only increases; incremented, or read from a function on each scrape."""

    __slots__ = ("_function", "_value")

    def __init__(self) -> None:
        self._value = 0.0
        self._function: Callable[[], float] | None = None

    def inc(self, by: float = 1.0) -> None:
        """Increment the counter."""
        if by < 0:
            raise ValueError(f"a counter cannot decrease by {-by}")
        with _lock:
            self._value += by

    def set_function(self, value: Callable[[], float]) -> None:
        """Read the value from a function on each scrape."""
        self._function = value

    def samples(self, labels: Labels) -> Iterator[Sample]:
        """Yield the samples."""
        yield "", labels, self._value if self._function is None else self._function()


class GaugeChild:
    """A current value; set, or read from a function on each scrape."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value: float | Callable[[], float] = 0.0

    def set(self, value: float) -> None:
        """Set the gauge."""
        self._value = value

    def set_function(self, value: Callable[[], float]) -> None:
        """Read the value from a function on each scrape."""
        self._value = value

    def samples(self, labels: Labels) -> Iterator[Sample]:
        """Yield the samples."""
        value = self._value
        yield "", labels, float(value() if callable(value) else value)


class HistogramChild:
    """Counts of observed values by bucket."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * len(bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Observe a value."""
        for bucket, bound in enumerate(self._bounds):  # noqa: B007 - used after the loop
            if value <= bound:
                break
        with _lock:
            self._sum += value
            self._counts[bucket] += 1

    @contextmanager
    def time(self) -> Iterator[None]:
        """Observe how many seconds the block takes, even if it raises."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self.observe(time.perf_counter() - began_s)

    def samples(self, labels: Labels) -> Iterator[Sample]:
        """Yield the samples."""
        with _lock:
            counts, total = list(self._counts), self._sum
        cumulative = 0
        for bound, count in zip(self._bounds, counts, strict=True):
            cumulative += count
            yield "_bucket", {**labels, "le": _number(bound)}, cumulative
        yield "_sum", labels, total
        yield "_count", labels, cumulative


C = TypeVar("C", CounterChild, GaugeChild, HistogramChild)


class Family(Generic[C]):
    """Instruments of one name, one for each combination of label values."""

    TYPE: ClassVar[str]

    def __init__(self, name: str, help_text: str, labels: Sequence[str], registry: "Registry") -> None:
        for word, pattern in ((name, _NAME), *((label, _LABEL) for label in labels)):
            if not pattern.fullmatch(word):
                raise ValueError(f"{word!r} is not a valid name for a metric or a label")
        self.name = name
        self.help_text = help_text
        self._labels = tuple(labels)
        self._children: dict[tuple[str, ...], C] = {}
        if not labels:
            self._children[()] = self._make()
        registry.add(self)

    def _make(self) -> C:
        raise NotImplementedError

    @property
    def only(self) -> C:
        """The instrument of a family without labels."""
        return self._children[()]

    def labels(self, *values: str) -> C:
        """Return the instrument with these label values, in the order of the labels."""
        child = self._children.get(values)
        if child is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self.name} has the labels {self._labels}, not {values}")
            with _lock:
                child = self._children.setdefault(values, self._make())
        return child

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of all instruments."""
        for values, child in list(self._children.items()):
            yield from child.samples(dict(zip(self._labels, values, strict=True)))


class Counter(Family[CounterChild]):
    """A counter; its name ends with ``_total``."""

    TYPE = "counter"

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = (), *, registry: "Registry") -> None:
        if not name.endswith("_total"):
            raise ValueError(f"the name of the counter {name} does not end with _total")
        super().__init__(name, help_text, labels, registry)

    def _make(self) -> CounterChild:
        return CounterChild()

    def inc(self, by: float = 1.0) -> None:
        """Increment a counter without labels."""
        self.only.inc(by)

    def set_function(self, value: Callable[[], float]) -> None:
        """Read the value of a metric without labels from a function on each scrape."""
        self.only.set_function(value)


class Gauge(Family[GaugeChild]):
    """A gauge."""

    TYPE = "gauge"

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = (), *, registry: "Registry") -> None:
        super().__init__(name, help_text, labels, registry)

    def _make(self) -> GaugeChild:
        return GaugeChild()

    def set(self, value: float) -> None:
        """Set a gauge without labels."""
        self.only.set(value)

    def set_function(self, value: Callable[[], float]) -> None:
        """Read the value of a metric without labels from a function on each scrape."""
        self.only.set_function(value)


class Histogram(Family[HistogramChild]):
    """A histogram; ``buckets`` are upper bounds, to which +Inf is added."""

    TYPE = "histogram"

    def __init__(
        self, name: str, help_text: str, labels: Sequence[str] = (), *, buckets: Sequence[float], registry: "Registry"
    ) -> None:
        if not buckets or list(buckets) != sorted(set(buckets)):
            raise ValueError(f"the buckets of {name} do not increase: {buckets}")
        self._bounds = (*(each for each in buckets if each != _INFINITY), _INFINITY)
        super().__init__(name, help_text, labels, registry)

    def _make(self) -> HistogramChild:
        return HistogramChild(self._bounds)

    def observe(self, value: float) -> None:
        """Observe a value in a histogram without labels."""
        self.only.observe(value)

    def time(self) -> AbstractContextManager[None]:
        """Observe how many seconds the block takes, in a histogram without labels."""
        return self.only.time()


class Registry:
    """All metrics of one program."""

    def __init__(self) -> None:
        self._families: dict[str, Family[Any]] = {}

    def add(self, family: Family[Any]) -> None:
        """Register a family."""
        if self._families.setdefault(family.name, family) is not family:
            raise ValueError(f"there is already a metric {family.name}")

    @contextmanager
    def including(self, other: "Registry") -> Iterator[None]:
        """Have the families of another registry too for the duration of the block, as they are when it begins."""
        families = list(other._families.values())  # noqa: SLF001 - of the same class
        for family in families:
            self.add(family)
        try:
            yield
        finally:
            for family in families:
                del self._families[family.name]

    def value(self, name: str, labels: Labels | None = None) -> float | None:
        """Return the sample with this full name and these labels, or None if there is none."""
        for family in self._families.values():
            for suffix, sample_labels, value in family.samples() if name.startswith(family.name) else ():
                if family.name + suffix == name and sample_labels == (labels or {}):
                    return value
        return None

    def text(self) -> str:
        """Return all metrics in Prometheus' text format."""
        return "".join(line for family in self._families.values() for line in _lines(family))


def _lines(family: Family[Any]) -> Iterator[str]:
    help_text = family.help_text.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {family.name} {help_text}\n# TYPE {family.name} {family.TYPE}\n"
    for suffix, labels, value in family.samples():
        yield f"{family.name}{suffix}{_label_text(labels)} {_number(value)}\n"


def _number(value: float) -> str:
    if value in (_INFINITY, -_INFINITY):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if value != value else repr(float(value))


def _label_text(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
