"""Watches: calls that never end by themselves, so that a proxy that stops must end them.

A byte copy decodes no header blocks. ``WatchFinder`` recognizes the requests that open watches nevertheless: the path
is a literal in the first of them on a connection; later ones refer to it by its index in the dynamic table, which
follows from the number of entries inserted since. From the first watch on, blocks are walked through, without decoding
any text.
"""

from typing import Final

from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

WATCHES: Final = frozenset(
    {b"/runtime.v1.RuntimeService/GetContainerEvents", b"/runtime.v1alpha2.RuntimeService/GetContainerEvents"}
)
WATCH_ENDED: Final = "the runtime proxy is stopping; reconnect to continue watching"

_HUFFMAN: Final = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
_TEXTS: Final = frozenset({*WATCHES, *(_HUFFMAN.encode(each) for each in WATCHES)})
"""The paths as a header block may contain them."""
_PATH_INDEXES: Final = (4, 5)
"""Static entries whose name is ``:path``."""
_FIRST_DYNAMIC: Final = 62


class WatchFinder:
    """Follows the header blocks of one connection's requests."""

    def __init__(self) -> None:
        self._ages: list[int] = []
        """For each path of a watch in the dynamic table: the number of entries inserted after it."""

    def is_watch(self, block: bytes) -> bool:
        """Return whether a block opens a watch; every complete block must be passed in order."""
        if not self._ages and not any(each in block for each in _TEXTS):
            return False
        try:
            return self._walk(block)
        except IndexError:
            return False

    def _walk(self, block: bytes) -> bool:
        at, found = 0, False
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 7)
                found = found or index - _FIRST_DYNAMIC in self._ages
            elif first & 0xE0 == 0x20:
                _, at = _integer(block, at, 5)
            else:
                is_inserted = bool(first & 0x40)
                is_path, at = self._literal(block, at, 6 if is_inserted else 4)
                found = found or is_path
                if is_inserted:
                    self._ages = [each + 1 for each in self._ages] + ([0] if is_path else [])
        return found

    def _literal(self, block: bytes, at: int, prefix: int) -> tuple[bool, int]:
        """Return whether a literal is the path of a watch, and where it ends."""
        index, at = _integer(block, at, prefix)
        if not index:
            _, at = _text(block, at)
        value, at = _text(block, at)
        return index in _PATH_INDEXES and value in _TEXTS, at


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    limit = (1 << prefix) - 1
    value = block[at] & limit
    at += 1
    if value < limit:
        return value, at
    shift = 0
    while True:
        value += (block[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not block[at - 1] & 0x80:
            return value, at


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """Return a text as encoded, and where it ends."""
    length, at = _integer(block, at, 7)
    return block[at : at + length], at + length
