"""Draws the short table as an SVG: how many times better ours is than each other library.

Bars start at 1, where both are equal; to the left the other library is better. The scale is logarithmic. The text and
the axis follow the reader's light or dark theme.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape

from bench.kube.report import ROWS, Samples, advantage
from bench.kube.tasks import LIBRARIES, OURS

COLOURS: Final = dict(zip(LIBRARIES[1:], ("#0072b2", "#56b4e9", "#e69f00", "#cc79a7"), strict=True))
"""Distinguishable on light and dark and for colour-blind readers (Okabe and Ito)."""
_WIDTH: Final = 760
_LEFT: Final = 250
_RIGHT: Final = 70
_BAR: Final = 13
_GAP: Final = 12
_TOP: Final = 64
_STYLE: Final = """
text { font: 12px sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: bold; }
.line { stroke: #8c959f; stroke-width: 1; }
.grid { stroke: #8c959f; stroke-width: 1; stroke-opacity: 0.3; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } }
"""


def chart(samples: Samples, note: str) -> str:
    """Return the SVG of the headline rows; the note says where the figures come from."""
    ratios = {
        row.title: [advantage(row, samples, [library]).median for library in COLOURS] for row in ROWS if row.is_headline
    }
    scale = Scale([ratio for each in ratios.values() for ratio in each])
    group = len(COLOURS) * _BAR + _GAP
    bottom = _TOP + len(ratios) * group
    lines = [*_heading(), *_axis(scale, bottom), _text(8, bottom + 36, note)]
    for number, (title, each) in enumerate(ratios.items()):
        lines += _group(title, each, scale, _TOP + number * group)
    lines.append(f'<line class="line" x1="{scale.x(1):.1f}" y1="{_TOP - 6}" x2="{scale.x(1):.1f}" y2="{bottom}"/>')
    height = bottom + 46
    attributes = (
        f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    )
    return "\n".join([f'<svg {attributes} role="img">', f"<style>{_STYLE}</style>", *lines, "</svg>", ""])


class Scale:
    """Logarithmic scale between powers of two that include 1 and all ratios."""

    def __init__(self, ratios: Sequence[float]) -> None:
        self._low = min(0, math.floor(math.log2(min(ratios))))
        self._high = max(1, math.ceil(math.log2(max(ratios))))

    @property
    def ticks(self) -> list[float]:
        """The powers of two."""
        return [2.0**exponent for exponent in range(self._low, self._high + 1)]

    def x(self, ratio: float) -> float:
        """Return the horizontal position of a ratio."""
        share = (math.log2(ratio) - self._low) / (self._high - self._low)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _heading() -> Iterator[str]:
    yield _text(8, 20, f"{OURS}.kube: times better than …", "title")
    for number, (library, colour) in enumerate(COLOURS.items()):
        x = 8 + number * 150
        yield f'<rect x="{x}" y="32" width="12" height="12" fill="{colour}"/>'
        yield _text(x + 17, 42, library)


def _axis(scale: Scale, bottom: int) -> Iterator[str]:
    for tick in scale.ticks:
        x = scale.x(tick)
        yield f'<line class="grid" x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{bottom}"/>'
        yield _text(x, bottom + 14, f"{tick:g}", anchor="middle")


def _group(title: str, ratios: Sequence[float], scale: Scale, top: int) -> Iterator[str]:
    yield _text(_LEFT - 60, top + len(ratios) * _BAR / 2 + 4, title, anchor="end")
    for number, (ratio, colour) in enumerate(zip(ratios, COLOURS.values(), strict=True)):
        start, end = sorted((scale.x(1), scale.x(ratio)))
        y = top + number * _BAR
        yield f'<rect x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="{_BAR - 2}" fill="{colour}"/>'
        yield _text(max(scale.x(1), end) + 4, y + 10, f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}")


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{of_kind}>{escape(text)}</text>'
