"""Turns samples into a table: medians, the comparison with the better of the others, and which goals are met."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from bench.kube.tasks import LIBRARIES, Usage

Samples: TypeAlias = Mapping[str, Mapping[str, Sequence[Usage]]]
"""By task, then by library: one per round."""
OURS, *OTHERS = LIBRARIES


class Row(msgspec.Struct, frozen=True):
    """Definition of one table row: a figure of one task."""

    title: str
    task: str
    figure: Callable[[Usage], float]
    more_is_better: bool = False
    limit: float | None = None
    """Upper limit for ours, in addition to being the best."""


def _per_second(usage: Usage) -> float:
    return usage.count / usage.seconds


def _cpu_us(usage: Usage) -> float:
    return usage.cpu_seconds / usage.count * 1e6


def _resident_kib(usage: Usage) -> float:
    return usage.resident_bytes / usage.count / 1024


def _trimmed_kib(usage: Usage) -> float:
    return usage.trimmed_bytes / usage.count / 1024


ROWS: Final = (
    Row("applies/s, one at a time", "apply", _per_second, more_is_better=True),
    Row("applies/s, 16 at once", "apply-16", _per_second, more_is_better=True),
    Row("CPU µs per apply, 16 at once", "apply-16", _cpu_us),
    Row("gets/s, one at a time", "get", _per_second, more_is_better=True),
    Row("gets/s, 16 at once", "get-16", _per_second, more_is_better=True),
    Row("CPU µs per get, 16 at once", "get-16", _cpu_us),
    Row("watch events/s, replayed", "replay", _per_second, more_is_better=True),
    Row("CPU µs per watch event, replayed", "replay", _cpu_us),
    Row("CPU µs per watch event, live", "watch", _cpu_us),
    Row("KiB per object held", "cache", _resident_kib, limit=4.0),
    Row("KiB per idle cluster client", "connect", _resident_kib, limit=25.0),
    Row("the same without what the allocator keeps", "connect", _trimmed_kib),
)


class Line(msgspec.Struct, frozen=True):
    """Result of one row: a figure per library, and the comparison."""

    title: str
    figures: tuple[float, ...]
    advantages: tuple[float, ...]
    """Per round: how many times better ours is than the better of the others."""
    limit: float | None

    @property
    def is_met(self) -> bool:
        """Whether ours is the best and within the limit."""
        is_best = statistics.median(self.advantages) >= 1
        return is_best and (self.limit is None or self.figures[0] <= self.limit)


def evaluate(row: Row, samples: Samples) -> Line:
    """Return medians over all rounds; libraries are compared within a round, which shares its noise."""
    rounds = {library: [row.figure(usage) for usage in usages] for library, usages in samples[row.task].items()}
    advantages = tuple(_advantage(row, each) for each in zip(*(rounds[each] for each in LIBRARIES), strict=True))
    figures = tuple(statistics.median(rounds[each]) for each in LIBRARIES)
    return Line(row.title, figures, advantages, row.limit)


def _advantage(row: Row, figures: Sequence[float]) -> float:
    ours, *others = figures
    return ours / max(others) if row.more_is_better else min(others) / ours


def table(samples: Samples) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield f"| | {' | '.join(LIBRARIES)} | times better than the next | aim |"
    yield f"|---|{'---|' * (len(LIBRARIES) + 2)}"
    for row in ROWS:
        line = evaluate(row, samples)
        figures = " | ".join(map(_format, line.figures))
        yield f"| {line.title} | {figures} | {_times(line.advantages)} | {_aim(line)} |"
    sockets = ", ".join(f"{each} {max(usage.open_sockets for usage in samples['connect'][each])}" for each in LIBRARIES)
    yield ""
    yield f"Connections that the idle clients had not closed: {sockets}."


def _format(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}"


def _times(advantages: Sequence[float]) -> str:
    return f"{statistics.median(advantages):.2f} ({min(advantages):.2f} to {max(advantages):.2f})"


def _aim(line: Line) -> str:
    goal = "best" if line.limit is None else f"best, ≤ {line.limit:g}"
    return f"{goal}: {'met' if line.is_met else 'missed'}"
