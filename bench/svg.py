"""Parts of the charts of the documentation. Text and lines follow the reader's light or dark theme."""

from collections.abc import Iterable
from typing import Final
from xml.sax.saxutils import escape

BLUE: Final = "#0072b2"
SKY: Final = "#56b4e9"
ORANGE: Final = "#e69f00"
PINK: Final = "#cc79a7"
"""Distinguishable on light and dark and for colour-blind readers (Okabe and Ito)."""
_STYLE: Final = """
text { font: 12px sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: bold; }
.line { stroke: #8c959f; stroke-width: 1; }
.grid { stroke: #8c959f; stroke-width: 1; stroke-opacity: 0.3; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } }
"""


def document(width: int, height: int, lines: Iterable[str]) -> str:
    """Return an SVG."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n".join([head, f"<style>{_STYLE}</style>", *lines, "</svg>", ""])


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    """Return a text; ``kind`` is a class of the style."""
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{of_kind}>{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a straight line; ``kind`` is a class of the style."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def square(x: float, y: float, colour: str) -> str:
    """Return the square of a legend."""
    return f'<rect x="{x:g}" y="{y:g}" width="12" height="12" fill="{colour}"/>'
