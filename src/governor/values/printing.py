"""Values in print: columns for people, JSON or YAML for programs. What is shown is decided elsewhere."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from governor.values.terminal import visible
from governor.yamltext import dump

Format: TypeAlias = Literal["table", "json", "yaml"]
FORMATS: Final[tuple[Format, ...]] = ("table", "json", "yaml")

NONE: Final = "-"
"""What an empty cell shows."""

_NO_ASCII: Final = re.compile(r"[^\n -~]")


def machine_text(value: object, form: Format) -> str:
    """Structs themselves, for programs."""
    if form == "yaml":
        return _escaped(dump(msgspec.to_builtins(value)).rstrip("\n"))
    return _escaped(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def json_line(value: object) -> str:
    """A struct itself on one line."""
    return _escaped(msgspec.json.encode(value).decode())


def _escaped(text: str) -> str:
    """JSON, or YAML in which only ASCII is not quoted, with what a terminal would obey or not show escaped."""
    return _NO_ASCII.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as their widest cell; the last one takes what is left."""
    cells = [[one_line(str(cell)) or NONE for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def one_line(text: str) -> str:
    """A text from elsewhere, without line breaks and without anything that a terminal would obey."""
    return " ".join(visible(word) for word in text.split())
