"""The tables of `make bench-kube`."""

import pytest

from bench.kube.report import HELD, ROWS, TUNED, Advantage, Row, advantage, details, headlines, median, shares, tuned
from bench.kube.tasks import CLIENT_GO, LIBRARIES, OURS, PYTHON_PEERS, Usage

SPEED = next(row for row in ROWS if row.title == "applies/s, one at a time")


def seconds(*each: float) -> list[Usage]:
    return [Usage(count=100, seconds=each_s, cpu_seconds=1.0) for each_s in each]


def kib(*each: float) -> list[Usage]:
    return [Usage(count=100, seconds=1.0, cpu_seconds=1.0, resident_bytes=int(100 * 1024 * one)) for one in each]


def samples(row: Row, ours: list[Usage], second: list[Usage], third: list[Usage]) -> dict[str, dict[str, list[Usage]]]:
    return {row.task: dict(zip((OURS, *PYTHON_PEERS), (ours, second, third), strict=True))}


def everything(figure: Usage) -> dict[str, dict[str, list[Usage]]]:
    libraries = {*LIBRARIES, *(library for _, library, _ in TUNED)}
    return {row.task: {each: [figure] for each in libraries} for row in ROWS}


def test_figures_are_medians_compared_with_the_better_of_the_others() -> None:
    given = samples(SPEED, seconds(1, 1, 50), seconds(4, 4, 4), seconds(2, 2, 2))

    assert [median(SPEED, given, each) for each in (OURS, *PYTHON_PEERS)] == [100.0, 25.0, 50.0]
    assert advantage(SPEED, given, PYTHON_PEERS).rounds == (2.0, 2.0, 0.04)


def test_libraries_are_compared_within_a_round() -> None:
    given = samples(SPEED, seconds(2, 20, 200), seconds(1, 10, 100), seconds(4, 40, 400))

    assert advantage(SPEED, given, PYTHON_PEERS).rounds == (0.5, 0.5, 0.5)


def test_less_memory_is_better() -> None:
    assert advantage(HELD, samples(HELD, kib(2.0), kib(9.0), kib(8.0)), PYTHON_PEERS).rounds == (4.0,)


@pytest.mark.parametrize(
    ("rounds", "verdict"),
    [((1.5, 1.2, 1.1), "met"), ((1.0, 1.0), "met"), ((1.5, 1.2, 0.9), "undecided"), ((0.9, 0.8), "missed")],
)
def test_rounds_that_disagree_decide_nothing(rounds: tuple[float, ...], verdict: str) -> None:
    assert Advantage(rounds).verdict == verdict


def test_the_tables_have_every_row_and_mark_exceeded_limits() -> None:
    given = everything(Usage(10, 1.0, 1.0, 30 * 10 * 1024, 30 * 10 * 1024, open_sockets=2))
    lines = list(details(given))
    of_rows = lines[2 : 2 + len(ROWS)]

    assert [line.split(" | ")[0].removeprefix("| ") for line in of_rows] == [row.title for row in ROWS]
    assert [row.title for row, line in zip(ROWS, of_rows, strict=True) if "missed" in line] == [
        row.title for row in ROWS if row.limit
    ]
    assert lines[-1].startswith("Connections that the idle clients had not closed: governor 2, client-go typed 2, ")
    assert len(list(headlines(given))) == 2 + sum(row.is_headline for row in ROWS)
    assert len(list(tuned(given))) == 2 + len(TUNED)


def test_client_go_and_the_python_libraries_are_compared_apart() -> None:
    given = {SPEED.task: {OURS: seconds(2), **dict.fromkeys(CLIENT_GO, seconds(1))}}

    assert str(advantage(SPEED, given, CLIENT_GO)) == "0.50 (0.50 to 0.50), missed"


def test_the_cpu_time_of_a_request_is_shown_in_two_parts() -> None:
    lines = list(shares(everything(Usage(1000, 1.0, cpu_seconds=0.1, server_cpu_seconds=0.5))))

    assert lines[2] == "| apply, 16 at once |" + " 100 + 500 |" * len(LIBRARIES)
    assert len(lines) == 6
