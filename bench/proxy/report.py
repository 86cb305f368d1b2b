"""From samples to tables: medians and ranges over the rounds, what a proxy adds, and how ours stands to another one."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from bench.proxy.acts import LIFE
from bench.proxy.processes import Memory
from bench.proxy.rounds import Sample, Samples
from bench.proxy.routes import DIRECT, OURS, PLUGIN_SETS

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

    def shown(self, sign: str = "") -> str:
        """As a cell."""
        digits = _digits(max(abs(self.least), abs(self.most)))
        return f"{self.median:{sign}.{digits}f} ({self.least:.{digits}f} to {self.most:.{digits}f})"


def _digits(value: float) -> int:
    """How many of them after the point say something."""
    return 2 if value < 10 else 1 if value < 100 else 0


def _shown(value: float) -> str:
    return f"{value:.{_digits(value)}f}"


def added_ms(direct: Sequence[Sample], proxied: Sequence[Sample]) -> list[float]:
    """What the proxy adds in each round, which shares its noise."""
    return [(ours.median_s - none.median_s) * 1e3 for none, ours in zip(direct, proxied, strict=True)]


def times_direct(direct: Sequence[Sample], proxied: Sequence[Sample]) -> list[float]:
    """How many times as long as a direct one it takes in each round."""
    return [ours.median_s / none.median_s for none, ours in zip(direct, proxied, strict=True)]


def added(samples: Samples) -> Iterator[str]:
    """The table of what a proxy adds to a direct call."""
    return _table(
        "added ms", samples, _milliseconds, lambda direct, taken: Spread.of(added_ms(direct, taken)).shown("+")
    )


def ratios(samples: Samples) -> Iterator[str]:
    """The table of how many times as long as a direct call one through a proxy takes."""
    return _table("times direct", samples, lambda _: "1", lambda *both: Spread.of(times_direct(*both)).shown())


def slowest(samples: Samples) -> Iterator[str]:
    """The table of the slowest calls of a turn."""

    def p99_ms(taken: Sequence[Sample]) -> str:
        return _shown(statistics.median(each.p99_s for each in taken) * 1e3)

    return _table("p99 ms", samples, p99_ms, lambda _, taken: p99_ms(taken))


def processor(samples: Samples) -> Iterator[str]:
    """The table of the processor time that a proxy spends on one call."""

    def used_us(taken: Sequence[Sample]) -> str:
        return f"{statistics.median(each.cpu_s for each in taken if each.cpu_s is not None) * 1e6:,.0f}"

    return _table("CPU µs", samples, lambda _: "", lambda _, taken: used_us(taken))


def _table(
    title: str,
    samples: Samples,
    directly: Callable[[Sequence[Sample]], str],
    proxied: Callable[[Sequence[Sample], Sequence[Sample]], str],
) -> Iterator[str]:
    """A line for each act, a column for each route."""
    names = next(iter(samples.values())).keys() - {DIRECT}
    columns = sorted(names, key=_place)
    yield f"| {title} | {' | '.join([DIRECT, *columns])} |"
    yield f"|---|{'---|' * (1 + len(columns))}"
    for act, routes in samples.items():
        direct = routes[DIRECT]
        cells = [directly(direct), *(proxied(direct, routes[each]) for each in columns)]
        yield f"| {act} | {' | '.join(cells)} |"


def _place(route: str) -> tuple[int, bool, str]:
    """Those with the same plugins stand together, ours first."""
    proxy, _, plugins = route.partition("+")
    return tuple(PLUGIN_SETS).index(plugins), proxy != OURS, proxy


def _milliseconds(taken: Sequence[Sample]) -> str:
    return f"takes {_shown(statistics.median(each.median_s for each in taken) * 1e3)}"


def memories(memory: Mapping[str, tuple[Memory, Memory]]) -> Iterator[str]:
    """The lines of the table of memory."""
    yield "| MiB | idle | at the end | peak |"
    yield "|---|---|---|---|"
    for route, (idle, end) in memory.items():
        yield f"| {route} | {idle.resident_mib:.1f} | {end.resident_mib:.1f} | {end.peak_mib:.1f} |"


def aims(samples: Samples, memory: Mapping[str, tuple[Memory, Memory]]) -> Iterator[str]:
    """Ours beside each other proxy with the same plugins, and its memory: which of the aims are met.

    There are none for the life of a pod, which takes hundreds of times as long as what a proxy adds.
    """
    yield "| aim | seen | |"
    yield "|---|---|---|"
    for act, routes in samples.items():
        for route in () if act.startswith(LIFE) else sorted(routes.keys() - {DIRECT}, key=_place):
            proxy, plus, plugins = route.partition("+")
            ours = f"{OURS}{plus}{plugins}"
            if proxy != OURS and ours in routes:
                yield _against(act, route, ours, routes)
    for route, (idle, end) in memory.items():
        if route.partition("+")[0] == OURS:
            seen = f"{idle.resident_mib:.1f} idle, {end.peak_mib:.1f} at most"
            met = max(idle.resident_mib, end.peak_mib) <= RESIDENT_LIMIT_MIB
            yield f"| {route} takes at most {RESIDENT_LIMIT_MIB:g} MiB | {seen} | {'met' if met else 'missed'} |"


def _against(act: str, other: str, ours: str, routes: Mapping[str, Sequence[Sample]]) -> str:
    """Without plugins ours may add half of what the other adds to a call that is alone, else as much as the other."""
    is_half = ours == OURS and act.endswith(", 1 at once")
    ours_ms, others_ms = (added_ms(routes[DIRECT], routes[each]) for each in (ours, other))
    limits = [each / 2 if is_half else each for each in others_ms]
    met = [one <= limit for one, limit in zip(ours_ms, limits, strict=True)]
    is_met = statistics.median(ours_ms) <= statistics.median(limits)
    aim = f"{act}: {ours} adds at most {'half of ' if is_half else ''}what {other} adds"
    seen = f"{statistics.median(ours_ms):+.2f} and {statistics.median(others_ms):+.2f} ms"
    return f"| {aim} | {seen} | {'met' if is_met else 'missed'}, in {sum(met)} of {len(met)} rounds met |"
