"""The chart of `make bench-server`."""

from xml.etree import ElementTree

from bench.server.chart import TITLES, chart
from tests.unit.bench.server.samples import figures

SVG = "{http://www.w3.org/2000/svg}"


def test_each_figure_is_drawn_relative_to_its_value_with_the_most_agents() -> None:
    drawn = ElementTree.fromstring(chart([figures(10_000), figures(1000)], "a note with <angles>"))
    texts = [each.text for each in drawn.iter(f"{SVG}text")]
    curves = [each.attrib["points"].split() for each in drawn.iter(f"{SVG}polyline")]
    assert len(curves) == len(TITLES)
    assert {len(points) for points in curves} == {2}
    assert len({points[-1] for points in curves}) == 1
    assert {"1,000", "10,000", "100 %", "a note with <angles>"} <= set(texts)
