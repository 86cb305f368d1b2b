"""The flow-control accounts of one connection: what may still be sent and received, on it and on each of its streams.

Nothing is sent beyond what the peer granted. A stream's sender gets credit for what was passed on, so that it waits
when the reader at the far end does. The connection's sender gets credit as soon as bytes arrive, because one stream
whose reader is slow would otherwise stop all others; what is kept meanwhile is limited by the streams' windows. Credit
is given in batches of half a window. Frames are not read or written here.
"""

from typing import Final

from governor.runtimeproxy.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError

LARGEST_WINDOW: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65_535
"""Where every window begins, and the connection's smallest size: only streams' windows can be made smaller."""


class Flow:
    """The windows of one stream; they turn negative when SETTINGS make them smaller than what is under way."""

    __slots__ = ("due", "receive", "send", "unread")

    def __init__(self, send: int, receive: int) -> None:
        self.send = send
        self.receive = receive
        self.unread = 0
        self.due = 0


class FlowControl:
    """All accounts of one connection."""

    __slots__ = ("_connection_size", "_size", "_start", "_wanted_size", "due", "flows", "receive", "send")

    def __init__(self, *, connection_window: int, stream_window: int) -> None:
        self.flows: dict[int, Flow] = {}
        self.send = DEFAULT_WINDOW
        self.receive = DEFAULT_WINDOW
        self._connection_size = max(connection_window, DEFAULT_WINDOW)
        self.due = self._connection_size - DEFAULT_WINDOW
        self._start = DEFAULT_WINDOW
        self._size = DEFAULT_WINDOW
        self._wanted_size = stream_window

    @property
    def outstanding(self) -> int:
        """Bytes that arrived for open streams and were neither passed on nor taken."""
        return sum(flow.unread for flow in self.flows.values())

    @property
    def receivable(self) -> int:
        """What the peer may send on the connection, counting credit that is due but not yet given."""
        return self.receive + self.due

    @property
    def whole(self) -> bool:
        """Whether the peer may send what it could at the start."""
        is_whole = self.receivable == self._connection_size
        return is_whole and all(flow.receive + flow.due == self._size for flow in self.flows.values())

    def open(self, stream: int) -> Flow:
        """Accounts for a new stream."""
        flow = self.flows[stream] = Flow(self._start, self._size)
        return flow

    def close(self, stream: int) -> None:
        """The stream is over, and its windows with it."""
        self.flows.pop(stream, None)

    def allowance(self, flow: Flow) -> int:
        """How many bytes of DATA may be sent now; not more than nothing if less."""
        return min(self.send, flow.send)

    def spend(self, flow: Flow, size: int) -> None:
        """DATA was sent."""
        self.send -= size
        flow.send -= size

    def grant(self, increment: int) -> None:
        """The peer lets more be sent on the connection."""
        if not increment:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of the connection by nothing")
        if self.send + increment > LARGEST_WINDOW:
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window was opened beyond 2^31-1")
        self.send += increment

    def grant_stream(self, stream: int, increment: int) -> None:
        """The peer lets more be sent on a stream; for one that is over it means nothing any more."""
        if not increment:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of a stream by nothing")
        flow = self.flows.get(stream)
        if flow is None:
            return
        if flow.send + increment > LARGEST_WINDOW:
            raise Http2StreamError(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window was opened beyond 2^31-1")
        flow.send += increment

    def restart(self, start: int) -> None:
        """The peer's SETTINGS_INITIAL_WINDOW_SIZE: it moves the windows of open streams too."""
        if start > LARGEST_WINDOW:
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE beyond 2^31-1")
        change = start - self._start
        self._start = start
        for flow in self.flows.values():
            flow.send += change
            if flow.send > LARGEST_WINDOW:
                raise Http2ConnectionError(
                    ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS open a stream's window beyond 2^31-1"
                )

    def agree(self) -> None:
        """The peer acknowledged our SETTINGS: from here on its streams have the size we asked for."""
        change = self._wanted_size - self._size
        self._size = self._wanted_size
        for flow in self.flows.values():
            flow.receive += change

    def receive_bytes(self, size: int) -> None:
        """DATA arrived on the connection, padding included, for whatever stream."""
        if size > self.receive:
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window allows")
        self.receive -= size
        self.due += size

    def receive_on(self, flow: Flow, size: int) -> None:
        """DATA arrived on an open stream, padding included; an empty frame, as at the end, needs no window."""
        if size > max(flow.receive, 0):
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the stream's window allows")
        flow.receive -= size
        flow.unread += size

    def pass_on(self, flow: Flow, size: int) -> None:
        """So much of what arrived was passed on, or taken over by us."""
        flow.unread -= size
        flow.due += size

    def take_credit(self) -> int:
        """What to grant the peer on the connection now, or 0 if too little is due."""
        due = self.due
        if due * 2 < self._connection_size:
            return 0
        self.due = 0
        self.receive += due
        return due

    def take_opening(self) -> int:
        """What to grant on the connection right after the first SETTINGS, as its window always begins small."""
        due, self.due = self.due, 0
        self.receive += due
        return due

    def take_stream_credit(self, flow: Flow) -> int:
        """What to grant the peer on a stream now, or 0 if too little is due."""
        due = flow.due
        if due * 2 < self._size:
            return 0
        flow.due = 0
        flow.receive += due
        return due
