"""Cuts deeply nested parts out of JSON text, without recursion and in linear time.

An API server stores objects of up to 10,000 levels; a decoder that recurses fails at about 1,000, even for a part that
it only skips. Brackets are balanced here; everything else is left to the decoder.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

_CLOSED_BY: Final = {b"{": b"}", b"[": b"]"}

# Possessive quantifiers never backtrack. A quotation mark that is matched as a token opens a string without an end.
_TOKEN: Final = re.compile(rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+([\[\]{}"]|\Z)', re.DOTALL)


class Cut(NamedTuple):
    """A document without its deep parts: ``parts[n]`` belongs between ``kept[n]`` and ``kept[n + 1]``."""

    kept: list[bytes]
    parts: list[bytes]

    def fill(self, values: Iterable[bytes]) -> bytes:
        """Return the document with a value in place of each part."""
        pieces = [piece for kept, value in zip(self.kept[:-1], values, strict=True) for piece in (kept, value)]
        return b"".join([*pieces, self.kept[-1]])

    def number(self) -> bytes:
        """Return the document with its number in place of each part."""
        return self.fill(b"%d" % number for number in range(len(self.parts)))

    def part(self, number: int) -> bytes:
        """Return a part; ``msgspec.ValidationError`` for a number that is not one of a part."""
        if not 0 <= number < len(self.parts):
            raise msgspec.ValidationError("Expected `object`, got `int`")
        return self.parts[number]


def cut_below(document: bytes, depth: int) -> Cut:
    """Cut out each array and object that is nested in ``depth`` others; raise ``msgspec.DecodeError`` if unbalanced."""
    kept: list[bytes] = []
    parts: list[bytes] = []
    closing: list[bytes] = []
    end = start = 0
    for match in _TOKEN.finditer(document):
        token = match[1]
        if not token:
            break
        if token in _CLOSED_BY:
            if len(closing) == depth:
                start = match.start(1)
                kept.append(document[end:start])
            closing.append(_CLOSED_BY[token])
        elif not closing or closing.pop() != token:
            raise msgspec.DecodeError(f"JSON is malformed: unexpected {token.decode()} (byte {match.start(1)})")
        elif len(closing) == depth:
            end = match.end(1)
            parts.append(document[start:end])
    if closing:
        raise msgspec.DecodeError("Input data was truncated")
    return Cut([*kept, document[end:]], parts)
