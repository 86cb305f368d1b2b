"""Paths into trees and their one textual form, ``spec.metadata[redisHost].value``.

A step is a map key, a list position, or ``Item`` for a list item addressed by its name.
"""

import re
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from governor.errors import invalid


class Item(msgspec.Struct, frozen=True):
    """A list item addressed by its ``name``."""

    name: str


Step: TypeAlias = str | int | Item
Path: TypeAlias = tuple[Step, ...]

_PLAIN = re.compile(r"[A-Za-z_$][A-Za-z0-9_$/-]*")
_PLAIN_ITEM = re.compile(r"[A-Za-z_$][^\[\]\"]*")
_STEP = re.compile(
    r"\.?(?P<key>[A-Za-z_$][A-Za-z0-9_$/-]*)"
    r"|\.?\{\"(?P<quoted_key>(?:[^\"\\]|\\.)*)\"\}"
    r"|\[(?P<index>\d+)\]"
    r"|\[\"(?P<quoted_item>(?:[^\"\\]|\\.)*)\"\]"
    r"|\[(?P<item>[A-Za-z_$][^\[\]\"]*)\]",
    re.DOTALL,
)


def render(path: Path) -> str:
    """Write a path for people; ``parse`` reads it back."""
    return "".join(_render_step(step, first=index == 0) for index, step in enumerate(path))


def parse(text: str) -> Path:
    """Read a path written by ``render``."""
    return tuple(_steps(text))


def _render_step(step: Step, *, first: bool) -> str:
    match step:
        case int():
            return f"[{step}]"
        case Item(name):
            return f"[{name}]" if _PLAIN_ITEM.fullmatch(name) else f'["{_escape(name)}"]'
        case _:
            key = step if _PLAIN.fullmatch(step) else f'{{"{_escape(step)}"}}'
            return key if first else f".{key}"


def _steps(text: str) -> Iterator[Step]:
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise invalid("path-unreadable", f"not a path at position {position}: {text!r}")
        position = match.end()
        yield _step(match)


def _step(match: re.Match[str]) -> Step:
    if match["index"] is not None:
        return int(match["index"])
    if match["item"] is not None:
        return Item(match["item"])
    if match["quoted_item"] is not None:
        return Item(_unescape(match["quoted_item"]))
    return match["key"] if match["key"] is not None else _unescape(match["quoted_key"])


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
