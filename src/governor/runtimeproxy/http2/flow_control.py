"""Flow control of one connection: the send and receive windows of the connection and of its streams.

Nothing is sent beyond the peer's windows. A stream's sender gets credit for bytes that were forwarded, so that it
waits when the receiver at the far end does. The connection's sender gets credit as soon as bytes arrive, because one
stream with a slow receiver would otherwise stop all others; the stream windows bound what is buffered meanwhile.
Credit is granted in batches of half a window. Frames are read and written elsewhere.
"""

from typing import Final

from governor.runtimeproxy.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError

MAX_WINDOW: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65_535
"""Initial size of every window. SETTINGS can make stream windows smaller, but not the connection's."""


class StreamWindows:
    """The windows of one stream; SETTINGS can make them negative."""

    __slots__ = ("credit_due", "receive_window", "send_window", "unread_bytes")

    def __init__(self, send_window: int, receive_window: int) -> None:
        self.send_window = send_window
        self.receive_window = receive_window
        self.unread_bytes = 0
        self.credit_due = 0


class FlowControl:
    """The windows of one connection and its streams."""

    __slots__ = (
        "_connection_size",
        "_initial_send_window",
        "_requested_size",
        "_stream_size",
        "credit_due",
        "receive_window",
        "send_window",
        "streams",
    )

    def __init__(self, *, connection_window: int, stream_window: int) -> None:
        self.streams: dict[int, StreamWindows] = {}
        self.send_window = DEFAULT_WINDOW
        self.receive_window = DEFAULT_WINDOW
        self._connection_size = max(connection_window, DEFAULT_WINDOW)
        self.credit_due = self._connection_size - DEFAULT_WINDOW
        self._initial_send_window = DEFAULT_WINDOW
        self._stream_size = DEFAULT_WINDOW
        self._requested_size = stream_window

    @property
    def unread_bytes(self) -> int:
        """Bytes received on open streams and neither forwarded nor consumed yet."""
        return sum(windows.unread_bytes for windows in self.streams.values())

    @property
    def receivable(self) -> int:
        """What the peer may send on the connection, including credit that is due but not granted yet."""
        return self.receive_window + self.credit_due

    @property
    def is_full(self) -> bool:
        """Whether every receive window has its initial size, including credit that is due."""
        return self.receivable == self._connection_size and all(
            windows.receive_window + windows.credit_due == self._stream_size for windows in self.streams.values()
        )

    def open_stream(self, stream_id: int) -> StreamWindows:
        """Return the windows of a new stream."""
        windows = self.streams[stream_id] = StreamWindows(self._initial_send_window, self._stream_size)
        return windows

    def close_stream(self, stream_id: int) -> None:
        """Remove the windows of a closed stream."""
        self.streams.pop(stream_id, None)

    def window_update(self, increment: int) -> None:
        """Apply the peer's WINDOW_UPDATE of the connection."""
        if not increment:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of the connection with increment 0")
        if self.send_window + increment > MAX_WINDOW:
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window exceeds 2^31-1")
        self.send_window += increment

    def stream_window_update(self, stream_id: int, increment: int) -> None:
        """Apply the peer's WINDOW_UPDATE of a stream; ignored if the stream is closed."""
        if not increment:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of a stream with increment 0")
        windows = self.streams.get(stream_id)
        if windows is None:
            return
        if windows.send_window + increment > MAX_WINDOW:
            raise Http2StreamError(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window exceeds 2^31-1")
        windows.send_window += increment

    def set_initial_send_window(self, size: int) -> None:
        """Apply the peer's SETTINGS_INITIAL_WINDOW_SIZE, which also moves the windows of open streams."""
        if size > MAX_WINDOW:
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE exceeds 2^31-1")
        change = size - self._initial_send_window
        self._initial_send_window = size
        for windows in self.streams.values():
            windows.send_window += change
            if windows.send_window > MAX_WINDOW:
                raise Http2ConnectionError(
                    ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE: a stream's window exceeds 2^31-1"
                )

    def settings_acknowledged(self) -> None:
        """Apply our SETTINGS_INITIAL_WINDOW_SIZE, which the peer observes from here on."""
        change = self._requested_size - self._stream_size
        self._stream_size = self._requested_size
        for windows in self.streams.values():
            windows.receive_window += change

    def data_received(self, size: int) -> int:
        """Shrink the connection's receive window by DATA of any stream, including padding; return the credit to grant.

        It is granted in batches of at least half a window.
        """
        if size > self.receive_window:
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "DATA exceeds the connection's window")
        self.receive_window -= size
        due = self.credit_due = self.credit_due + size
        if due * 2 < self._connection_size:
            return 0
        self.credit_due = 0
        self.receive_window += due
        return due

    def stream_data_received(self, windows: StreamWindows, size: int) -> None:
        """Shrink an open stream's receive window by DATA including padding; an empty frame needs no window."""
        if size > max(windows.receive_window, 0):
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "DATA exceeds the stream's window")
        windows.receive_window -= size
        windows.unread_bytes += size

    def data_consumed(self, windows: StreamWindows, size: int) -> None:
        """Make credit due for bytes that were forwarded or consumed."""
        windows.unread_bytes -= size
        windows.credit_due += size

    def take_initial_credit(self) -> int:
        """Return the credit to grant on the connection right after the first SETTINGS, which cannot raise it."""
        due, self.credit_due = self.credit_due, 0
        self.receive_window += due
        return due

    def take_stream_credit(self, windows: StreamWindows) -> int:
        """Return the credit to grant on a stream now, or 0 if less than half a window is due."""
        due = windows.credit_due
        if due * 2 < self._stream_size:
            return 0
        windows.credit_due = 0
        windows.receive_window += due
        return due
