"""The chart of `make bench-reconciler`."""

from xml.etree import ElementTree

from bench.reconciler.chart import chart
from tests.unit.bench.reconciler.samples import OURS, PEER

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_relative_to_the_recorded_figures() -> None:
    drawn = ElementTree.fromstring(chart(OURS, None, "linked", "a note with <angles>"))

    texts = [each.text for each in drawn.iter(f"{SVG}text")]
    widths = [float(each.attrib["width"]) for each in drawn.iter(f"{SVG}rect") if each.attrib["height"] == "11"]
    assert len(widths) == 2 * 8
    assert len(set(widths[1::2])) == 1
    assert round(widths[0] / widths[1], 2) == round(45 / 279, 2)
    assert {"s to install all", "idle: MiB", "45.0", "279.0", "a note with <angles>"} <= set(texts)


def test_only_figures_that_the_peer_has_too_are_drawn() -> None:
    drawn = ElementTree.fromstring(chart(OURS, PEER, "linked", ""))

    bars = [each for each in drawn.iter(f"{SVG}rect") if each.attrib["height"] == "11"]
    assert len(bars) == 2 * 2
