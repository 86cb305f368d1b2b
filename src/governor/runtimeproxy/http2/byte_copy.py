"""Copies bytes between a client and its runtime, parsing frame headers only.

Used while nothing is hooked: bytes are identical in both directions and no header block is decoded. ``drain`` ends
that: it inserts a GOAWAY between two frames, refuses newer streams so that they are safe to retry, and lets older ones
end. The methods that move bytes are those of a relay, but nothing is bounded here: the caller must not read from a peer
while the other one does not read.
"""

from collections.abc import Iterator

from governor.runtimeproxy.http2 import frames
from governor.runtimeproxy.http2.errors import ErrorCode
from governor.runtimeproxy.http2.exchanges import UNAVAILABLE, trailers, trailers_only
from governor.runtimeproxy.http2.frames import END_HEADERS, END_STREAM, HEADER, HEADER_SIZE, MAX_STREAM_ID, FrameReader
from governor.runtimeproxy.http2.header_blocks import encode_literal
from governor.runtimeproxy.http2.streams import Peer
from governor.runtimeproxy.http2.watches import WATCH_ENDED, WatchFinder


class ByteCopy:
    """One client connection and its runtime connection."""

    def __init__(self) -> None:
        self._to_client: list[frames.Payload] = []
        self._to_runtime: list[frames.Payload] = []
        self._requests = _FrameTracker(len(frames.PREFACE))
        self._responses = _FrameTracker(0)
        self._open: set[int] = set()
        self._last_stream_id = 0
        self._preface_received = False
        self._draining = False
        self._late_streams: _LateStreams | None = None
        self._response_reader: FrameReader | None = None
        """Set once GOAWAY is sent; responses then pass frame by frame."""
        self._closed = False
        self._finder = WatchFinder()
        self._watches: dict[int, bool] = {}
        """Open watches, and whether the client has got the header section of the response."""
        self._ends_watches = False

    @property
    def streams(self) -> int:
        """Number of open streams; one with a complete response is not open."""
        return len(self._open)

    def receive(self, peer: Peer, data: bytes) -> None:
        """Process bytes received from a peer."""
        if peer is not Peer.CLIENT:
            self._receive_responses(data)
        elif self._late_streams is None:
            self._receive_requests(data)
        else:
            self._refuse_late_streams(self._late_streams, data)

    def data_to_send(self, peer: Peer) -> bytes:
        """Return and remove the bytes for a peer. Call only while it reads."""
        out = self._to_client if peer is Peer.CLIENT else self._to_runtime
        if len(out) == 1:
            return bytes(out.pop())
        data = b"".join(out)
        out.clear()
        return data

    def busy_peers(self) -> list[Peer]:
        """Return the peers for which there may be bytes, or whose connection may have to be closed."""
        return [Peer.CLIENT, Peer.RUNTIME]

    def should_close(self, peer: Peer) -> bool:
        """Whether the caller should close the connection with a peer.

        A client's preface is awaited: a client that has not sent it would report a failure to connect.
        """
        out = self._to_client if peer is Peer.CLIENT else self._to_runtime
        goaway_sent = self._response_reader is not None and self._preface_received
        return not out and (self._closed or (goaway_sent and not self._open and not self._responses.in_block))

    def connection_lost(self, peer: Peer) -> None:
        """Close after the other peer got what was sent to it."""
        (self._to_client if peer is Peer.CLIENT else self._to_runtime).clear()
        self._closed = True

    def drain(self, *, end_watches: bool = False) -> None:
        """Refuse new streams; open ones continue until they end. Watches are ended with UNAVAILABLE on demand."""
        self._draining = True
        self._ends_watches = self._ends_watches or end_watches
        self._begin_refusing()
        if self._late_streams is not None:
            self._insert_refusals(self._late_streams)

    def _receive_requests(self, data: bytes) -> None:
        for start, kind, flags, stream_id in self._requests.frame_headers(data):
            self._preface_received = True
            if kind == frames.HEADERS and stream_id > self._last_stream_id:
                self._last_stream_id = stream_id
                self._open.add(stream_id)
                if self._opens_watch(data, start, flags):
                    self._watches[stream_id] = False
            elif kind == frames.RST_STREAM:
                self._open.discard(stream_id)
        self._to_runtime.append(data)
        if self._draining:
            self._begin_refusing()

    def _opens_watch(self, data: bytes, start: int, flags: int) -> bool:
        """Return whether the HEADERS frame at ``start`` opens a watch.

        Frames that are split between two reads, padded or continued are rare; a watch in one of them is not recognized.
        """
        if start < 0 or not flags & END_HEADERS or flags & (frames.PADDED | frames.PRIORITY_FLAG):
            return False
        begin = start + HEADER_SIZE
        return self._finder.is_watch(data[begin : begin + int.from_bytes(data[start : start + 3])])

    def _receive_responses(self, data: bytes) -> None:
        if self._response_reader is not None:
            self._forward_responses(self._response_reader, data)
            return
        tracker = self._responses
        for start, kind, flags, stream_id in tracker.frame_headers(data):
            if self._late_streams is not None and start >= 0 and tracker.can_insert:
                self._to_client.append(data[:start])
                self._forward_responses(self._send_goaway(self._late_streams), data[start:])
                return
            self._track_response(kind, flags, stream_id)
        self._to_client.append(data)
        if self._late_streams is not None and tracker.between_frames and tracker.can_insert:
            self._send_goaway(self._late_streams)

    def _track_response(self, kind: int, flags: int, stream_id: int) -> None:
        self._responses.frame_passed(kind, flags)
        if (kind <= frames.HEADERS and flags & END_STREAM) or kind == frames.RST_STREAM:
            self._open.discard(stream_id)
        elif stream_id in self._watches:
            self._watches[stream_id] = True

    def _begin_refusing(self) -> None:
        """Refuse newer streams from the next frame boundary in the requests on, and send GOAWAY."""
        if self._late_streams is not None or self._requests.in_frame_header:
            return
        self._late_streams = _LateStreams(self._last_stream_id, self._requests.remaining)
        if self._responses.between_frames and self._responses.can_insert:
            self._send_goaway(self._late_streams)

    def _send_goaway(self, late_streams: "_LateStreams") -> FrameReader:
        """Insert GOAWAY between two frames; from here on responses pass frame by frame."""
        self._to_client.append(frames.goaway(late_streams.last_stream_id, ErrorCode.NO_ERROR))
        self._response_reader = FrameReader(preface=False, max_frame_size=frames.LARGEST_MAX_FRAME_SIZE)
        self._insert_refusals(late_streams)
        return self._response_reader

    def _insert_refusals(self, late_streams: "_LateStreams") -> None:
        if self._response_reader is not None and not self._responses.in_block:
            self._to_client += late_streams.to_client
            late_streams.to_client.clear()
            if self._ends_watches:
                self._end_watches(late_streams)

    def _end_watches(self, late_streams: "_LateStreams") -> None:
        """End open watches at both peers."""
        for stream_id, has_headers in self._watches.items():
            if stream_id not in self._open:
                continue
            self._open.discard(stream_id)
            fields = (trailers if has_headers else trailers_only)(UNAVAILABLE, WATCH_ENDED)
            # Literals only: they do not depend on the runtime's dynamic table, nor change it.
            block = b"".join(map(encode_literal, fields))
            self._to_client.append(frames.frame(frames.HEADERS, END_HEADERS | END_STREAM, stream_id, block))
            if late_streams.between_frames:
                self._to_runtime.append(frames.rst_stream(stream_id, ErrorCode.CANCEL))
        self._watches.clear()

    def _refuse_late_streams(self, late_streams: "_LateStreams", data: bytes) -> None:
        self._to_runtime += late_streams.forwarded(data, self._open)
        self._preface_received = self._preface_received or late_streams.frames_read
        self._insert_refusals(late_streams)

    def _forward_responses(self, reader: FrameReader, data: bytes) -> None:
        """Forward frames one by one. The last stream id of the runtime's own GOAWAY must not exceed ours."""
        for kind, flags, stream_id, payload in reader.feed(data):
            self._track_response(kind, flags, stream_id)
            if kind == frames.GOAWAY:
                payload = _limit_last_stream_id(payload, self._last_stream_id)  # noqa: PLW2901
            self._to_client += (frames.frame_header(kind, flags, stream_id, len(payload)), payload)
            if self._late_streams is not None:
                self._insert_refusals(self._late_streams)


def _limit_last_stream_id(goaway: frames.Payload, limit: int) -> bytes:
    """Return a GOAWAY payload whose last stream id is at most ``limit``."""
    last_stream_id = int.from_bytes(goaway[:4]) & MAX_STREAM_ID
    return min(last_stream_id, limit).to_bytes(4) + bytes(goaway[4:])


class _FrameTracker:
    """Position of one direction: within a frame header, or a number of bytes before the next one."""

    __slots__ = ("_any_frame_passed", "_partial_header", "in_block", "remaining")

    def __init__(self, remaining: int) -> None:
        self.remaining = remaining
        """Bytes before the next frame header."""
        self._partial_header = b""
        self._any_frame_passed = False
        self.in_block = False
        """A header block is continued in the next frame."""

    @property
    def in_frame_header(self) -> bool:
        """Whether part of a frame header was received."""
        return bool(self._partial_header)

    @property
    def between_frames(self) -> bool:
        """Whether the next byte starts a frame."""
        return not self.remaining and not self._partial_header

    @property
    def can_insert(self) -> bool:
        """Whether a frame may be inserted after the last one: SETTINGS passed, and no header block is open."""
        return self._any_frame_passed and not self.in_block

    def frame_passed(self, kind: int, flags: int) -> None:
        """Record a frame."""
        self._any_frame_passed = True
        if kind in (frames.HEADERS, frames.PUSH_PROMISE, frames.CONTINUATION):
            self.in_block = not flags & END_HEADERS

    def frame_headers(self, data: bytes) -> Iterator[tuple[int, int, int, int]]:
        """Yield offset, type, flags and stream id of each frame whose header ``data`` completes.

        The offset is negative if the header began in earlier data.
        """
        shift = len(self._partial_header)
        if shift:
            data = self._partial_header + data
        at, end = self.remaining, len(data)
        while at + HEADER_SIZE <= end:
            length_and_type, flags, stream_id = HEADER.unpack_from(data, at)
            yield at - shift, length_and_type & 0xFF, flags, stream_id & MAX_STREAM_ID
            at += HEADER_SIZE + (length_and_type >> 8)
        self._partial_header = data[at:]
        self.remaining = max(at - end, 0)


class _LateStreams:
    """Filter of a draining client's requests: forwards frames of older streams and refuses newer ones."""

    def __init__(self, last_stream_id: int, remaining: int) -> None:
        self.last_stream_id = last_stream_id
        self.to_client: list[bytes] = []
        """Frames to be inserted into the responses."""
        self.frames_read = False
        self._remaining = remaining
        """Bytes of the frame that was being copied."""
        self._reader = FrameReader(preface=False, max_frame_size=frames.LARGEST_MAX_FRAME_SIZE)
        self._newest_refused = 0
        self._dropping_block = False

    @property
    def between_frames(self) -> bool:
        """Whether the runtime has got all of the frame that was being copied."""
        return not self._remaining

    def forwarded(self, data: bytes, open_streams: set[int]) -> Iterator[frames.Payload]:
        """Yield what the runtime still gets: the rest of the current frame, and frames of older streams."""
        rest, data = data[: self._remaining], data[self._remaining :]
        self._remaining -= len(rest)
        if rest:
            yield rest
        for kind, flags, stream_id, payload in self._reader.feed(data):
            self.frames_read = True
            if stream_id > self.last_stream_id:
                self._refuse(kind, stream_id, payload)
            elif self._is_undecodable(kind):
                yield from self._reset(kind, stream_id, open_streams)
            else:
                if kind == frames.RST_STREAM:
                    open_streams.discard(stream_id)
                yield frames.frame_header(kind, flags, stream_id, len(payload))
                yield payload

    def _refuse(self, kind: int, stream_id: int, payload: frames.Payload) -> None:
        """Reset a new stream with REFUSED_STREAM, and credit its DATA."""
        if kind == frames.HEADERS and stream_id > self._newest_refused:
            self._newest_refused = stream_id
            self.to_client.append(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
        elif kind == frames.DATA and payload:
            self.to_client.append(frames.window_update(0, len(payload)))

    def _is_undecodable(self, kind: int) -> bool:
        """Whether a frame carries a header block that follows one which the runtime did not get."""
        if kind == frames.HEADERS:
            self._dropping_block = bool(self._newest_refused)
        return kind in (frames.HEADERS, frames.CONTINUATION) and self._dropping_block

    def _reset(self, kind: int, stream_id: int, open_streams: set[int]) -> Iterator[frames.Payload]:
        """Reset a stream at both peers because of request trailers, which gRPC does not use."""
        if kind == frames.HEADERS:
            open_streams.discard(stream_id)
            self.to_client.append(frames.rst_stream(stream_id, ErrorCode.INTERNAL_ERROR))
            yield frames.rst_stream(stream_id, ErrorCode.CANCEL)
