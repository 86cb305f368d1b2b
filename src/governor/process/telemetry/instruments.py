"""Counters, gauges and histograms, and the registry that shows them in Prometheus' text format.

Ours because the client library costs every program 3 to 6 MiB, for servers, gateways and formats that none of them
uses (decision 0012). Instruments may be used from any thread. What a program counts is not here.
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
"""What follows the family's name, the labels, and the value."""

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_INFINITY: Final = float("inf")

_lock = threading.Lock()
"""One for all: it is held for an addition, and contended only by programs that count on several threads."""


class CounterChild:
    """A number that only grows; counted, or asked for when it is shown."""

    __slots__ = ("_elsewhere", "_value")

    def __init__(self) -> None:
        self._value = 0.0
        self._elsewhere: Callable[[], float] | None = None

    def inc(self, by: float = 1.0) -> None:
        """Count."""
        if by < 0:
            raise ValueError(f"a counter cannot go back by {-by}")
        with _lock:
            self._value += by

    def set_function(self, value: Callable[[], float]) -> None:
        """Somebody else counts: whoever wants to know calls this."""
        self._elsewhere = value

    def samples(self, labels: Labels) -> Iterator[Sample]:
        """What there is to show."""
        yield "", labels, self._value if self._elsewhere is None else self._elsewhere()


class GaugeChild:
    """A number that is what it is now; set, or asked for when it is shown."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value: float | Callable[[], float] = 0.0

    def set(self, value: float) -> None:
        """It is this now."""
        self._value = value

    def set_function(self, value: Callable[[], float]) -> None:
        """Whoever wants to know calls this."""
        self._value = value

    def samples(self, labels: Labels) -> Iterator[Sample]:
        """What there is to show."""
        value = self._value
        yield "", labels, float(value() if callable(value) else value)


class HistogramChild:
    """How often values were at most each of some bounds."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * len(bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Such a value was seen."""
        for place, bound in enumerate(self._bounds):  # noqa: B007 - the place is what is searched
            if value <= bound:
                break
        with _lock:
            self._sum += value
            self._counts[place] += 1

    @contextmanager
    def time(self) -> Iterator[None]:
        """Observe how many seconds the block takes, however it ends."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self.observe(time.perf_counter() - began_s)

    def samples(self, labels: Labels) -> Iterator[Sample]:
        """What there is to show."""
        with _lock:
            counts, total = list(self._counts), self._sum
        seen = 0
        for bound, count in zip(self._bounds, counts, strict=True):
            seen += count
            yield "_bucket", {**labels, "le": _number(bound)}, seen
        yield "_sum", labels, total
        yield "_count", labels, seen


C = TypeVar("C", CounterChild, GaugeChild, HistogramChild)


class Family(Generic[C]):
    """Instruments of one name that differ in their labels' values."""

    TYPE: ClassVar[str]

    def __init__(self, name: str, meaning: str, labels: Sequence[str], registry: "Registry") -> None:
        for word, pattern in ((name, _NAME), *((label, _LABEL) for label in labels)):
            if not pattern.fullmatch(word):
                raise ValueError(f"{word!r} is no name for a metric or a label")
        self.name = name
        self.meaning = meaning
        self._labels = tuple(labels)
        self._children: dict[tuple[str, ...], C] = {}
        if not labels:
            self._children[()] = self._make()
        registry.add(self)

    def _make(self) -> C:
        raise NotImplementedError

    @property
    def only(self) -> C:
        """The instrument of a family that has no labels."""
        return self._children[()]

    def labels(self, *values: str) -> C:
        """The instrument with these values of the labels, in their order."""
        child = self._children.get(values)
        if child is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self.name} has the labels {self._labels}, not {values}")
            with _lock:
                child = self._children.setdefault(values, self._make())
        return child

    def samples(self) -> Iterator[Sample]:
        """What all instruments show."""
        for values, child in list(self._children.items()):
            yield from child.samples(dict(zip(self._labels, values, strict=True)))


class Counter(Family[CounterChild]):
    """Counts; its name ends with ``_total``."""

    TYPE = "counter"

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = (), *, registry: "Registry") -> None:
        if not name.endswith("_total"):
            raise ValueError(f"the name of the counter {name} does not end with _total")
        super().__init__(name, meaning, labels, registry)

    def _make(self) -> CounterChild:
        return CounterChild()

    def inc(self, by: float = 1.0) -> None:
        """Count, if there are no labels."""
        self.only.inc(by)

    def set_function(self, value: Callable[[], float]) -> None:
        """Whoever wants to know calls this, if there are no labels."""
        self.only.set_function(value)


class Gauge(Family[GaugeChild]):
    """Shows what is now."""

    TYPE = "gauge"

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = (), *, registry: "Registry") -> None:
        super().__init__(name, meaning, labels, registry)

    def _make(self) -> GaugeChild:
        return GaugeChild()

    def set(self, value: float) -> None:
        """It is this now, if there are no labels."""
        self.only.set(value)

    def set_function(self, value: Callable[[], float]) -> None:
        """Whoever wants to know calls this, if there are no labels."""
        self.only.set_function(value)


class Histogram(Family[HistogramChild]):
    """Counts values by size, up to each of ``buckets`` and beyond."""

    TYPE = "histogram"

    def __init__(
        self, name: str, meaning: str, labels: Sequence[str] = (), *, buckets: Sequence[float], registry: "Registry"
    ) -> None:
        if not buckets or list(buckets) != sorted(set(buckets)):
            raise ValueError(f"the buckets of {name} do not rise: {buckets}")
        self._bounds = (*(each for each in buckets if each != _INFINITY), _INFINITY)
        super().__init__(name, meaning, labels, registry)

    def _make(self) -> HistogramChild:
        return HistogramChild(self._bounds)

    def observe(self, value: float) -> None:
        """Such a value was seen, if there are no labels."""
        self.only.observe(value)

    def time(self) -> AbstractContextManager[None]:
        """Observe how many seconds the block takes, if there are no labels."""
        return self.only.time()


class Registry:
    """All that one program shows."""

    def __init__(self) -> None:
        self._families: dict[str, Family[Any]] = {}

    def add(self, family: Family[Any]) -> None:
        """Show a family from now on."""
        if self._families.setdefault(family.name, family) is not family:
            raise ValueError(f"there is already a metric {family.name}")

    def value(self, name: str, labels: Labels | None = None) -> float | None:
        """The sample of this whole name and these labels; none if it was never counted."""
        for family in self._families.values():
            for suffix, shown, value in family.samples() if name.startswith(family.name) else ():
                if family.name + suffix == name and shown == (labels or {}):
                    return value
        return None

    def text(self) -> str:
        """Everything, as Prometheus reads it."""
        return "".join(line for family in self._families.values() for line in _lines(family))


def _lines(family: Family[Any]) -> Iterator[str]:
    meaning = family.meaning.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {family.name} {meaning}\n# TYPE {family.name} {family.TYPE}\n"
    for suffix, labels, value in family.samples():
        yield f"{family.name}{suffix}{_written(labels)} {_number(value)}\n"


def _number(value: float) -> str:
    if value in (_INFINITY, -_INFINITY):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if value != value else repr(float(value))


def _written(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
