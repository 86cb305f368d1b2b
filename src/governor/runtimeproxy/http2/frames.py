"""HTTP/2 frames as bytes: split from chunks of any size, parsed and built.

What a frame means to a stream or connection, and the content of header blocks, are elsewhere.
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
PRIORITY_FLAG: Final = 0x20

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    range(1, 7)
)

HEADER_SIZE: Final = 9
DEFAULT_MAX_FRAME_SIZE: Final = 2**14
"""Initial value of SETTINGS_MAX_FRAME_SIZE, and the smallest one allowed."""
LARGEST_MAX_FRAME_SIZE: Final = 2**24 - 1
MAX_STREAM_ID: Final = 2**31 - 1

HEADER: Final = struct.Struct(">IBI")
"""A frame header: length and type share the first four bytes; the top bit of the stream id is reserved."""

Payload: TypeAlias = bytes | memoryview
Frame: TypeAlias = tuple[int, int, int, Payload]
"""Type, flags, stream id and payload."""

_MIN_VIEW_BYTES: Final = 1024
"""Payloads of at least this size are views of the read buffer; smaller ones are cheaper to copy."""

PING_BYTES: Final = 8
WINDOW_UPDATE_BYTES: Final = 4
_FIXED_SIZES: Final = {PRIORITY: 5, RST_STREAM: 4, PING: PING_BYTES, WINDOW_UPDATE: WINDOW_UPDATE_BYTES}
_UINT32: Final = struct.Struct(">I")
_TWO_UINT32: Final = struct.Struct(">II")
_SETTING: Final = struct.Struct(">HI")


class FrameReader:
    """Splits received bytes into frames; buffers one incomplete frame of at most ``max_frame_size``."""

    __slots__ = ("_buffered_bytes", "_chunks", "_needed_bytes", "_preface", "error", "max_frame_size")

    def __init__(self, *, preface: bool, max_frame_size: int = DEFAULT_MAX_FRAME_SIZE) -> None:
        self.max_frame_size = max_frame_size
        self.error: Http2ConnectionError | None = None
        """The error after the frames that were read; no more frames follow."""
        self._chunks: list[bytes] = []
        self._buffered_bytes = 0
        self._preface = preface
        self._needed_bytes = len(PREFACE) if preface else HEADER_SIZE

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that ``data`` completes."""
        if self.error is not None:
            return []
        if self._chunks or len(data) < self._needed_bytes:
            self._chunks.append(data)
            self._buffered_bytes += len(data)
            if self._buffered_bytes < self._needed_bytes:
                self._check_preface()
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._buffered_bytes = 0
        return self._split(data, self._skip_preface(data) if self._preface else 0)

    def _split(self, data: bytes, at: int) -> list[Frame]:
        complete: list[Frame] = []
        end = len(data)
        self._needed_bytes = HEADER_SIZE
        while end - at >= HEADER_SIZE and self.error is None:
            length_and_type, flags, stream_id = HEADER.unpack_from(data, at)
            length = length_and_type >> 8
            start = at + HEADER_SIZE
            stop = start + length
            if length > self.max_frame_size:
                self.error = Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes")
            elif stop > end:
                self._needed_bytes = HEADER_SIZE + length
                break
            else:
                payload = data[start:stop] if length < _MIN_VIEW_BYTES else memoryview(data)[start:stop]
                complete.append((length_and_type & 0xFF, flags, stream_id & MAX_STREAM_ID, payload))
                at = stop
        if at < end:
            self._chunks.append(data[at:])
            self._buffered_bytes = end - at
        return complete

    def _check_preface(self) -> None:
        if self._preface and not PREFACE.startswith(b"".join(self._chunks)):
            self.error = Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "invalid connection preface")

    def _skip_preface(self, data: bytes) -> int:
        if not data.startswith(PREFACE):
            self.error = Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "invalid connection preface")
        self._preface = False
        return len(PREFACE)


def check_size(kind: int, payload: Payload) -> None:
    """Raise if a frame of fixed size has another size."""
    size = _FIXED_SIZES.get(kind)
    if size is not None and len(payload) != size:
        message = f"frame of type {kind} has {len(payload)} bytes, expected {size}"
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, message)


def strip_padding(payload: Payload) -> Payload:
    """Return the content of a PADDED frame."""
    if not payload or payload[0] >= len(payload):
        raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "padding exceeds the payload")
    return payload[1 : len(payload) - payload[0]]


def strip_priority(stream_id: int, payload: Payload) -> Payload:
    """Return the block of a HEADERS frame with the PRIORITY flag; RFC 9113 deprecates priorities."""
    if len(payload) < _FIXED_SIZES[PRIORITY]:
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"truncated priority in HEADERS of stream {stream_id}")
    return payload[_FIXED_SIZES[PRIORITY] :]


def uint32_in(payload: Payload) -> int:
    """Return the value of RST_STREAM or WINDOW_UPDATE; the latter's top bit is reserved."""
    return int.from_bytes(payload)


def settings_in(payload: Payload) -> Iterator[tuple[int, int]]:
    """Return identifiers and values of a SETTINGS frame, in order."""
    if len(payload) % _SETTING.size:
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    return _SETTING.iter_unpack(payload)


def goaway_in(payload: Payload) -> tuple[int, int]:
    """Return the last stream id and the error code of a GOAWAY frame."""
    if len(payload) < _TWO_UINT32.size:
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
    last_stream_id, code = _TWO_UINT32.unpack_from(payload)
    return last_stream_id & MAX_STREAM_ID, code


def frame_header(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """Return the first nine bytes of a frame."""
    return HEADER.pack(length << 8 | kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: Payload = b"") -> bytes:
    """Return a whole frame. This copies the payload: use ``frame_header`` for large ones."""
    return frame_header(kind, flags, stream_id, len(payload)) + payload


def headers(stream_id: int, block: bytes, *, end_stream: bool, max_frame_size: int) -> bytes:
    """Return a header block as HEADERS and as many CONTINUATION frames as ``max_frame_size`` requires."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= max_frame_size:
        return HEADER.pack(len(block) << 8 | HEADERS, flags | END_HEADERS, stream_id) + block
    parts = [frame(HEADERS, flags, stream_id, block[:max_frame_size])]
    for at in range(max_frame_size, len(block), max_frame_size):
        last = at + max_frame_size >= len(block)
        parts.append(frame(CONTINUATION, END_HEADERS if last else 0, stream_id, block[at : at + max_frame_size]))
    return b"".join(parts)


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*value) for value in values))


SETTINGS_ACK: Final = frame_header(SETTINGS, ACK, 0, 0)


_PING_ACK_HEADER: Final = frame_header(PING, ACK, 0, _FIXED_SIZES[PING])


def ping_ack(payload: Payload) -> bytes:
    """Return the acknowledgement of a PING."""
    return _PING_ACK_HEADER + payload


def rst_stream(stream_id: int, code: int) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream_id, _UINT32.pack(code))


def window_update(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream id 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, _UINT32.pack(increment))


def goaway(last_stream_id: int, code: int, message: str = "") -> bytes:
    """Return a GOAWAY frame with ``message`` as debug data."""
    return frame(GOAWAY, 0, 0, _TWO_UINT32.pack(last_stream_id, code) + message.encode())
