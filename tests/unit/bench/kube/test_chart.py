"""The chart of `make bench-kube`."""

from xml.etree import ElementTree

from bench.kube.chart import COLOURS, Scale, chart
from bench.kube.report import ROWS
from bench.kube.tasks import LIBRARIES, OURS, Usage

SVG = "{http://www.w3.org/2000/svg}"


def drawn() -> ElementTree.Element:
    ours, theirs = Usage(10, 1.0, 1.0, 1000, 1000), Usage(10, 4.0, 4.0, 4000, 4000)
    usages = {each: [ours if each == OURS else theirs] for each in LIBRARIES}
    return ElementTree.fromstring(chart({row.task: usages for row in ROWS}, "a note with <angles>"))


def test_every_headline_has_a_bar_and_a_label_per_library() -> None:
    titles = [row.title for row in ROWS if row.is_headline]
    texts = [each.text for each in drawn().iter(f"{SVG}text")]

    assert {*titles, *COLOURS, "a note with <angles>"} <= set(texts)
    assert texts.count("4.00") == len(titles) * len(COLOURS)
    assert len(list(drawn().iter(f"{SVG}rect"))) == (len(titles) + 1) * len(COLOURS)


def test_the_scale_includes_one_and_grows_with_the_ratio() -> None:
    scale = Scale([3.0, 20.0, 0.8])

    assert scale.ticks == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    assert scale.x(0.5) < scale.x(1) < scale.x(3) < scale.x(32)
