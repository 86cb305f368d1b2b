"""The frames of RFC 9113 as bytes: read from chunks of any size, written with their fields.

What a frame means for a stream or a connection is not here, nor what is in a header block.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from governor.runtimeproxy.http2.errors import ErrorCode, Http2ConnectionError

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    range(1, 7)
)

HEADER_SIZE: Final = 9
SMALLEST_MAX_FRAME_SIZE: Final = 2**14
LARGEST_MAX_FRAME_SIZE: Final = 2**24 - 1
LARGEST_STREAM: Final = 2**31 - 1

HEADER: Final = struct.Struct(">IBI")
"""A frame's head: its length and type share the first four bytes, the stream's highest bit means nothing."""

Payload: TypeAlias = bytes | memoryview
Frame: TypeAlias = tuple[int, int, int, Payload]
"""Type, flags, stream and payload."""

_VIEWED_FROM: Final = 1024
"""Payloads from this size on are views of what was read; smaller ones are cheaper copied."""

_SIZES: Final = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
_WORD: Final = struct.Struct(">I")
_TWO_WORDS: Final = struct.Struct(">II")
_SETTING: Final = struct.Struct(">HI")


class FrameReader:
    """Cuts what arrives into frames; of an unfinished one it keeps at most ``max_frame_size`` and what came with it."""

    __slots__ = ("_begun", "_have", "_need", "_preface", "fault", "max_frame_size")

    def __init__(self, *, preface: bool, max_frame_size: int = SMALLEST_MAX_FRAME_SIZE) -> None:
        self.max_frame_size = max_frame_size
        self.fault: Http2ConnectionError | None = None
        """What is wrong after the frames that were read; there will be no more."""
        self._begun: list[bytes] = []
        self._have = 0
        self._preface = preface
        self._need = len(PREFACE) if preface else HEADER_SIZE

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes."""
        if self.fault is not None:
            return []
        if self._begun or len(data) < self._need:
            self._begun.append(data)
            self._have += len(data)
            if self._have < self._need:
                self._check_preface()
                return []
            data = b"".join(self._begun)
            self._begun.clear()
            self._have = 0
        return self._cut(data, self._skip_preface(data) if self._preface else 0)

    def _cut(self, data: bytes, at: int) -> list[Frame]:
        found: list[Frame] = []
        end = len(data)
        self._need = HEADER_SIZE
        while end - at >= HEADER_SIZE and self.fault is None:
            first, flags, stream = HEADER.unpack_from(data, at)
            length = first >> 8
            start = at + HEADER_SIZE
            stop = start + length
            if length > self.max_frame_size:
                self.fault = Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            elif stop > end:
                self._need = HEADER_SIZE + length
                break
            else:
                payload = data[start:stop] if length < _VIEWED_FROM else memoryview(data)[start:stop]
                found.append((first & 0xFF, flags, stream & LARGEST_STREAM, payload))
                at = stop
        if at < end:
            self._begun.append(data[at:])
            self._have = end - at
        return found

    def _check_preface(self) -> None:
        if self._preface and not PREFACE.startswith(b"".join(self._begun)):
            self.fault = Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the connection does not begin as HTTP/2")

    def _skip_preface(self, data: bytes) -> int:
        if not data.startswith(PREFACE):
            self.fault = Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the connection does not begin as HTTP/2")
        self._preface = False
        return len(PREFACE)


def check_size(kind: int, payload: Payload) -> None:
    """Frames of a fixed size have that size."""
    size = _SIZES.get(kind)
    if size is not None and len(payload) != size:
        raise Http2ConnectionError(
            ErrorCode.FRAME_SIZE_ERROR, f"a frame of type {kind} with {len(payload)} bytes, not {size}"
        )


def unpadded(payload: Payload) -> Payload:
    """What is in a PADDED frame."""
    if not payload or payload[0] >= len(payload):
        raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return payload[1 : len(payload) - payload[0]]


def without_priority(stream: int, payload: Payload) -> Payload:
    """The block of a HEADERS frame that begins with a priority, which RFC 9113 lets everybody ignore."""
    if len(payload) < _SIZES[PRIORITY]:
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"HEADERS of stream {stream} end within their priority")
    return payload[_SIZES[PRIORITY] :]


def word(payload: Payload) -> int:
    """The single number in RST_STREAM and WINDOW_UPDATE; the latter's highest bit means nothing."""
    return int(_WORD.unpack(payload)[0])


def settings_in(payload: Payload) -> Iterator[tuple[int, int]]:
    """Identifiers and values of a SETTINGS frame, in order."""
    if len(payload) % _SETTING.size:
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    return _SETTING.iter_unpack(payload)


def goaway_in(payload: Payload) -> tuple[int, int]:
    """The last stream and the code in a GOAWAY frame."""
    if len(payload) < _TWO_WORDS.size:
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
    last, code = _TWO_WORDS.unpack_from(payload)
    return last & LARGEST_STREAM, code


def head(kind: int, flags: int, stream: int, length: int) -> bytes:
    """The first nine bytes of a frame."""
    return HEADER.pack(length << 8 | kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: Payload = b"") -> bytes:
    """A whole frame; its payload is copied, so use ``head`` for large ones."""
    return head(kind, flags, stream, len(payload)) + payload


def headers(stream: int, block: bytes, *, ended: bool, max_frame_size: int) -> bytes:
    """A header block as HEADERS and as many CONTINUATION frames as the receiver's largest frame asks for."""
    flags = END_STREAM if ended else 0
    if len(block) <= max_frame_size:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    parts = [frame(HEADERS, flags, stream, block[:max_frame_size])]
    for at in range(max_frame_size, len(block), max_frame_size):
        last = at + max_frame_size >= len(block)
        parts.append(frame(CONTINUATION, END_HEADERS if last else 0, stream, block[at : at + max_frame_size]))
    return b"".join(parts)


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*value) for value in values))


SETTINGS_ACK: Final = head(SETTINGS, ACK, 0, 0)


def ping_ack(payload: Payload) -> bytes:
    """The answer to a PING."""
    return frame(PING, ACK, 0, payload)


def rst_stream(stream: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, _WORD.pack(code))


def window_update(stream: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame, of the connection if ``stream`` is 0."""
    return frame(WINDOW_UPDATE, 0, stream, _WORD.pack(increment))


def goaway(last: int, code: int, message: str = "") -> bytes:
    """A GOAWAY frame."""
    return frame(GOAWAY, 0, 0, _TWO_WORDS.pack(last, code) + message.encode())
