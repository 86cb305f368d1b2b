"""From what the processes used to a table: medians, how we stand to the better of the others, which aims are met."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from bench.kube.tasks import LIBRARIES, Usage

Samples: TypeAlias = Mapping[str, Mapping[str, Sequence[Usage]]]
"""By measure, then by library: one for each round."""
OURS, *OTHERS = LIBRARIES


class Row(msgspec.Struct, frozen=True):
    """One line of the table: a figure of one measure."""

    title: str
    measure: str
    figure: Callable[[Usage], float]
    more_is_better: bool = False
    limit: float | None = None
    """What ours must not exceed, besides being the best."""


def _per_second(usage: Usage) -> float:
    return usage.count / usage.seconds


def _cpu_us(usage: Usage) -> float:
    return usage.cpu_seconds / usage.count * 1e6


def _resident_kib(usage: Usage) -> float:
    return usage.resident_bytes / usage.count / 1024


def _held_kib(usage: Usage) -> float:
    return usage.held_bytes / usage.count / 1024


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
    Row("KiB per object held", "hold", _resident_kib, limit=4.0),
    Row("KiB per idle cluster client", "connect", _resident_kib, limit=25.0),
    Row("the same without what the allocator keeps", "connect", _held_kib),
)


class Line(msgspec.Struct, frozen=True):
    """What a row says: a figure for each library, and the judgement."""

    title: str
    figures: tuple[float, ...]
    advantages: tuple[float, ...]
    """How many times better than the better of the others ours was in each round."""
    limit: float | None

    @property
    def is_met(self) -> bool:
        """Whether ours is the best and within the limit."""
        is_best = statistics.median(self.advantages) >= 1
        return is_best and (self.limit is None or self.figures[0] <= self.limit)


def judge(row: Row, samples: Samples) -> Line:
    """Medians over all rounds; who is better is judged within each round, for a round shares its noise."""
    rounds = {library: [row.figure(usage) for usage in usages] for library, usages in samples[row.measure].items()}
    advantages = tuple(_advantage(row, each) for each in zip(*(rounds[each] for each in LIBRARIES), strict=True))
    figures = tuple(statistics.median(rounds[each]) for each in LIBRARIES)
    return Line(row.title, figures, advantages, row.limit)


def _advantage(row: Row, figures: Sequence[float]) -> float:
    ours, *others = figures
    return ours / max(others) if row.more_is_better else min(others) / ours


def table(samples: Samples) -> Iterator[str]:
    """The lines of a table in Markdown."""
    yield f"| | {' | '.join(LIBRARIES)} | times better than the next | aim |"
    yield f"|---|{'---|' * (len(LIBRARIES) + 2)}"
    for row in ROWS:
        line = judge(row, samples)
        figures = " | ".join(map(_shown, line.figures))
        yield f"| {line.title} | {figures} | {_times(line.advantages)} | {_aim(line)} |"
    left = ", ".join(f"{each} {max(usage.open_sockets for usage in samples['connect'][each])}" for each in LIBRARIES)
    yield ""
    yield f"Connections that the idle clients had not let go of: {left}."


def _shown(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}"


def _times(advantages: Sequence[float]) -> str:
    return f"{statistics.median(advantages):.2f} ({min(advantages):.2f} to {max(advantages):.2f})"


def _aim(line: Line) -> str:
    wanted = "best" if line.limit is None else f"best, ≤ {line.limit:g}"
    return f"{wanted}: {'met' if line.is_met else 'missed'}"
