"""Response bodies: size-limited buffering, gzip decompression, and splitting into lines. No I/O.

A server that exceeds a limit raises ``TooLargeError``.
"""

import zlib
from typing import Final

MAX_BODY_BYTES: Final = 256 * 1024 * 1024
MAX_LINE_BYTES: Final = 64 * 1024 * 1024
_GZIP: Final = 16 + zlib.MAX_WBITS


class TooLargeError(ValueError):
    """A body or line exceeds its limit."""


class ContentEncodingError(ValueError):
    """A body whose Content-Encoding was not requested, or that does not decode."""


class BodyBuffer:
    """Collects the chunks of a body up to a limit."""

    def __init__(self, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._chunks: list[bytes] = []
        self._size = 0

    def add(self, chunk: bytes) -> None:
        """Append one chunk."""
        self._size += len(chunk)
        if self._size > self._max_bytes:
            raise TooLargeError(f"more than {self._max_bytes} bytes")
        self._chunks.append(chunk)

    def value(self) -> bytes:
        """Return all chunks joined."""
        return b"".join(self._chunks)


def decompress(body: bytes, encoding: str, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return a body with its Content-Encoding removed; stop at ``max_bytes``."""
    coding = encoding.lower()
    if coding in ("", "identity"):
        return body
    if coding != "gzip":
        raise ContentEncodingError("its Content-Encoding is not gzip")
    decompressor = zlib.decompressobj(_GZIP)
    try:
        data = decompressor.decompress(body, max_bytes)
    except zlib.error as error:
        raise ContentEncodingError("it is not valid gzip") from error
    if not decompressor.eof:
        if decompressor.unconsumed_tail:
            raise TooLargeError(f"more than {max_bytes} bytes")
        raise ContentEncodingError("it is truncated")
    if decompressor.unused_data:
        raise ContentEncodingError("data follows the end of the gzip stream")
    return data


class LineSplitter:
    """Splits chunks into lines, in time linear in the bytes however long the lines and short the chunks."""

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._partial: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that ``chunk`` completes."""
        *lines, rest = chunk.split(b"\n")
        if lines and self._partial:
            lines[0] = b"".join((*self._partial, lines[0]))
        if lines:
            self._partial, self._size = [], 0
        if rest:
            self._partial.append(rest)
            self._size += len(rest)
            if self._size > self._max_bytes:
                raise TooLargeError(f"a line of more than {self._max_bytes} bytes")
        return lines

    def rest(self) -> bytes:
        """Return the last line if it is not terminated, else ``b""``."""
        return b"".join(self._partial)
