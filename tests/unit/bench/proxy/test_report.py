"""The tables of `make bench-proxy`."""

from bench.proxy.processes import Memory
from bench.proxy.report import Spread, added, added_ms, memory_table, processor, ratios, slowest, targets
from bench.proxy.rounds import Sample, Samples

SINGLE = "Version, 1 at once"
CONCURRENT = "Version, 16 at once"
SMALL = (Memory(20.0, 30.0), Memory(25.0, 31.0))
LARGE = (Memory(20.0, 30.0), Memory(25.0, 33.0))


def taken(*medians_ms: float, cpu_us: float | None = None) -> list[Sample]:
    return [Sample(each / 1e3, each / 500, None if cpu_us is None else cpu_us / 1e6) for each in medians_ms]


def compared(operation: str, ours: list[Sample], other: list[Sample], plugins: str = "") -> Samples:
    return {operation: {"direct": taken(1, 2, 3), f"ours{plugins}": ours, f"other{plugins}": other}}


def verdicts(samples: Samples) -> list[str]:
    return [line.split(" | ")[-1].strip(" |") for line in list(targets(samples, {}))[2:]]


def test_added_latency_is_computed_within_each_round() -> None:
    assert [round(each, 6) for each in added_ms(taken(1, 5, 2), taken(2, 5.5, 4))] == [1.0, 0.5, 2.0]


def test_a_cell_shows_median_and_range() -> None:
    assert Spread.of([3.0, 1.0, 2.0]).shown("+") == "+2.00 (1.00 to 3.00)"
    assert Spread.of([-250.4, 30.0]).shown() == "-110 (-250 to 30)"


def test_each_figure_has_a_table_with_one_column_per_route() -> None:
    samples = {SINGLE: {"direct": taken(1, 1, 1), "ours": taken(1.5, 1.5, 2, cpu_us=80)}}

    assert list(added(samples)) == [
        "| added ms | direct | ours |",
        "|---|---|---|",
        f"| {SINGLE} | takes 1.00 | +0.50 (0.50 to 1.00) |",
    ]
    assert list(ratios(samples))[2:] == [f"| {SINGLE} | 1 | 1.50 (1.50 to 2.00) |"]
    assert list(slowest(samples))[2:] == [f"| {SINGLE} | 2.00 | 3.00 |"]
    assert list(processor(samples))[2:] == [f"| {SINGLE} |  | 80 |"]


def test_routes_with_the_same_plugins_are_side_by_side() -> None:
    names = ("other+python", "ours+three", "other", "ours+go", "direct", "ours", "ours+python", "other+go")
    head = next(added({SINGLE: {name: taken(1) for name in names}}))

    assert head == "| added ms | direct | ours | other | ours+go | other+go | ours+python | other+python | ours+three |"


def test_memory_is_shown_at_start_and_end() -> None:
    assert list(memory_table({"ours": SMALL}))[2:] == ["| ours | 20.0 | 25.0 | 31.0 |"]


def test_single_calls_without_plugins_may_add_half_of_what_the_other_adds() -> None:
    other = taken(2, 3, 4)

    assert verdicts(compared(SINGLE, taken(1.5, 2.4, 3.6), other)) == ["met, in 2 of 3 rounds met"]
    assert verdicts(compared(SINGLE, taken(1.5, 2.6, 3.6), other)) == ["missed, in 1 of 3 rounds met"]


def test_concurrent_calls_and_calls_with_plugins_must_not_add_more() -> None:
    ours, other = taken(1.9, 2.9, 3.9), taken(2, 3, 4)

    assert verdicts(compared(CONCURRENT, ours, other)) == ["met, in 3 of 3 rounds met"]
    assert verdicts(compared(SINGLE, ours, other, "+go")) == ["met, in 3 of 3 rounds met"]
    assert verdicts(compared(SINGLE, other, ours, "+go")) == ["missed, in 0 of 3 rounds met"]


def test_proxies_with_different_plugins_are_not_compared() -> None:
    assert verdicts({SINGLE: {"direct": taken(1), "ours": taken(2), "other+go": taken(3)}}) == []


def test_the_pod_lifecycle_has_no_target() -> None:
    assert verdicts(compared("a pod's life, 1 at once", taken(9, 9, 9), taken(8, 8, 8))) == []


def test_peak_memory_decides() -> None:
    lines = list(targets({}, {"ours": SMALL, "ours+go": LARGE, "other": LARGE}))[2:]

    assert lines == [
        "| ours takes at most 32 MiB | 20.0 idle, 31.0 at most | met |",
        "| ours+go takes at most 32 MiB | 20.0 idle, 33.0 at most | missed |",
    ]


def test_the_cost_of_a_policy_is_what_it_adds_beyond_a_proxy_without_plugins() -> None:
    routes = {"direct": taken(1, 1, 1), "ours": taken(1.1, 1.2, 1.1), "ours+policy": taken(1.4, 1.5, 1.6)}

    lines = list(targets({"CreateContainer, 1 at once": routes}, {}))[2:]

    assert lines == ["| a policy adds at most 0.4 ms to a create | +0.30 ms | met |"]
