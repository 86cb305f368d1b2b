"""Draws the figures as an SVG: what our reconciler takes, relative to another controller."""

from collections.abc import Iterator
from typing import Final

from bench import bars
from bench.bars import Bars
from bench.reconciler.report import RECORDED, Figures, rows

_LARGEST: Final = 1.05


def chart(ours: Figures, peer: Figures | None, renderer: str, note: str) -> str:
    """Return the SVG; the note says where the figures come from."""
    name = "the peer" if peer else RECORDED
    title = f"{ours.modules:,} modules: governor relative to {name}, less is better"
    return bars.chart(title, name, list(_bars(ours, peer, renderer)), note, _LARGEST)


def _bars(ours: Figures, peer: Figures | None, renderer: str) -> Iterator[Bars]:
    for row in rows(renderer):
        value, other = row.value(ours), row.value(peer) if peer else row.recorded
        if row.recorded is not None and value is not None and other:
            yield Bars(row.title, value, other, row.aim, row.shown)
