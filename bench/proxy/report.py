"""Tables from samples: medians and ranges over the rounds, added latency, and our proxy compared to others."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from bench.proxy.operations import POD_LIFECYCLE
from bench.proxy.processes import Memory
from bench.proxy.rounds import Sample, Samples
from bench.proxy.routes import DIRECT, OURS, PLUGIN_SETS

RESIDENT_LIMIT_MIB: Final = 32.0


class Spread(msgspec.Struct, frozen=True):
    """Median and range over the rounds."""

    median: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise one value per round."""
        return cls(statistics.median(values), min(values), max(values))

    def shown(self, sign: str = "") -> str:
        """Return the text of a table cell."""
        digits = _digits(max(abs(self.minimum), abs(self.maximum)))
        return f"{self.median:{sign}.{digits}f} ({self.minimum:.{digits}f} to {self.maximum:.{digits}f})"


def _digits(value: float) -> int:
    """Return the number of significant decimals."""
    return 2 if value < 10 else 1 if value < 100 else 0


def _shown(value: float) -> str:
    return f"{value:.{_digits(value)}f}"


def added_ms(direct: Sequence[Sample], proxied: Sequence[Sample]) -> list[float]:
    """Return the added latency per round: calls of one round share its noise."""
    return [(ours.median_s - none.median_s) * 1e3 for none, ours in zip(direct, proxied, strict=True)]


def times_direct(direct: Sequence[Sample], proxied: Sequence[Sample]) -> list[float]:
    """Return the latency relative to a direct call per round."""
    return [ours.median_s / none.median_s for none, ours in zip(direct, proxied, strict=True)]


def added(samples: Samples) -> Iterator[str]:
    """Yield the table of added latency."""
    return _table(
        "added ms", samples, _milliseconds, lambda direct, taken: Spread.of(added_ms(direct, taken)).shown("+")
    )


def ratios(samples: Samples) -> Iterator[str]:
    """Yield the table of latency relative to a direct call."""
    return _table("times direct", samples, lambda _: "1", lambda *both: Spread.of(times_direct(*both)).shown())


def slowest(samples: Samples) -> Iterator[str]:
    """Yield the table of 99th percentiles."""

    def p99_ms(taken: Sequence[Sample]) -> str:
        return _shown(statistics.median(each.p99_s for each in taken) * 1e3)

    return _table("p99 ms", samples, p99_ms, lambda _, taken: p99_ms(taken))


def processor(samples: Samples) -> Iterator[str]:
    """Yield the table of a proxy's CPU time per call."""

    def used_us(taken: Sequence[Sample]) -> str:
        return f"{statistics.median(each.cpu_s for each in taken if each.cpu_s is not None) * 1e6:,.0f}"

    return _table("CPU µs", samples, lambda _: "", lambda _, taken: used_us(taken))


def _table(
    title: str,
    samples: Samples,
    directly: Callable[[Sequence[Sample]], str],
    proxied: Callable[[Sequence[Sample], Sequence[Sample]], str],
) -> Iterator[str]:
    """Yield one line per operation with one column per route."""
    names = next(iter(samples.values())).keys() - {DIRECT}
    columns = sorted(names, key=_column_order)
    yield f"| {title} | {' | '.join([DIRECT, *columns])} |"
    yield f"|---|{'---|' * (1 + len(columns))}"
    for operation, routes in samples.items():
        direct = routes[DIRECT]
        cells = [directly(direct), *(proxied(direct, routes[each]) for each in columns)]
        yield f"| {operation} | {' | '.join(cells)} |"


def _column_order(route: str) -> tuple[int, bool, str]:
    """Return a sort key: routes with the same plugins side by side, ours first."""
    proxy, _, plugins = route.partition("+")
    return tuple(PLUGIN_SETS).index(plugins), proxy != OURS, proxy


def _milliseconds(taken: Sequence[Sample]) -> str:
    return f"takes {_shown(statistics.median(each.median_s for each in taken) * 1e3)}"


def memory_table(memory: Mapping[str, tuple[Memory, Memory]]) -> Iterator[str]:
    """Yield the table of memory."""
    yield "| MiB | idle | at the end | peak |"
    yield "|---|---|---|---|"
    for route, (idle, end) in memory.items():
        yield f"| {route} | {idle.resident_mib:.1f} | {end.resident_mib:.1f} | {end.peak_mib:.1f} |"


def targets(samples: Samples, memory: Mapping[str, tuple[Memory, Memory]]) -> Iterator[str]:
    """Yield which targets are met: ours compared to each other proxy with the same plugins, and its memory.

    The pod lifecycle has no target: it takes hundreds of times as long as what a proxy adds.
    """
    yield "| aim | seen | |"
    yield "|---|---|---|"
    for operation, routes in samples.items():
        for route in () if operation.startswith(POD_LIFECYCLE) else sorted(routes.keys() - {DIRECT}, key=_column_order):
            proxy, plus, plugins = route.partition("+")
            ours = f"{OURS}{plus}{plugins}"
            if proxy != OURS and ours in routes:
                yield _comparison(operation, route, ours, routes)
    for route, (idle, end) in memory.items():
        if route.partition("+")[0] == OURS:
            seen = f"{idle.resident_mib:.1f} idle, {end.peak_mib:.1f} at most"
            met = max(idle.resident_mib, end.peak_mib) <= RESIDENT_LIMIT_MIB
            yield f"| {route} takes at most {RESIDENT_LIMIT_MIB:g} MiB | {seen} | {'met' if met else 'missed'} |"


def _comparison(operation: str, other: str, ours: str, routes: Mapping[str, Sequence[Sample]]) -> str:
    """Compare added latency. The target is the other's, or half of it for single calls without plugins."""
    is_half = ours == OURS and operation.endswith(", 1 at once")
    ours_ms, others_ms = (added_ms(routes[DIRECT], routes[each]) for each in (ours, other))
    limits = [each / 2 if is_half else each for each in others_ms]
    met = [one <= limit for one, limit in zip(ours_ms, limits, strict=True)]
    is_met = statistics.median(ours_ms) <= statistics.median(limits)
    aim = f"{operation}: {ours} adds at most {'half of ' if is_half else ''}what {other} adds"
    seen = f"{statistics.median(ours_ms):+.2f} and {statistics.median(others_ms):+.2f} ms"
    return f"| {aim} | {seen} | {'met' if is_met else 'missed'}, in {sum(met)} of {len(met)} rounds met |"
