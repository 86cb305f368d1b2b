"""Draws how the figures grow with the number of agents, as an SVG: each relative to its value with the most agents."""

from collections.abc import Iterator, Sequence
from typing import Final

from bench import svg
from bench.server.report import ROWS, Figures, Row

TITLES: Final = {
    "shared change: s until received, p99": svg.BLUE,
    "shared change: CPU s": svg.SKY,
    "all acknowledged, followed: s": svg.ORANGE,
    "reconnect after kill -9: s": svg.PINK,
}
"""The rows that are drawn, with their colours."""
_WIDTH: Final = 760
_LEFT: Final = 60
_RIGHT: Final = 250
_TOP: Final = 44
_HEIGHT: Final = 300
_PERCENT: Final = range(0, 126, 25)


def chart(measured: Sequence[Figures], note: str) -> str:
    """Return the SVG; the note says where the figures come from."""
    ordered = sorted(measured, key=lambda each: each.agents)
    most = ordered[-1].agents
    lines = [svg.text(8, 20, f"Growth up to {most:,} agents, relative to the value there", "title")]
    lines += [*_axes([each.agents for each in ordered], most)]
    lines.append(svg.line(_x(0, most), _y(0), _x(most, most), _y(100), "line"))
    drawn = [row for row in ROWS if row.title in TITLES]
    for number, row in enumerate(drawn):
        lines += _curve(row, ordered, number)
    lines.append(svg.text(8, _TOP + _HEIGHT + 52, note))
    return svg.document(_WIDTH, _TOP + _HEIGHT + 62, lines)


def _x(agents: int, most: int) -> float:
    return _LEFT + agents / most * (_WIDTH - _LEFT - _RIGHT)


def _y(percent: float) -> float:
    """Return the vertical position; a larger value than the last is at the top."""
    return _TOP + _HEIGHT * (1 - min(percent, _PERCENT[-1]) / _PERCENT[-1])


def _axes(agents: Sequence[int], most: int) -> Iterator[str]:
    for percent in _PERCENT:
        yield svg.line(_LEFT, _y(percent), _x(most, most), _y(percent), "grid")
        yield svg.text(_LEFT - 6, _y(percent) + 4, f"{percent} %", anchor="end")
    for count in agents:
        yield svg.text(_x(count, most), _TOP + _HEIGHT + 16, f"{count:,}", anchor="middle")
    yield svg.text(_x(most, most) / 2, _TOP + _HEIGHT + 34, "agents; the straight line is linear growth")


def _curve(row: Row, measured: Sequence[Figures], number: int) -> Iterator[str]:
    colour, most = TITLES[row.title], measured[-1]
    whole = row.value(most)
    if not whole:
        return
    values = [(each.agents, row.value(each)) for each in measured]
    points = " ".join(
        f"{_x(agents, most.agents):.1f},{_y(value / whole * 100):.1f}" for agents, value in values if value is not None
    )
    yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
    left, top = _WIDTH - _RIGHT + 12, _TOP + 22 * number
    yield svg.square(left, top, colour)
    yield svg.text(left + 18, top + 10, f"{row.title} ({row.shown(most)})")
