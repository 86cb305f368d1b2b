"""From samples to tables: medians and ranges over the rounds, what a proxy adds, and how ours stands to another one."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from bench.proxy.processes import Memory
from bench.proxy.rounds import Sample, Samples
from bench.proxy.routes import DIRECT, OURS

RESIDENT_LIMIT_MIB: Final = 32.0


class Spread(msgspec.Struct, frozen=True):
    """The median of the rounds and their range."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of one value for each round."""
        return cls(statistics.median(values), min(values), max(values))

    def shown(self, digits: int, sign: str = "") -> str:
        """As a cell."""
        return f"{self.median:{sign}.{digits}f} ({self.least:.{digits}f} to {self.most:.{digits}f})"


def added_ms(direct: Sequence[Sample], proxied: Sequence[Sample]) -> list[float]:
    """What the proxy adds in each round, which shares its noise."""
    return [(ours.median_s - none.median_s) * 1e3 for none, ours in zip(direct, proxied, strict=True)]


def times_direct(direct: Sequence[Sample], proxied: Sequence[Sample]) -> list[float]:
    """How many times as long as a direct one it takes in each round."""
    return [ours.median_s / none.median_s for none, ours in zip(direct, proxied, strict=True)]


def costs(samples: Samples) -> Iterator[str]:
    """The lines of the table of times and processor time, in Markdown."""
    yield "| | route | ms | added ms | times direct | p99 ms | CPU µs |"
    yield "|---|---|---|---|---|---|---|"
    for act, routes in samples.items():
        for route, taken in routes.items():
            yield f"| {act} | {route} | {' | '.join(_cells(routes[DIRECT], taken))} |"


def _cells(direct: Sequence[Sample], taken: Sequence[Sample]) -> Iterator[str]:
    yield f"{statistics.median(each.median_s for each in taken) * 1e3:.2f}"
    if taken is direct:
        yield from ("", "")
    else:
        yield Spread.of(added_ms(direct, taken)).shown(2, "+")
        yield Spread.of(times_direct(direct, taken)).shown(2)
    yield f"{statistics.median(each.p99_s for each in taken) * 1e3:.2f}"
    used = [each.cpu_s * 1e6 for each in taken if each.cpu_s is not None]
    yield f"{statistics.median(used):.0f}" if used else ""


def memories(memory: Mapping[str, tuple[Memory, Memory]]) -> Iterator[str]:
    """The lines of the table of memory."""
    yield "| MiB | idle | at the end | peak |"
    yield "|---|---|---|---|"
    for route, (idle, end) in memory.items():
        yield f"| {route} | {idle.resident_mib:.1f} | {end.resident_mib:.1f} | {end.peak_mib:.1f} |"


def aims(samples: Samples, memory: Mapping[str, tuple[Memory, Memory]]) -> Iterator[str]:
    """Ours beside each other proxy with the same plugins, and its memory: which of the aims are met."""
    yield "| aim | seen | |"
    yield "|---|---|---|"
    for act, routes in samples.items():
        for route in routes:
            proxy, plus, plugins = route.partition("+")
            ours = f"{OURS}{plus}{plugins}"
            if proxy not in (DIRECT, OURS) and ours in routes:
                yield _against(act, route, ours, routes)
    for route, (idle, end) in memory.items():
        if route.partition("+")[0] == OURS:
            seen = f"{idle.resident_mib:.1f} idle, {end.peak_mib:.1f} at most"
            met = max(idle.resident_mib, end.peak_mib) <= RESIDENT_LIMIT_MIB
            yield f"| {route} takes at most {RESIDENT_LIMIT_MIB:g} MiB | {seen} | {'met' if met else 'missed'} |"


def _against(act: str, other: str, ours: str, routes: Mapping[str, Sequence[Sample]]) -> str:
    """Without plugins ours may add half of what the other adds to a call that is alone, else as much as the other."""
    is_half = ours == OURS and act.endswith(", 1 at once")
    added, others = (added_ms(routes[DIRECT], routes[each]) for each in (ours, other))
    limits = [each / 2 if is_half else each for each in others]
    met = [one <= limit for one, limit in zip(added, limits, strict=True)]
    is_met = statistics.median(added) <= statistics.median(limits)
    aim = f"{act}: {ours} adds at most {'half of ' if is_half else ''}what {other} adds"
    seen = f"{statistics.median(added):+.2f} and {statistics.median(others):+.2f} ms"
    return f"| {aim} | {seen} | {'met' if is_met else 'missed'}, in {sum(met)} of {len(met)} rounds met |"
