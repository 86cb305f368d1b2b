"""Paths into trees and their text form, ``spec.metadata[redisHost].value``.

A step is a map key, a list position, or ``Item`` for a list item addressed by its name. Keys and names that are not
plain words are quoted as in JSON: the key ``["example.com/team"]``, the item ``[name="0"]``.
"""

import json
import re
from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

from governor.errors import invalid


class Item(msgspec.Struct, frozen=True):
    """A list item addressed by its ``name``."""

    name: str


Step: TypeAlias = str | int | Item
Path: TypeAlias = tuple[Step, ...]

_KEY: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$/-]*")
_ITEM: Final = re.compile(r"[A-Za-z_$][^\[\]\"=]*")
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_STEP: Final = re.compile(
    rf"\.?(?P<key>{_KEY.pattern})"
    r"|\[(?P<index>[0-9]+)\]"
    rf"|\[(?P<quoted_key>{_QUOTED})\]"
    rf"|\[name=(?P<quoted_item>{_QUOTED})\]"
    rf"|\[(?P<item>{_ITEM.pattern})\]",
    re.DOTALL,
)


def render(path: Path) -> str:
    """Return the text form of a path, which ``parse`` reads."""
    return "".join([_render_step(step) for step in path]).removeprefix(".")


def parse(text: str) -> Path:
    """Parse the text form of a path."""
    return tuple(_steps(text))


def _render_step(step: Step) -> str:
    if isinstance(step, str):
        return f".{step}" if _KEY.fullmatch(step) else f"[{_quote(step)}]"
    match step:
        case int():
            return f"[{step}]"
        case Item(name):
            return f"[{name}]" if _ITEM.fullmatch(name) else f"[name={_quote(name)}]"


def _steps(text: str) -> Iterator[Step]:
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        step = None if match is None else _step(match)
        if match is None or step is None:
            raise invalid("path-unreadable", f"not a path at position {position}: {text!r}")
        position = match.end()
        yield step


def _step(match: re.Match[str]) -> Step | None:
    if match["index"] is not None:
        return int(match["index"])
    if match["item"] is not None:
        return Item(match["item"])
    if match["quoted_item"] is not None:
        name = _unquote(match["quoted_item"])
        return None if name is None else Item(name)
    return match["key"] if match["key"] is not None else _unquote(match["quoted_key"])


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _unquote(quoted: str) -> str | None:
    try:
        return str(json.loads(quoted))
    except ValueError:
        return None
