"""Framing of HTTP/1.1 bodies, without I/O: how many of the next bytes belong to a body, and what they carry."""

import re
from typing import Final, Protocol

from governor.errors import invalid

_MAX_LINE_BYTES: Final = 4096
_MAX_TRAILERS_BYTES: Final = 64 * 1024
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_CRLF: Final = b"\r\n"


class Body(Protocol):
    """A body whose bytes arrive in parts."""

    @property
    def is_complete(self) -> bool:
        """Return whether its last byte was taken."""

    @property
    def size(self) -> int | None:
        """Return its announced size, or None."""

    def take(self, data: bytes, payload: bytearray | None = None) -> int:
        """Return how many bytes of ``data`` belong to the body, and append what they carry to ``payload``.

        Raise INVALID ``http-body`` if they are malformed.
        """


class Sized:
    """A body of a known size."""

    def __init__(self, size: int) -> None:
        self.size: int | None = size
        self._left = size

    @property
    def is_complete(self) -> bool:
        """Return whether its last byte was taken."""
        return not self._left

    def take(self, data: bytes, payload: bytearray | None = None) -> int:
        """Take bytes."""
        taken = min(self._left, len(data))
        self._left -= taken
        if payload is not None:
            payload += data[:taken]
        return taken


class NoBody(Sized):
    """No body."""

    def __init__(self) -> None:
        super().__init__(0)


class UntilClose:
    """A body that ends with its connection."""

    is_complete = False
    size = None

    def take(self, data: bytes, payload: bytearray | None = None) -> int:
        """Take all bytes."""
        if payload is not None:
            payload += data
        return len(data)


class Chunked:
    """A body in chunks."""

    size = None

    def __init__(self) -> None:
        self.is_complete = False
        self._line = bytearray()
        """The incomplete line of a size, of a chunk's end, or of the trailers."""
        self._left = 0
        """Bytes of the current chunk that were not taken."""
        self._ends_chunk = False
        self._trailer_bytes: int | None = None
        """None before the last chunk."""

    def take(self, data: bytes, payload: bytearray | None = None) -> int:
        """Take bytes."""
        position = 0
        while position < len(data) and not self.is_complete:
            if self._left:
                taken = min(self._left, len(data) - position)
                if payload is not None:
                    payload += data[position : position + taken]
                self._left -= taken
                self._ends_chunk = not self._left
                position += taken
            else:
                position = self._take_line(data, position)
        return position

    def _take_line(self, data: bytes, position: int) -> int:
        end = data.find(b"\n", position)
        stop = len(data) if end < 0 else end + 1
        self._line += data[position:stop]
        if len(self._line) > _MAX_LINE_BYTES:
            raise _malformed("a line is too long")
        if end >= 0:
            line = bytes(self._line)
            self._line.clear()
            if not line.endswith(_CRLF) or b"\r" in line[:-2]:
                raise _malformed("a line does not end with CR LF")
            self._end_line(line[:-2])
        return stop

    def _end_line(self, line: bytes) -> None:
        if self._trailer_bytes is not None:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _MAX_TRAILERS_BYTES:
                raise _malformed("the trailers are too long")
            self.is_complete = not line
        elif self._ends_chunk:
            if line:
                raise _malformed("a chunk is longer than its size")
            self._ends_chunk = False
        else:
            self._begin_chunk(line)

    def _begin_chunk(self, line: bytes) -> None:
        matched = _SIZE_LINE.fullmatch(line)
        if matched is None:
            raise _malformed("a chunk has no size")
        self._left = int(matched[1], 16)
        if not self._left:
            self._trailer_bytes = 0


def _malformed(reason: str) -> Exception:
    return invalid("http-body", f"malformed chunked body: {reason}")
