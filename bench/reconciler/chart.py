"""Draws the figures as an SVG: what our reconciler takes, relative to another controller."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from bench import svg
from bench.reconciler.report import RECORDED, Figures, Row, rows

_WIDTH: Final = 760
_LEFT: Final = 190
_RIGHT: Final = 80
_BAR: Final = 13
_GAP: Final = 14
_TOP: Final = 64
_LARGEST: Final = 1.05
_PERCENT: Final = range(0, 101, 25)
_OTHER: Final = "other"
_OURS: Final = "governor"
_COLOURS: Final[Mapping[str, str]] = {_OURS: svg.BLUE, _OTHER: svg.ORANGE}


class Bars(NamedTuple):
    """One row: our value and the other one, which has the full length."""

    row: Row
    ours: float
    other: float


def chart(ours: Figures, peer: Figures | None, renderer: str, note: str) -> str:
    """Return the SVG; the note says where the figures come from."""
    shown = list(_bars(ours, peer, renderer))
    group = 2 * _BAR + _GAP
    bottom = _TOP + len(shown) * group
    name = "the peer" if peer else RECORDED
    lines = [svg.text(8, 20, f"{ours.modules:,} modules: governor relative to {name}, less is better", "title")]
    lines += [*_legend(name), *_axis(bottom)]
    for number, each in enumerate(shown):
        lines += _group(each, _TOP + number * group)
    lines.append(svg.text(8, bottom + 36, note))
    return svg.document(_WIDTH, bottom + 46, lines)


def _bars(ours: Figures, peer: Figures | None, renderer: str) -> Iterator[Bars]:
    for row in rows(renderer):
        value, other = row.value(ours), row.value(peer) if peer else row.recorded
        if row.recorded is not None and value is not None and other:
            yield Bars(row, value, other)


def _x(share: float) -> float:
    """Return the horizontal position of a share of the other value; a larger one than the last is at the right end."""
    return _LEFT + min(share, _LARGEST) * (_WIDTH - _LEFT - _RIGHT)


def _legend(name: str) -> Iterator[str]:
    for number, (kind, title) in enumerate({_OURS: "governor", _OTHER: name}.items()):
        yield svg.square(8 + number * 150, 32, _COLOURS[kind])
        yield svg.text(25 + number * 150, 42, title)
    yield svg.line(320, 31, 320, 45, "line")
    yield svg.text(326, 42, "aim")


def _axis(bottom: int) -> Iterator[str]:
    for percent in _PERCENT:
        x = _x(percent / 100)
        yield svg.line(x, _TOP - 6, x, bottom, "grid")
        yield svg.text(x, bottom + 14, f"{percent} %", anchor="middle")


def _group(bars: Bars, top: int) -> Iterator[str]:
    row, values = bars.row, {_OURS: bars.ours, _OTHER: bars.other}
    yield svg.text(_LEFT - 8, top + _BAR + 3, row.title, anchor="end")
    for number, (kind, value) in enumerate(values.items()):
        end, y = _x(value / bars.other), top + number * _BAR
        size = f'width="{end - _LEFT:.1f}" height="{_BAR - 2}"'
        yield f'<rect x="{_LEFT}" y="{y}" {size} fill="{_COLOURS[kind]}"/>'
        yield svg.text(end + 4, y + 10, row.shown(value))
    if row.aim is not None:
        x = _x(row.aim / bars.other)
        yield svg.line(x, top - 3, x, top + 2 * _BAR, "line")
