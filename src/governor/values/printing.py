"""Text output: tables for users, JSON or YAML for programs, and escaping for terminals.

What is shown is decided elsewhere. Importing this module loads no YAML library, because the runtime proxy uses it too.
"""

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias

import msgspec

Format: TypeAlias = Literal["table", "json", "yaml"]
FORMATS: Final[tuple[Format, ...]] = ("table", "json", "yaml")

NONE: Final = "-"
"""Text of an empty cell."""

_NOT_ASCII: Final = re.compile(r"[^\n -~]")
_MAX_NAMES: Final = 5
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"))


def machine_text(value: object, form: Format) -> str:
    """Return a struct as YAML or indented JSON."""
    if form == "yaml":
        from governor.yamltext import dump  # noqa: PLC0415 - see the module's docstring

        return _escaped(dump(msgspec.to_builtins(value)).rstrip("\n"))
    return _escaped(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def json_line(value: object) -> str:
    """Return a struct as JSON on one line."""
    return _escaped(msgspec.json.encode(value).decode())


def _escaped(text: str) -> str:
    """Escape unprintable characters in JSON, or in YAML whose plain scalars are ASCII only."""
    return _NOT_ASCII.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return columns as wide as their widest cell; the last one is not padded."""
    cells = [[one_line(str(cell)) or NONE for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def one_line(text: str) -> str:
    """Return untrusted text on one line, with unprintable characters escaped."""
    return " ".join(printable(word) for word in text.split())


def printable(text: str) -> str:
    r"""Return ``text`` with unprintable characters escaped as Python does: ``\x1b``, ``\u202e``."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def listed(names: Iterable[str]) -> str:
    """Return the first names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - _MAX_NAMES} more" if len(every) > _MAX_NAMES else ""
    return ", ".join(every[:_MAX_NAMES]) + more


def age(since: datetime | None, now: datetime) -> str:
    """Return the time since then in the largest unit of which it has at least two; a time in the future is ``0s``."""
    if since is None:
        return NONE
    seconds = max(0.0, (now - since).total_seconds())
    return next((f"{seconds / size:.0f}{unit}" for size, unit in _UNITS if seconds >= 2 * size), f"{seconds:.0f}s")


def timestamp(time: datetime | None) -> str:
    """Return a time in UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ") if time else NONE
