"""The order in which `make bench-kube` takes its rounds."""

from bench.kube.__main__ import order
from bench.kube.tasks import LIBRARIES


def test_every_library_begins_as_often_as_the_others_and_runs_once_in_a_round() -> None:
    orders = [order(number) for number in range(len(LIBRARIES))]

    assert [sorted(each) for each in orders] == [sorted(LIBRARIES)] * len(LIBRARIES)
    assert sorted(each[0] for each in orders) == sorted(LIBRARIES)
