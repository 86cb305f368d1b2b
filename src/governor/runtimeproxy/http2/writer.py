"""The output of one connection: control frames at once, streams as far as their windows allow, round-robin."""

from collections.abc import Iterator
from typing import Final

from governor.runtimeproxy.http2 import frames
from governor.runtimeproxy.http2.flow_control import FlowControl
from governor.runtimeproxy.http2.frames import Payload
from governor.runtimeproxy.http2.header_blocks import Fields, HeaderEncoder
from governor.runtimeproxy.http2.streams import Stream

DEFERRAL_S: Final = 0.05
"""How long deferred frames wait. gRPC sends no PING before the last is acknowledged, so this is its rate of PINGs."""
_MAX_DEFERRED: Final = 4
"""With more deferred frames than this, all are written with the next others."""


class Writer:
    """Frames to be written to one peer."""

    def __init__(self, flow_control: FlowControl) -> None:
        self.max_frame_size: int = frames.DEFAULT_MAX_FRAME_SIZE
        self.backlog = 0
        """Bytes to be written, not counting DATA."""
        self._flow_control = flow_control
        self._encoder = HeaderEncoder()
        self._blocked: dict[Stream, None] = {}
        self._out: list[Payload] = []
        self._deferred: list[bytes] = []

    @property
    def pending(self) -> bool:
        """Whether there is anything to write now."""
        return bool(self._out)

    @property
    def has_deferred(self) -> bool:
        """Whether there are frames that wait for ``write_deferred``."""
        return bool(self._deferred)

    @property
    def blocked(self) -> bool:
        """Whether streams wait for the connection's window."""
        return bool(self._blocked)

    def data_to_send(self) -> bytes:
        """Return and remove everything to be written now."""
        out, self._out = self._out, []
        self.backlog = 0
        return b"".join(out)

    def write(self, frame: bytes) -> None:
        """Add one or more whole frames other than DATA with content."""
        self._out.append(frame)
        self.backlog += len(frame)

    def defer(self, frame: bytes) -> None:
        """Keep a frame until ``write_deferred``; a few may wait."""
        self._deferred.append(frame)
        if len(self._deferred) > _MAX_DEFERRED:
            self.write_deferred()

    def write_deferred(self) -> None:
        """Write the deferred frames with the next others."""
        if self._deferred:
            self.write(b"".join(self._deferred))
            self._deferred.clear()

    def mark_blocked(self, stream: Stream) -> None:
        """Include a stream in the next ``flush_blocked``."""
        self._blocked[stream] = None

    def discard(self, stream: Stream) -> None:
        """Write no more of a stream."""
        self._blocked.pop(stream, None)

    def flush(self, stream: Stream) -> int:
        """Write what is queued as far as windows allow; return the bytes of DATA."""
        if stream.queued_headers:
            self._flush_headers(stream)
        written = 0
        while stream.queued_data:
            size = self._write_data(stream)
            if not size:
                return written
            written += size
        if stream.end_queued and not stream.end_sent:
            self._flush_end(stream)
        return written

    def flush_blocked(self) -> Iterator[tuple[Stream, int]]:
        """Write blocked streams round-robin, one frame each; yield each stream and its bytes of DATA."""
        blocked = self._blocked
        while blocked and self._flow_control.send_window > 0:
            stream = next(iter(blocked))
            del blocked[stream]
            size = self._write_data(stream) if stream.queued_data else 0
            if not stream.queued_data:
                if stream.end_queued and not stream.end_sent:
                    self._flush_end(stream)
            elif size:
                blocked[stream] = None
            yield stream, size

    def _flush_headers(self, stream: Stream) -> None:
        queued, stream.queued_headers = stream.queued_headers, []
        end = stream.end_on_headers and stream.end_queued and not stream.queued_data and stream.queued_trailers is None
        last = queued.pop()
        for fields in queued:
            self._write_headers(stream, fields, end_stream=False)
        self._write_headers(stream, last, end_stream=end)

    def _flush_end(self, stream: Stream) -> None:
        if stream.queued_trailers is not None:
            self._write_headers(stream, stream.queued_trailers, end_stream=True)
            stream.queued_trailers = None
        else:
            self.write(frames.frame_header(frames.DATA, frames.END_STREAM, stream.id, 0))
            stream.end_sent = True

    def _write_headers(self, stream: Stream, fields: Fields, *, end_stream: bool) -> None:
        block = self._encoder.encode(fields)
        written = frames.headers(stream.id, block, end_stream=end_stream, max_frame_size=self.max_frame_size)
        self._out.append(written)
        self.backlog += len(written)
        stream.end_sent = end_stream

    def _write_data(self, stream: Stream) -> int:
        """Write one DATA frame if the windows allow any; return its size."""
        windows = stream.windows
        flow_control = self._flow_control
        allowed = 0
        if windows is not None:
            allowed = min(flow_control.send_window, windows.send_window, self.max_frame_size)
        if allowed <= 0 or windows is None:
            if flow_control.send_window <= 0:
                self._blocked[stream] = None
            return 0
        chunk = stream.queued_data.popleft()
        if len(chunk) > allowed:
            view = memoryview(chunk)
            stream.queued_data.appendleft(view[allowed:])
            chunk = view[:allowed]
        size = len(chunk)
        stream.buffered_bytes -= size
        flow_control.send_window -= size
        windows.send_window -= size
        stream.end_sent = stream.end_queued and not stream.queued_data and stream.queued_trailers is None
        flags = frames.END_STREAM if stream.end_sent else 0
        self._out += frames.HEADER.pack(size << 8 | frames.DATA, flags, stream.id), chunk
        return size
