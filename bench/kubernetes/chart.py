"""Draws hot reloads as an SVG: which share of the changes had come how far after how many milliseconds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from bench import svg
from bench.kubernetes.methods import GOVERNOR, KUBECTL
from bench.kubernetes.reloads import Reloads
from bench.kubernetes.report import dapr_ms, done_ms, used_ms
from bench.percentiles import p99

_WIDTH: Final = 760
_LEFT: Final = 48
_RIGHT: Final = 24
_TOP: Final = 64
_HEIGHT: Final = 240
_BOTTOM: Final = _TOP + _HEIGHT
_MOST_TICKS: Final = 10
_STEPS_MS: Final = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)


def chart(reloads: Reloads, note: str) -> str:
    """Return the SVG; the note says where the figures come from."""
    curves = {
        "kubectl: new store in use after its write": (svg.ORANGE, dapr_ms(reloads.by_method[KUBECTL])),
        "governor: new store in use": (svg.SKY, used_ms(reloads.by_method[GOVERNOR])),
        "governor: its use proven": (svg.BLUE, done_ms(reloads.by_method[GOVERNOR])),
    }
    axis = Axis(max(p99(each) for _, each in curves.values()))
    lines = [svg.text(8, 20, "Hot reload in a real cluster: share of changes after … ms", "title")]
    lines += _legend({title: colour for title, (colour, _) in curves.items()})
    lines += [*_grid(axis), *(_curve(each, colour, axis) for colour, each in curves.values())]
    lines.append(svg.text(8, _BOTTOM + 36, note))
    return svg.document(_WIDTH, _BOTTOM + 46, lines)


class Axis:
    """Milliseconds from zero to the first tick above a value."""

    def __init__(self, largest_ms: float) -> None:
        step = next((each for each in _STEPS_MS if largest_ms / each < _MOST_TICKS), _STEPS_MS[-1])
        self.ticks = [number * step for number in range(int(largest_ms // step) + 2)]

    def x(self, value_ms: float) -> float:
        """Return the horizontal position of a value; a larger one than the last tick is at the right end."""
        share = min(value_ms / self.ticks[-1], 1.0)
        return _LEFT + max(share, 0.0) * (_WIDTH - _LEFT - _RIGHT)


def _legend(colours: Mapping[str, str]) -> Iterator[str]:
    for number, (title, colour) in enumerate(colours.items()):
        x = 8 + number * 250
        yield svg.square(x, 32, colour)
        yield svg.text(x + 17, 42, title)


def _grid(axis: Axis) -> Iterator[str]:
    for tick in axis.ticks:
        yield svg.line(axis.x(tick), _TOP, axis.x(tick), _BOTTOM, "grid")
        yield svg.text(axis.x(tick), _BOTTOM + 14, f"{tick:,}", anchor="middle")
    for percent in (0, 50, 100):
        y = _y(percent / 100)
        yield svg.line(_LEFT, y, _WIDTH - _RIGHT, y, "grid")
        yield svg.text(_LEFT - 6, y + 4, f"{percent} %", anchor="end")


def _curve(values_ms: Sequence[float], colour: str, axis: Axis) -> str:
    """Return the steps of a cumulative distribution."""
    points = [(axis.x(0), _y(0.0))]
    for number, value_ms in enumerate(sorted(values_ms)):
        x = axis.x(value_ms)
        points += [(x, _y(number / len(values_ms))), (x, _y((number + 1) / len(values_ms)))]
    points.append((axis.x(axis.ticks[-1]), _y(1.0)))
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _y(share: float) -> float:
    return _BOTTOM - share * _HEIGHT
