"""The first table and the chart of `make bench-proxy`."""

from xml.etree import ElementTree

from bench.proxy.headlines import chart, headlines, table
from bench.proxy.processes import Memory
from bench.proxy.rounds import Samples
from tests.unit.bench.proxy.test_report import taken

CREATE = "CreateContainer, 16 at once"
SAMPLES: Samples = {
    "Version, 1 at once": {"direct": taken(1), "ours": taken(1.1), "other": taken(1.4)},
    CREATE: {"direct": taken(1), "ours+go": taken(2.5), "other+go": taken(2)},
}
MEMORY = {name: (Memory(20.0, 20.0), Memory(25.0, peak)) for name, peak in (("ours", 33.0), ("other", 90.0))}
SVG = "{http://www.w3.org/2000/svg}"


def test_only_figures_measured_with_both_are_shown_with_limit_and_verdict() -> None:
    assert list(table(list(headlines(SAMPLES, MEMORY, "other")), "other")) == [
        "| | governor | other | limit |",
        "|---|---|---|---|",
        "| ms added to Version, the smallest call | 0.10 | 0.40 | half of other's: met |",
        "| ms added to a create, a plugin in Go, 16 at once | 1.50 | 1.00 | 1.4 times other's: missed |",
        "| MiB of memory at most, no plugin | 33.0 | 90.0 | 32: missed |",
    ]


def test_the_chart_shows_each_figure_relative_to_the_other() -> None:
    drawn = ElementTree.fromstring(chart(list(headlines(SAMPLES, MEMORY, "other")), "other", "a note"))

    widths = [float(each.attrib["width"]) for each in drawn.iter(f"{SVG}rect") if each.attrib["height"] == "11"]
    ratios = [round(ours / other, 2) for ours, other in zip(widths[::2], widths[1::2], strict=True)]
    assert ratios == [0.25, 1.5, 0.37]
    assert "a note" in {each.text for each in drawn.iter(f"{SVG}text")}
