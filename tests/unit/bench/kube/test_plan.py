"""The steps of `make bench-kube` and their expected duration."""

from pathlib import Path

import pytest

from bench.kube.plan import Sizes, Step, plan, remaining_s, rotated, steps
from bench.kube.tasks import LIBRARIES

ONE_OF_ALL = plan(Sizes(), Path("real"), [Path("replayed-0"), Path("replayed-1")])


def test_each_library_comes_first_equally_often() -> None:
    orders = [rotated(LIBRARIES, number) for number in range(len(LIBRARIES))]

    assert [sorted(each) for each in orders] == [sorted(LIBRARIES)] * len(LIBRARIES)
    assert sorted(each[0] for each in orders) == sorted(LIBRARIES)


def test_each_round_runs_every_task_once_with_each_of_its_libraries() -> None:
    expected = sorted((name, library) for name, each in ONE_OF_ALL.items() for library in each.libraries)

    for number in range(2):
        of_round = [step for step in steps(2, ONE_OF_ALL) if step.round == number]
        assert sorted(run for step in of_round for run in step.runs) == expected


def test_only_what_measures_memory_runs_at_once() -> None:
    shared = [step for step in steps(1, ONE_OF_ALL) if len(step.runs) > 1]

    assert [{name for name, _ in step.runs} for step in shared] == [{"cache", "connect"}]


def test_three_rounds_are_expected_to_take_less_than_eight_minutes() -> None:
    assert sum(step.expected_s for step in steps(Sizes().rounds, ONE_OF_ALL)) < 480


@pytest.mark.parametrize(
    ("done", "elapsed_s", "expected_s"),
    [(0, 0.0, 6.0), (1, 1.0, 5.0), (1, 3.0, 15.0), (3, 9.0, 0.0)],
    ids=["at first", "as expected", "three times slower", "at the end"],
)
def test_the_remaining_time_follows_the_pace_so_far(done: int, elapsed_s: float, expected_s: float) -> None:
    planned = [Step(0, "any", (("get", "governor"),), weight) for weight in (1.0, 2.0, 3.0)]

    assert remaining_s(planned, done, elapsed_s) == expected_s
