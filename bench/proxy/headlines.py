"""The figures that a user asks for first, as a table and as a chart: ours beside another proxy and the limit."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from bench import bars
from bench.bars import Bars
from bench.proxy.environment import CONCURRENCY
from bench.proxy.operations import CREATE, LIST, VERSION, operation_name
from bench.proxy.processes import Memory
from bench.proxy.report import RESIDENT_LIMIT_MIB, compare, verdict
from bench.proxy.rounds import Samples
from bench.proxy.routes import OURS, route_name

_CALLS: Final = (
    ("ms added to Version, the smallest call", VERSION, "", 1),
    ("ms added to a list of 100 containers", LIST, "", 1),
    ("ms added to a create, no plugin", CREATE, "", 1),
    ("ms added to a create, a plugin in Go", CREATE, "go", 1),
    ("ms added to a create, a plugin in Go, 16 at once", CREATE, "go", CONCURRENCY),
    ("ms added to a create, a plugin in Python", CREATE, "python", 1),
    ("ms added to a create, a plugin in Python, 16 at once", CREATE, "python", CONCURRENCY),
    ("ms added to Version beside a plugin, 16 at once", VERSION, "go", CONCURRENCY),
    ("ms added to a list beside a plugin, 16 at once", LIST, "go", CONCURRENCY),
)
_MEMORY: Final = {"": "MiB of memory at most, no plugin", "go": "MiB of memory at most, a plugin in Go"}


class Headline(msgspec.Struct, frozen=True):
    """One figure of ours and of another proxy."""

    title: str
    ours: float
    peer: float
    limit: float
    limit_text: str
    digits: int

    def shown(self, value: float) -> str:
        """Return the text of a cell."""
        return f"{value:.{self.digits}f}"

    @property
    def is_met(self) -> bool:
        """Whether ours is within the limit, as measured."""
        return self.ours <= self.limit


def headlines(samples: Samples, memory: Mapping[str, tuple[Memory, Memory]], peer: str) -> Iterator[Headline]:
    """Yield the figures that were measured with both."""
    for title, call, plugins, at_once in _CALLS:
        if compared := compare(samples, operation_name(call, at_once), plugins, peer):
            ours, others = statistics.median(compared.ours_ms), statistics.median(compared.peer_ms)
            yield Headline(title, ours, others, compared.share * others, f"{compared.limit}{peer}'s", 2)
    for plugins, title in _MEMORY.items():
        mine, other = memory.get(route_name(OURS, plugins)), memory.get(route_name(peer, plugins))
        if mine and other:
            limit = RESIDENT_LIMIT_MIB
            yield Headline(title, mine[1].peak_mib, other[1].peak_mib, limit, f"{limit:g}", 1)


def table(rows: Sequence[Headline], peer: str) -> Iterator[str]:
    """Yield the table."""
    yield f"| | governor | {peer} | limit |"
    yield "|---|---|---|---|"
    for row in rows:
        seen = f"{row.limit_text}: {verdict(is_met=row.is_met)}"
        yield f"| {row.title} | {row.shown(row.ours)} | {row.shown(row.peer)} | {seen} |"


def chart(rows: Sequence[Headline], peer: str, note: str) -> str:
    """Return the table as an SVG."""
    title = f"Runtime proxy: governor relative to {peer}, less is better"
    shown = [Bars(each.title, each.ours, each.peer, each.limit, each.shown) for each in rows]
    return bars.chart(title, peer, shown, note, largest=1.5)
