"""The table of `make bench-kube`."""

import pytest

from bench.kube.report import ROWS, Row, evaluate, table
from bench.kube.tasks import LIBRARIES, Usage

SPEED = next(row for row in ROWS if row.title == "applies/s, one at a time")
OBJECTS = next(row for row in ROWS if row.title == "KiB per object held")


def seconds(*each: float) -> list[Usage]:
    return [Usage(count=100, seconds=each_s, cpu_seconds=1.0) for each_s in each]


def kib(*each: float) -> list[Usage]:
    return [Usage(count=100, seconds=1.0, cpu_seconds=1.0, resident_bytes=int(100 * 1024 * one)) for one in each]


def samples(row: Row, ours: list[Usage], second: list[Usage], third: list[Usage]) -> dict[str, dict[str, list[Usage]]]:
    return {row.task: dict(zip(LIBRARIES, (ours, second, third), strict=True))}


def test_figures_are_medians_compared_with_the_better_of_the_others() -> None:
    line = evaluate(SPEED, samples(SPEED, seconds(1, 1, 50), seconds(4, 4, 4), seconds(2, 2, 2)))

    assert line.figures == (100.0, 25.0, 50.0)
    assert line.advantages == (2.0, 2.0, 0.04)
    assert line.is_met


def test_libraries_are_compared_within_a_round() -> None:
    line = evaluate(SPEED, samples(SPEED, seconds(2, 20, 200), seconds(1, 10, 100), seconds(4, 40, 400)))

    assert line.advantages == (0.5, 0.5, 0.5)
    assert not line.is_met


@pytest.mark.parametrize(
    ("ours", "second", "is_met"),
    [(3.0, 9.0, True), (4.0, 9.0, True), (4.5, 9.0, False), (3.0, 2.0, False)],
    ids=["small", "at the limit", "above the limit", "not the smallest"],
)
def test_a_goal_with_a_limit_needs_the_smallest_figure_within_it(ours: float, second: float, is_met: bool) -> None:
    assert evaluate(OBJECTS, samples(OBJECTS, kib(ours), kib(second), kib(10.0))).is_met is is_met


def test_the_table_has_every_row_and_marks_missed_goals() -> None:
    usages = {each: [Usage(10, 1.0, 1.0, 30 * 10 * 1024, 30 * 10 * 1024, open_sockets=2)] for each in LIBRARIES}
    lines = list(table({row.task: usages for row in ROWS}))

    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2 : 2 + len(ROWS)]] == [row.title for row in ROWS]
    assert [row.title for row, line in zip(ROWS, lines[2:], strict=False) if "missed" in line] == [
        row.title for row in ROWS if row.limit
    ]
    assert lines[-1].endswith("governor 2, kubernetes_asyncio 2, lightkube 2.")
