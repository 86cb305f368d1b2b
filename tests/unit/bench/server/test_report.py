"""The table of `make bench-server`."""

from msgspec.structs import replace

from bench.server.report import table
from bench.server.rounds import Spread
from tests.unit.bench.server.samples import figures


def test_a_value_is_the_median_of_its_rounds_and_is_compared_with_its_aim() -> None:
    lines = list(table([figures()]))
    assert "| shared change: ms until answered | 250 | 300: met |" in lines
    assert "| one runtime: ms until received, p50 | 12.0 | 20: met |" in lines
    assert "| list: ms | 20 |  |" in lines


def test_a_missed_aim_is_named() -> None:
    assert "| shared change: ms until answered | 400 | 300: missed |" in list(table([figures(answered=0.4)]))


def test_memory_has_an_aim_of_its_own_with_tls() -> None:
    plain, encrypted = figures(), replace(figures(), tls=True)
    assert "| KiB of memory per agent above idle | 18.0 | 30: met |" in list(table([plain]))
    assert "| KiB of memory per agent above idle | 18.0 | 60: met |" in list(table([encrypted]))


def test_aims_are_shown_only_for_the_number_of_agents_that_they_are_for() -> None:
    lines = list(table([figures(100), figures(500, answered=0.4)]))
    assert lines[0] == "| agents | 100 | 500 |"
    assert "| shared change: ms until answered | 250 | 400 |" in lines


def test_a_spread_begins_with_the_request() -> None:
    spread = Spread.of([10.5, 11.0, 12.0], 10.0)
    assert (spread.p50, spread.p99, spread.last, spread.count) == (1.0, 2.0, 2.0, 3)
