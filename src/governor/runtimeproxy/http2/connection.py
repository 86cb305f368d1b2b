"""One HTTP/2 connection: parses the peer's frames, handles connection-level ones, and writes streams.

SETTINGS, PING and the connection's windows are handled here. Stream frames become events; the caller decides what is
written. ``relay`` pairs the streams of connections.
"""

from collections.abc import Callable
from typing import ClassVar, Final

import msgspec

from governor.runtimeproxy.http2 import frames
from governor.runtimeproxy.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError
from governor.runtimeproxy.http2.events import (
    ConnectionEvent,
    DataReceived,
    GoawayReceived,
    HeadersReceived,
    StreamReset,
    WindowUpdated,
)
from governor.runtimeproxy.http2.flow_control import FlowControl
from governor.runtimeproxy.http2.frames import Frame, FrameReader, Payload
from governor.runtimeproxy.http2.header_blocks import HeaderDecoder
from governor.runtimeproxy.http2.streams import Stream
from governor.runtimeproxy.http2.writer import Writer

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_MAX_CONTINUATIONS: Final = 64
_MAX_RESET_IDS: Final = 1000


class Limits(msgspec.Struct, frozen=True):
    """Limits of one relayed connection; beyond them a stream is refused or the offending connection is closed."""

    stream_window: int = 256 * _KIB
    """Initial receive window of a stream."""
    connection_window: int = _MIB
    max_streams: int = 1000
    """Concurrent streams per client."""
    max_header_list: int = 256 * _KIB
    """Bytes of a header list, encoded or decoded."""
    max_held_body: int = 6 * _MIB + 64 * _KIB
    """Bytes of one held request. Linux starts no process with an environment above 6 MiB, and all else is small."""
    max_held_response: int = 64 * _KIB
    """Bytes of one held response, which has an id at most; a longer one is forwarded unread, never refused."""
    max_held_total: int = 128 * _MIB
    """Memory for all held requests on all connections."""
    max_backlog: int = 4 * _MIB
    """Unwritten bytes, not counting DATA, which windows limit, for a peer that does not read."""
    max_resets: int = 10_000
    """Streams that a client resets, less those that completed."""
    max_interim_responses: int = 16
    """1xx responses per stream."""


class _PartialBlock:
    """A header block whose CONTINUATION frames are not all received."""

    __slots__ = ("continuations", "end_stream", "parts", "size", "stream_id")

    def __init__(self, stream_id: int, first: Payload, *, end_stream: bool) -> None:
        self.stream_id = stream_id
        self.end_stream = end_stream
        self.parts = [bytes(first)]
        self.size = len(first)
        self.continuations = 0


class Connection:
    """The connection with one peer. With ``server_side`` the peer opens streams, otherwise we do."""

    def __init__(self, limits: Limits, *, server_side: bool) -> None:
        self.flow_control = FlowControl(connection_window=limits.connection_window, stream_window=limits.stream_window)
        self.writer = Writer(self.flow_control)
        self.streams: dict[int, Stream] = {}
        self.last_stream_id = 0 if server_side else -1
        """The newest stream that the client of this connection opened."""
        self.closed = False
        """Nothing more is read; GOAWAY is the last frame written."""
        self.error = ""
        """The connection error that closed the connection, if one did."""
        self.settings_received = False
        self._limits = limits
        self._server_side = server_side
        self._max_concurrent_streams = frames.MAX_STREAM_ID
        self._reader = FrameReader(preface=server_side)
        self._decoder = HeaderDecoder(limits.max_header_list)
        self._partial_block: _PartialBlock | None = None
        self._reset_ids: dict[int, None] = {}
        """Streams that we reset and whose frames may still be in flight, oldest first."""
        self._send_preface()

    def _send_preface(self) -> None:
        settings = [
            (frames.INITIAL_WINDOW_SIZE, self._limits.stream_window),
            (frames.MAX_HEADER_LIST_SIZE, self._limits.max_header_list),
        ]
        if self._server_side:
            settings.append((frames.MAX_CONCURRENT_STREAMS, self._limits.max_streams))
        else:
            self.writer.write(frames.PREFACE)
            settings.append((frames.ENABLE_PUSH, 0))
        self.writer.write(frames.settings(settings))
        credit = self.flow_control.take_initial_credit()
        if credit:
            self.writer.write(frames.window_update(0, credit))

    @property
    def can_open_stream(self) -> bool:
        """Whether we may open another stream: the peer's SETTINGS are known and allow it."""
        return self.settings_received and len(self.streams) < self._max_concurrent_streams and not self.closed

    def feed(self, data: bytes) -> list[Frame]:
        """Return the complete frames in the received bytes; call ``check_frame_error`` after processing them."""
        return [] if self.closed else self._reader.feed(data)

    def check_frame_error(self) -> None:
        """Fail the connection if no frame can follow."""
        if self._reader.error is not None:
            self.fail(self._reader.error)

    def process(self, frame: Frame) -> ConnectionEvent | None:
        """Process a frame and return its stream event, if any. Raise its connection or stream error."""
        kind, flags, stream_id, payload = frame
        if self._partial_block is not None and (
            kind != frames.CONTINUATION or stream_id != self._partial_block.stream_id
        ):
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "frame within a header block")
        if not self.settings_received:
            self._check_first_frame(kind, flags)
        handle = self._HANDLERS.get(kind)
        return None if handle is None else handle(self, flags, stream_id, payload)

    def _check_first_frame(self, kind: int, flags: int) -> None:
        if kind != frames.SETTINGS or flags & frames.ACK:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        self.settings_received = True

    def _find_stream(self, stream_id: int) -> Stream | None:
        """Return an open stream, or None for a closed one; raise for an idle one."""
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_idle(stream_id)
        return stream

    def _check_idle(self, stream_id: int) -> None:
        """Raise if a stream that is not open has never been."""
        if stream_id > self.last_stream_id or not stream_id & 1:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} was never opened")

    def _check_closed_stream(self, code: ErrorCode, kind: str, stream_id: int) -> None:
        """Raise if a client sends on a stream that it closed. Late frames of an upstream are ignored."""
        if self._server_side and stream_id not in self._reset_ids:
            raise Http2ConnectionError(code, f"{kind} on closed stream {stream_id}")

    def _data(self, flags: int, stream_id: int, payload: Payload) -> ConnectionEvent | None:
        size = len(payload)
        credit = self.flow_control.data_received(size)
        if credit:
            self.writer.write(frames.window_update(0, credit))
        if flags & frames.PADDED:
            payload = frames.strip_padding(payload)
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_idle(stream_id)
            self._check_closed_stream(ErrorCode.STREAM_CLOSED, "DATA", stream_id)
            return None
        if stream.windows is None:
            return None
        if stream.end_received:
            raise Http2StreamError(ErrorCode.STREAM_CLOSED, "DATA after END_STREAM")
        self.flow_control.stream_data_received(stream.windows, size)
        if size > len(payload):
            self.credit(stream, size - len(payload))
        return DataReceived(stream, payload, bool(flags & frames.END_STREAM))

    def _headers(self, flags: int, stream_id: int, payload: Payload) -> ConnectionEvent | None:
        if not stream_id & 1:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        if flags & frames.PADDED:
            payload = frames.strip_padding(payload)
        if flags & frames.PRIORITY_FLAG:
            payload = frames.strip_priority(stream_id, payload)
        end_stream = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            return self._headers_complete(stream_id, bytes(payload), end_stream=end_stream)
        self._partial_block = _PartialBlock(stream_id, payload, end_stream=end_stream)
        return None

    def _continuation(self, flags: int, stream_id: int, payload: Payload) -> ConnectionEvent | None:
        block = self._partial_block
        if block is None:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        block.parts.append(bytes(payload))
        block.size += len(payload)
        block.continuations += 1
        if block.size > self._limits.max_header_list or block.continuations > _MAX_CONTINUATIONS:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "header block too long")
        if not flags & frames.END_HEADERS:
            return None
        self._partial_block = None
        return self._headers_complete(stream_id, b"".join(block.parts), end_stream=block.end_stream)

    def _headers_complete(self, stream_id: int, block: bytes, *, end_stream: bool) -> ConnectionEvent | None:
        # Decode even the blocks that are ignored: they update the dynamic table.
        fields = self._decoder.decode(block)
        stream = self.streams.get(stream_id)
        if stream is not None:
            if stream.end_received:
                raise Http2StreamError(ErrorCode.STREAM_CLOSED, "HEADERS after END_STREAM")
            return HeadersReceived(stream_id, stream, fields, end_stream)
        if stream_id <= self.last_stream_id:
            self._check_closed_stream(ErrorCode.PROTOCOL_ERROR, "HEADERS", stream_id)
            return None
        if not self._server_side:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"HEADERS on idle stream {stream_id}")
        self.last_stream_id = stream_id
        return HeadersReceived(stream_id, None, fields, end_stream)

    def _priority(self, _flags: int, stream_id: int, payload: Payload) -> None:
        frames.check_size(frames.PRIORITY, payload)
        if not stream_id:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")

    def _rst_stream(self, _flags: int, stream_id: int, payload: Payload) -> ConnectionEvent | None:
        frames.check_size(frames.RST_STREAM, payload)
        stream = self._find_stream(stream_id)
        return None if stream is None else StreamReset(stream, frames.uint32_in(payload))

    def _settings(self, flags: int, stream_id: int, payload: Payload) -> ConnectionEvent | None:
        if stream_id:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS on stream {stream_id}")
        if flags & frames.ACK:
            if payload:
                raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS ACK with a payload")
            self.flow_control.settings_acknowledged()
            return None
        for setting, value in frames.settings_in(payload):
            self._apply_setting(setting, value)
        self.writer.write(frames.SETTINGS_ACK)
        self._check_backlog()
        return WindowUpdated(None)

    def _apply_setting(self, setting: int, value: int) -> None:
        if setting == frames.INITIAL_WINDOW_SIZE:
            self.flow_control.set_initial_send_window(value)
            for stream in self.streams.values():
                if stream.queued_data and not stream.held:
                    self.writer.mark_blocked(stream)
        elif setting == frames.MAX_FRAME_SIZE:
            if not frames.DEFAULT_MAX_FRAME_SIZE <= value <= frames.LARGEST_MAX_FRAME_SIZE:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE of {value}")
            self.writer.max_frame_size = value
        elif setting == frames.MAX_CONCURRENT_STREAMS:
            self._max_concurrent_streams = value
        elif setting == frames.ENABLE_PUSH and value > (1 if self._server_side else 0):
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH of {value}")

    def _push_promise(self, _flags: int, _stream_id: int, _payload: Payload) -> None:
        raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE although push is disabled")

    def _ping(self, flags: int, stream_id: int, payload: Payload) -> None:
        if stream_id or len(payload) != frames.PING_BYTES:
            frames.check_size(frames.PING, payload)
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"PING on stream {stream_id}")
        if not flags & frames.ACK:
            # gRPC sends a PING, and a WINDOW_UPDATE before it, with every message unless one is unacknowledged.
            self.writer.defer(frames.ping_ack(payload))
            self._check_backlog()

    def _goaway(self, _flags: int, stream_id: int, payload: Payload) -> ConnectionEvent:
        if stream_id:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"GOAWAY on stream {stream_id}")
        return GoawayReceived(*frames.goaway_in(payload))

    def _window_update(self, _flags: int, stream_id: int, payload: Payload) -> ConnectionEvent | None:
        if len(payload) != frames.WINDOW_UPDATE_BYTES:
            frames.check_size(frames.WINDOW_UPDATE, payload)
        increment = int.from_bytes(payload) & frames.MAX_STREAM_ID
        if not stream_id:
            self.flow_control.window_update(increment)
            return WindowUpdated(None) if self.writer.blocked else None
        stream = self._find_stream(stream_id)
        if stream is None:
            return None
        self.flow_control.stream_window_update(stream_id, increment)
        return WindowUpdated(stream) if stream.queued_data and not stream.held else None

    def open_stream(self, stream: Stream, stream_id: int) -> None:
        """Open a stream, the peer's or ours."""
        self.last_stream_id = stream_id
        stream.id = stream_id
        stream.windows = self.flow_control.open_stream(stream_id)
        self.streams[stream_id] = stream

    def close_stream(self, stream: Stream) -> None:
        """Close a stream without telling the peer."""
        stream.closed = True
        stream.clear()
        self.writer.discard(stream)
        self.streams.pop(stream.id, None)
        self.flow_control.close_stream(stream.id)

    def reset_stream(self, stream_id: int, code: int) -> None:
        """Send RST_STREAM; frames that the peer sent before it arrives are ignored."""
        self.writer.write(frames.rst_stream(stream_id, code))
        self._reset_ids[stream_id] = None
        if len(self._reset_ids) > _MAX_RESET_IDS:
            del self._reset_ids[next(iter(self._reset_ids))]

    def credit(self, stream: Stream, size: int) -> None:
        """Credit the peer for bytes of a stream that are no longer buffered."""
        windows = stream.windows
        if windows is None or stream.closed:
            return
        self.flow_control.data_consumed(windows, size)
        if not stream.end_received and (credit := self.flow_control.take_stream_credit(windows)):
            self.writer.write(frames.window_update(stream.id, credit))

    def goaway(self, code: int = ErrorCode.NO_ERROR, message: str = "") -> None:
        """Send GOAWAY: no further streams of the peer are processed."""
        self.writer.write(frames.goaway(self.last_stream_id if self._server_side else 0, code, message))

    def fail(self, error: Http2ConnectionError) -> None:
        """Send GOAWAY with the error and read no more."""
        if not self.closed:
            self.goaway(error.code, error.message)
            self.error = error.message
            self.closed = True

    def _check_backlog(self) -> None:
        """Raise if the peer requests replies and does not read them."""
        if self.writer.backlog > self._limits.max_backlog:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "too many unread replies")

    _HANDLERS: ClassVar[dict[int, Callable[["Connection", int, int, Payload], ConnectionEvent | None]]] = {
        frames.DATA: _data,
        frames.HEADERS: _headers,
        frames.PRIORITY: _priority,
        frames.RST_STREAM: _rst_stream,
        frames.SETTINGS: _settings,
        frames.PUSH_PROMISE: _push_promise,
        frames.PING: _ping,
        frames.GOAWAY: _goaway,
        frames.WINDOW_UPDATE: _window_update,
        frames.CONTINUATION: _continuation,
    }
