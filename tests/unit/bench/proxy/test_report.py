"""What `make bench-proxy` says about its figures."""

from bench.proxy.processes import Memory
from bench.proxy.report import Spread, added, added_ms, aims, memories, processor, ratios, slowest
from bench.proxy.rounds import Sample, Samples

ALONE = "Version, 1 at once"
CROWD = "Version, 16 at once"
SMALL = (Memory(20.0, 30.0), Memory(25.0, 31.0))
LARGE = (Memory(20.0, 30.0), Memory(25.0, 33.0))


def taken(*medians_ms: float, cpu_us: float | None = None) -> list[Sample]:
    return [Sample(each / 1e3, each / 500, None if cpu_us is None else cpu_us / 1e6) for each in medians_ms]


def beside(act: str, ours: list[Sample], other: list[Sample], plugins: str = "") -> Samples:
    return {act: {"direct": taken(1, 2, 3), f"ours{plugins}": ours, f"other{plugins}": other}}


def verdicts(samples: Samples) -> list[str]:
    return [line.split(" | ")[-1].strip(" |") for line in list(aims(samples, {}))[2:]]


def test_what_a_proxy_adds_is_compared_within_each_round() -> None:
    assert [round(each, 6) for each in added_ms(taken(1, 5, 2), taken(2, 5.5, 4))] == [1.0, 0.5, 2.0]


def test_a_cell_has_the_median_and_the_range() -> None:
    assert Spread.of([3.0, 1.0, 2.0]).shown("+") == "+2.00 (1.00 to 3.00)"
    assert Spread.of([-250.4, 30.0]).shown() == "-110 (-250 to 30)"


def test_each_figure_has_a_table_with_the_routes_beside_each_other() -> None:
    samples = {ALONE: {"direct": taken(1, 1, 1), "ours": taken(1.5, 1.5, 2, cpu_us=80)}}

    assert list(added(samples)) == [
        "| added ms | direct | ours |",
        "|---|---|---|",
        f"| {ALONE} | takes 1.00 | +0.50 (0.50 to 1.00) |",
    ]
    assert list(ratios(samples))[2:] == [f"| {ALONE} | 1 | 1.50 (1.50 to 2.00) |"]
    assert list(slowest(samples))[2:] == [f"| {ALONE} | 2.00 | 3.00 |"]
    assert list(processor(samples))[2:] == [f"| {ALONE} |  | 80 |"]


def test_routes_with_the_same_plugins_stand_together() -> None:
    names = ("other+python", "ours+three", "other", "ours+go", "direct", "ours", "ours+python", "other+go")
    head = next(added({ALONE: {name: taken(1) for name in names}}))

    assert head == "| added ms | direct | ours | other | ours+go | other+go | ours+python | other+python | ours+three |"


def test_memory_is_shown_at_first_and_at_last() -> None:
    assert list(memories({"ours": SMALL}))[2:] == ["| ours | 20.0 | 25.0 | 31.0 |"]


def test_passing_may_add_half_of_what_the_other_adds_to_a_call_that_is_alone() -> None:
    other = taken(2, 3, 4)

    assert verdicts(beside(ALONE, taken(1.5, 2.4, 3.6), other)) == ["met, in 2 of 3 rounds met"]
    assert verdicts(beside(ALONE, taken(1.5, 2.6, 3.6), other)) == ["missed, in 1 of 3 rounds met"]


def test_among_others_and_with_plugins_it_must_not_add_more() -> None:
    ours, other = taken(1.9, 2.9, 3.9), taken(2, 3, 4)

    assert verdicts(beside(CROWD, ours, other)) == ["met, in 3 of 3 rounds met"]
    assert verdicts(beside(ALONE, ours, other, "+go")) == ["met, in 3 of 3 rounds met"]
    assert verdicts(beside(ALONE, other, ours, "+go")) == ["missed, in 0 of 3 rounds met"]


def test_proxies_with_other_plugins_are_not_compared() -> None:
    assert verdicts({ALONE: {"direct": taken(1), "ours": taken(2), "other+go": taken(3)}}) == []


def test_the_life_of_a_pod_decides_nothing() -> None:
    assert verdicts(beside("a pod's life, 1 at once", taken(9, 9, 9), taken(8, 8, 8))) == []


def test_the_peak_of_memory_counts() -> None:
    lines = list(aims({}, {"ours": SMALL, "ours+go": LARGE, "other": LARGE}))[2:]

    assert lines == [
        "| ours takes at most 32 MiB | 20.0 idle, 31.0 at most | met |",
        "| ours+go takes at most 32 MiB | 20.0 idle, 33.0 at most | missed |",
    ]
