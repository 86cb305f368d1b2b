"""The chart of `make bench-kubernetes`."""

from xml.etree import ElementTree

from bench.kubernetes.chart import Axis, chart
from tests.unit.bench.kubernetes.samples import reload, reloads

SVG = "{http://www.w3.org/2000/svg}"


def test_each_curve_rises_in_one_step_per_change_to_the_top() -> None:
    ours = [reload(100, 120 + number, 250 + number) for number in range(3)]
    drawn = ElementTree.fromstring(chart(reloads(ours, [reload(80, 100, 90)] * 3), "a note with <angles>"))

    curves = [each.attrib["points"].split() for each in drawn.iter(f"{SVG}polyline")]
    heights = [[float(point.split(",")[1]) for point in each] for each in curves]
    assert [len(each) for each in curves] == [2 * 3 + 2] * 3
    assert all(each == sorted(each, reverse=True) for each in heights)
    assert {(each[0], each[-1]) for each in heights} == {(304.0, 64.0)}
    assert "a note with <angles>" in [each.text for each in drawn.iter(f"{SVG}text")]


def test_the_axis_ends_at_a_tick_and_holds_what_is_beyond() -> None:
    axis = Axis(430.0)

    assert axis.ticks == list(range(0, 451, 50))
    assert axis.x(0) == axis.x(-3) < axis.x(430) < axis.x(450) == axis.x(9000)
