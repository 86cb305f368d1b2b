"""Tables from samples: medians and ranges over the rounds, added latency, and our proxy compared to others."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from bench.proxy.operations import CREATE, POD_LIFECYCLE, SINGLE, operation_name
from bench.proxy.processes import Memory
from bench.proxy.rounds import Sample, Samples
from bench.proxy.routes import DIRECT, OURS, PLUGIN_SETS, POLICY, route_name

RESIDENT_LIMIT_MIB: Final = 32.0
DOCKER_RESIDENT_LIMIT_MIB: Final = 36.0
POLICY_LIMIT_MS: Final = 0.4


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


class Comparison(msgspec.Struct, frozen=True):
    """What our proxy and another one with the same plugins add to an operation, in milliseconds per round."""

    operation: str
    plugins: str
    peer: str
    ours_ms: Sequence[float]
    peer_ms: Sequence[float]

    @property
    def share(self) -> float:
        """The share of what the other adds that ours may add."""
        is_single = self.operation.endswith(SINGLE)
        if not self.plugins:
            return 0.5 if is_single else 1.0
        return 1.4 if self.operation.startswith(CREATE) and not is_single else 1.0

    @property
    def limit(self) -> str:
        """The share in words, before the name of the other."""
        return {0.5: "half of ", 1.0: ""}.get(self.share, f"{self.share:g} times ")

    @property
    def is_met(self) -> bool:
        """Whether the medians meet the target."""
        return statistics.median(self.ours_ms) <= self.share * statistics.median(self.peer_ms)

    @property
    def rounds_met(self) -> int:
        """The number of rounds that meet the target."""
        return sum(ours <= self.share * peer for ours, peer in zip(self.ours_ms, self.peer_ms, strict=True))


def compare(samples: Samples, operation: str, plugins: str, peer: str) -> Comparison | None:
    """Compare an operation; None if it was not measured with both proxies."""
    routes, names = samples.get(operation, {}), [route_name(proxy, plugins) for proxy in (OURS, peer)]
    if not routes.keys() >= {*names}:
        return None
    return Comparison(operation, plugins, peer, *(added_ms(routes[DIRECT], routes[name]) for name in names))


def peers_of(samples: Samples) -> list[str]:
    """Return the names of the other proxies."""
    names = {route.partition("+")[0] for routes in samples.values() for route in routes}
    return sorted(names - {OURS, DIRECT})


def targets(
    samples: Samples, memory: Mapping[str, tuple[Memory, Memory]], resident_limit_mib: float = RESIDENT_LIMIT_MIB
) -> Iterator[str]:
    """Yield which targets are met: ours compared to each other proxy with the same plugins, and its memory.

    The pod lifecycle has no target: it takes hundreds of times as long as what a proxy adds.
    """
    yield "| aim | seen | |"
    yield "|---|---|---|"
    for operation in samples:
        for plugins in () if operation.startswith(POD_LIFECYCLE) else PLUGIN_SETS:
            for peer in peers_of(samples):
                if compared := compare(samples, operation, plugins, peer):
                    yield _comparison(compared)
    yield from _policy_cost(samples)
    for route, (idle, end) in memory.items():
        if route.partition("+")[0] == OURS:
            seen = f"{idle.resident_mib:.1f} idle, {end.peak_mib:.1f} at most"
            met = max(idle.resident_mib, end.peak_mib) <= resident_limit_mib
            yield f"| {route} takes at most {resident_limit_mib:g} MiB | {seen} | {verdict(is_met=met)} |"


def _policy_cost(samples: Samples) -> Iterator[str]:
    """Yield what a policy adds to a create, beyond a proxy without plugins."""
    routes = samples.get(operation_name(CREATE, 1), {})
    with_policy = routes.get(route_name(OURS, POLICY))
    if with_policy is not None:
        added = statistics.median(added_ms(routes[OURS], with_policy))
        met = verdict(is_met=added <= POLICY_LIMIT_MS)
        yield f"| a policy adds at most {POLICY_LIMIT_MS:g} ms to a create | {added:+.2f} ms | {met} |"


def _comparison(compared: Comparison) -> str:
    ours, peer = (route_name(proxy, compared.plugins) for proxy in (OURS, compared.peer))
    aim = f"{compared.operation}: {ours} adds at most {compared.limit}what {peer} adds"
    seen = f"{statistics.median(compared.ours_ms):+.2f} and {statistics.median(compared.peer_ms):+.2f} ms"
    rounds = f"in {compared.rounds_met} of {len(compared.ours_ms)} rounds met"
    return f"| {aim} | {seen} | {verdict(is_met=compared.is_met)}, {rounds} |"


def verdict(*, is_met: bool) -> str:
    """Return what tables say about a target."""
    return "met" if is_met else "missed"
