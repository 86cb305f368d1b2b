"""A chart of bars: what ours takes, relative to what another one takes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from bench import svg

_WIDTH: Final = 760
_RIGHT: Final = 80
_BAR: Final = 13
_GAP: Final = 14
_TOP: Final = 64
_PERCENT: Final = range(0, 101, 25)
_CHARACTER: Final = 6.2
"""Average width of a character of a title."""
_OTHER: Final = "other"
_OURS: Final = "governor"
_COLOURS: Final[Mapping[str, str]] = {_OURS: svg.BLUE, _OTHER: svg.ORANGE}


class Bars(NamedTuple):
    """One row: our value and the other one, which has the full length; ``aim`` is the largest value that meets it."""

    title: str
    ours: float
    other: float
    aim: float | None
    shown: Callable[[float], str]


class Scale(NamedTuple):
    """The horizontal positions of shares of the other value."""

    left: float
    largest: float

    def x(self, share: float) -> float:
        """Return the position of a share; a larger one than the largest is at the right end."""
        return self.left + min(share, self.largest) / self.largest * (_WIDTH - self.left - _RIGHT)


def chart(title: str, other: str, rows: Sequence[Bars], note: str, largest: float = 1.0) -> str:
    """Return the SVG; the note says where the figures come from, ``largest`` is the largest share drawn."""
    group = 2 * _BAR + _GAP
    bottom = _TOP + len(rows) * group
    scale = Scale(16 + _CHARACTER * max((len(each.title) for each in rows), default=0), largest)
    lines = [svg.text(8, 20, title, "title"), *_legend(other), *_axis(scale, bottom)]
    for number, each in enumerate(rows):
        lines += _group(each, _TOP + number * group, scale)
    lines.append(svg.text(8, bottom + 36, note))
    return svg.document(_WIDTH, bottom + 46, lines)


def _legend(other: str) -> Iterator[str]:
    for number, (kind, title) in enumerate({_OURS: "governor", _OTHER: other}.items()):
        yield svg.square(8 + number * 150, 32, _COLOURS[kind])
        yield svg.text(25 + number * 150, 42, title)
    yield svg.line(320, 31, 320, 45, "line")
    yield svg.text(326, 42, "aim")


def _axis(scale: Scale, bottom: int) -> Iterator[str]:
    for percent in _PERCENT:
        x = scale.x(percent / 100)
        yield svg.line(x, _TOP - 6, x, bottom, "grid")
        yield svg.text(x, bottom + 14, f"{percent} %", anchor="middle")


def _group(bars: Bars, top: int, scale: Scale) -> Iterator[str]:
    yield svg.text(scale.left - 8, top + _BAR + 3, bars.title, anchor="end")
    for number, (kind, value) in enumerate({_OURS: bars.ours, _OTHER: bars.other}.items()):
        end, y = scale.x(value / bars.other), top + number * _BAR
        size = f'width="{end - scale.left:.1f}" height="{_BAR - 2}"'
        yield f'<rect x="{scale.left:.1f}" y="{y}" {size} fill="{_COLOURS[kind]}"/>'
        yield svg.text(end + 4, y + 10, bars.shown(value))
    if bars.aim is not None:
        x = scale.x(bars.aim / bars.other)
        yield svg.line(x, top - 3, x, top + 2 * _BAR, "line")
