"""The order of libraries in the rounds of `make bench-kube`."""

from bench.kube.__main__ import order
from bench.kube.tasks import LIBRARIES


def test_each_library_runs_once_per_round_and_comes_first_equally_often() -> None:
    orders = [order(number) for number in range(len(LIBRARIES))]

    assert [sorted(each) for each in orders] == [sorted(LIBRARIES)] * len(LIBRARIES)
    assert sorted(each[0] for each in orders) == sorted(LIBRARIES)
