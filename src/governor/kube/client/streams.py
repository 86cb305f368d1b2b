"""Bytes that come in pieces: whole bodies within a limit, packed or not, and lines of any length within a limit.

Nothing here waits or knows HTTP; a ``TooLargeError`` says that a server sends more than anybody would read.
"""

import zlib
from typing import Final

MOST_BODY_BYTES: Final = 256 * 1024 * 1024
MOST_LINE_BYTES: Final = 64 * 1024 * 1024
_GZIP: Final = 16 + zlib.MAX_WBITS


class TooLargeError(ValueError):
    """More than the limit."""


class BrokenError(ValueError):
    """Packed data that cannot be unpacked, or in a way that was not asked for."""


class Body:
    """A body that grows piece by piece."""

    def __init__(self, most_bytes: int = MOST_BODY_BYTES) -> None:
        self._most_bytes = most_bytes
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, piece: bytes) -> None:
        """Take one piece."""
        self._size += len(piece)
        if self._size > self._most_bytes:
            raise TooLargeError(f"more than {self._most_bytes} bytes")
        self._pieces.append(piece)

    def whole(self) -> bytes:
        """All pieces."""
        return b"".join(self._pieces)


def unpacked(body: bytes, encoding: str, most_bytes: int = MOST_BODY_BYTES) -> bytes:
    """A body as it was before its Content-Encoding; what unpacks to too much is not unpacked further."""
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise BrokenError("its Content-Encoding is not gzip")
    unpacking = zlib.decompressobj(_GZIP)
    try:
        data = unpacking.decompress(body, most_bytes)
    except zlib.error as error:
        raise BrokenError("it is not what its Content-Encoding says") from error
    if not unpacking.eof:
        raise TooLargeError(f"more than {most_bytes} bytes") if unpacking.unconsumed_tail else BrokenError("it is cut")
    if unpacking.unused_data:
        raise BrokenError("there is more behind its end")
    return data


class Lines:
    """Pieces to lines; the time that it takes grows with the bytes only, however long a line and short the pieces."""

    def __init__(self, most_bytes: int = MOST_LINE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._begun: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that ``piece`` ends."""
        *lines, rest = piece.split(b"\n")
        if lines and self._begun:
            lines[0] = b"".join((*self._begun, lines[0]))
        if lines:
            self._begun, self._size = [], 0
        if rest:
            self._begun.append(rest)
            self._size += len(rest)
            if self._size > self._most_bytes:
                raise TooLargeError(f"a line of more than {self._most_bytes} bytes")
        return lines

    def rest(self) -> bytes:
        """The last line if it has no end."""
        return b"".join(self._begun)
