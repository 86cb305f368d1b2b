"""Draws the short table as an SVG: how many times better ours is than each other library.

Bars start at 1, where both are equal; to the left the other library is better. The scale is logarithmic.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from bench import svg
from bench.kube.report import ROWS, Samples, advantage
from bench.kube.tasks import LIBRARIES, OURS

COLOURS: Final = dict(zip(LIBRARIES[1:], (svg.BLUE, svg.SKY, svg.ORANGE, svg.PINK), strict=True))
_WIDTH: Final = 760
_LEFT: Final = 250
_RIGHT: Final = 70
_BAR: Final = 13
_GAP: Final = 12
_TOP: Final = 64


def chart(samples: Samples, note: str) -> str:
    """Return the SVG of the headline rows; the note says where the figures come from."""
    ratios = {
        row.title: [advantage(row, samples, [library]).median for library in COLOURS] for row in ROWS if row.is_headline
    }
    scale = Scale([ratio for each in ratios.values() for ratio in each])
    group = len(COLOURS) * _BAR + _GAP
    bottom = _TOP + len(ratios) * group
    lines = [*_heading(), *_axis(scale, bottom), svg.text(8, bottom + 36, note)]
    for number, (title, each) in enumerate(ratios.items()):
        lines += _group(title, each, scale, _TOP + number * group)
    lines.append(svg.line(scale.x(1), _TOP - 6, scale.x(1), bottom, "line"))
    return svg.document(_WIDTH, bottom + 46, lines)


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
    yield svg.text(8, 20, f"{OURS}.kube: times better than …", "title")
    for number, (library, colour) in enumerate(COLOURS.items()):
        x = 8 + number * 150
        yield svg.square(x, 32, colour)
        yield svg.text(x + 17, 42, library)


def _axis(scale: Scale, bottom: int) -> Iterator[str]:
    for tick in scale.ticks:
        x = scale.x(tick)
        yield svg.line(x, _TOP - 6, x, bottom, "grid")
        yield svg.text(x, bottom + 14, f"{tick:g}", anchor="middle")


def _group(title: str, ratios: Sequence[float], scale: Scale, top: int) -> Iterator[str]:
    yield svg.text(_LEFT - 60, top + len(ratios) * _BAR / 2 + 4, title, anchor="end")
    for number, (ratio, colour) in enumerate(zip(ratios, COLOURS.values(), strict=True)):
        start, end = sorted((scale.x(1), scale.x(ratio)))
        y = top + number * _BAR
        yield f'<rect x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="{_BAR - 2}" fill="{colour}"/>'
        yield svg.text(max(scale.x(1), end) + 4, y + 10, f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}")
