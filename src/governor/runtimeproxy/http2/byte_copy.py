"""Copies the bytes of a client and its runtime, each to the other, and looks only where frames begin.

Used while nothing is hooked: bytes are identical in both directions and no header block is decoded. When that has to
end, ``drain`` tells the client between two frames to come again, refuses its newer streams in a way that is safe to
retry, and lets the older ones go on to their end. It has the same methods for moving bytes as a relay; a peer must not
be read while the other one does not take what it is sent, since nothing here limits that.
"""

from collections.abc import Iterator

from governor.runtimeproxy.http2 import frames
from governor.runtimeproxy.http2.errors import ErrorCode
from governor.runtimeproxy.http2.frames import END_HEADERS, END_STREAM, HEADER, HEADER_SIZE, LARGEST_STREAM, FrameReader
from governor.runtimeproxy.http2.streams import Peer


class ByteCopy:
    """One client's connection and the runtime's."""

    def __init__(self) -> None:
        self._to_client: list[frames.Payload] = []
        self._to_runtime: list[frames.Payload] = []
        self._requests = _Course(len(frames.PREFACE))
        self._responses = _Course(0)
        self._open: set[int] = set()
        self._last = 0
        self._greeted = False
        self._retiring = False
        self._refusals: _Refusals | None = None
        self._ending: FrameReader | None = None
        self._over = False

    @property
    def streams(self) -> int:
        """How many streams are open; one that the runtime answered in full is not."""
        return len(self._open)

    def receive(self, side: Peer, data: bytes) -> None:
        """Bytes of a peer."""
        if side is not Peer.CLIENT:
            self._receive_responses(data)
        elif self._refusals is None:
            self._receive_requests(data)
        else:
            self._refuse_newer(self._refusals, data)

    def outgoing(self, side: Peer) -> bytes:
        """What is to be written to a peer; take it only when it can be."""
        out = self._to_client if side is Peer.CLIENT else self._to_runtime
        if len(out) == 1:
            return bytes(out.pop())
        data = b"".join(out)
        out.clear()
        return data

    def should_close(self, side: Peer) -> bool:
        """Whether the connection with a peer is to be closed, as nothing more is to be said on it.

        A client that has not spoken yet is waited for: it would take the end for a failure to connect.
        """
        out = self._to_client if side is Peer.CLIENT else self._to_runtime
        told = self._ending is not None and self._greeted
        return not out and (self._over or (told and not self._open and not self._responses.in_block))

    def lost(self, side: Peer) -> None:
        """A peer is gone; the other one still gets what it was sent."""
        (self._to_client if side is Peer.CLIENT else self._to_runtime).clear()
        self._over = True

    def drain(self) -> None:
        """Take no more streams; those there are go on to their end."""
        self._retiring = True
        self._begin_refusing()

    def _receive_requests(self, data: bytes) -> None:
        for _, kind, _, stream in self._requests.heads(data):
            self._greeted = True
            if kind == frames.HEADERS and stream > self._last:
                self._last = stream
                self._open.add(stream)
            elif kind == frames.RST_STREAM:
                self._open.discard(stream)
        self._to_runtime.append(data)
        if self._retiring:
            self._begin_refusing()

    def _receive_responses(self, data: bytes) -> None:
        if self._ending is not None:
            self._end_responses(self._ending, data)
            return
        course = self._responses
        for start, kind, flags, stream in course.heads(data):
            if self._refusals is not None and start >= 0 and course.may_insert:
                self._to_client.append(data[:start])
                self._end_responses(self._tell(self._refusals), data[start:])
                return
            self._watch_response(kind, flags, stream)
        self._to_client.append(data)
        if self._refusals is not None and course.between_frames and course.may_insert:
            self._tell(self._refusals)

    def _watch_response(self, kind: int, flags: int, stream: int) -> None:
        self._responses.pass_frame(kind, flags)
        if (kind <= frames.HEADERS and flags & END_STREAM) or kind == frames.RST_STREAM:
            self._open.discard(stream)

    def _begin_refusing(self) -> None:
        """From a known place in the client's bytes on, newer streams are refused; the client must hear of that."""
        if self._refusals is not None or self._requests.in_head:
            return
        self._refusals = _Refusals(self._last, self._requests.left)
        if self._responses.between_frames and self._responses.may_insert:
            self._tell(self._refusals)

    def _tell(self, refusals: "_Refusals") -> FrameReader:
        """Here, between two frames, the client learns which streams are its last; then frames pass one by one."""
        self._to_client.append(frames.goaway(refusals.last, ErrorCode.NO_ERROR))
        self._ending = FrameReader(preface=False, max_frame_size=frames.LARGEST_MAX_FRAME_SIZE)
        self._insert(refusals)
        return self._ending

    def _insert(self, refusals: "_Refusals") -> None:
        if self._ending is not None and not self._responses.in_block:
            self._to_client += refusals.for_client
            refusals.for_client.clear()

    def _refuse_newer(self, refusals: "_Refusals", data: bytes) -> None:
        self._to_runtime += refusals.older(data, self._open)
        self._greeted = self._greeted or refusals.read_any
        self._insert(refusals)

    def _end_responses(self, reader: FrameReader, data: bytes) -> None:
        """Pass frames on; the runtime, too, may say which streams are the last, but not more of them than we did."""
        for kind, flags, stream, payload in reader.feed(data):
            self._watch_response(kind, flags, stream)
            if kind == frames.GOAWAY:
                payload = _with_last(payload, self._last)  # noqa: PLW2901
            self._to_client += (frames.head(kind, flags, stream, len(payload)), payload)
            if self._refusals is not None:
                self._insert(self._refusals)


def _with_last(goaway: frames.Payload, most: int) -> bytes:
    """A GOAWAY frame's payload that names no later stream than ``most``."""
    last = int.from_bytes(goaway[:4]) & LARGEST_STREAM
    return min(last, most).to_bytes(4) + bytes(goaway[4:])


class _Course:
    """Where one direction is: within a frame's head, or so many bytes before the next."""

    __slots__ = ("_begun", "_greeted", "in_block", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        self._begun = b""
        self._greeted = False
        self.in_block = False
        """A header block has begun and goes on with the next frame."""

    @property
    def in_head(self) -> bool:
        """Whether a frame has begun of which nothing is known yet."""
        return bool(self._begun)

    @property
    def between_frames(self) -> bool:
        """Whether what comes next is a frame."""
        return not self.left and not self._begun

    @property
    def may_insert(self) -> bool:
        """Whether between the frame that passed last and the next there can be another."""
        return self._greeted and not self.in_block

    def pass_frame(self, kind: int, flags: int) -> None:
        """A frame passes."""
        self._greeted = True
        if kind in (frames.HEADERS, frames.PUSH_PROMISE, frames.CONTINUATION):
            self.in_block = not flags & END_HEADERS

    def heads(self, data: bytes) -> Iterator[tuple[int, int, int, int]]:
        """The frames that begin in ``data`` or just before it: where, type, flags and stream."""
        shift = len(self._begun)
        if shift:
            data = self._begun + data
        at, end = self.left, len(data)
        while at + HEADER_SIZE <= end:
            first, flags, stream = HEADER.unpack_from(data, at)
            yield at - shift, first & 0xFF, flags, stream & LARGEST_STREAM
            at += HEADER_SIZE + (first >> 8)
        self._begun = data[at:]
        self.left = max(at - end, 0)


class _Refusals:
    """What of a client's bytes still goes to the runtime after the last stream that is taken."""

    def __init__(self, last: int, left: int) -> None:
        self.last = last
        self.for_client: list[bytes] = []
        """Frames that the client is to get when one can be put between two others."""
        self._left = left
        self._reader = FrameReader(preface=False, max_frame_size=frames.LARGEST_MAX_FRAME_SIZE)
        self.read_any = False
        self._refused = 0
        self._dropping_block = False

    def older(self, data: bytes, still_open: set[int]) -> Iterator[frames.Payload]:
        """The rest of the frame that was passing, and the frames of streams that were there in time."""
        rest, data = data[: self._left], data[self._left :]
        self._left -= len(rest)
        if rest:
            yield rest
        for kind, flags, stream, payload in self._reader.feed(data):
            self.read_any = True
            if stream > self.last:
                self._refuse(kind, stream, payload)
            elif self._is_lost_block(kind):
                yield from self._break_off(kind, stream, still_open)
            else:
                if kind == frames.RST_STREAM:
                    still_open.discard(stream)
                yield frames.head(kind, flags, stream, len(payload))
                yield payload

    def _refuse(self, kind: int, stream: int, payload: frames.Payload) -> None:
        """The client may try the stream again elsewhere; what it spends on it, it gets back."""
        if kind == frames.HEADERS and stream > self._refused:
            self._refused = stream
            self.for_client.append(frames.rst_stream(stream, ErrorCode.REFUSED_STREAM))
        elif kind == frames.DATA and payload:
            self.for_client.append(frames.window_update(0, len(payload)))

    def _is_lost_block(self, kind: int) -> bool:
        """A block after one that the runtime did not get cannot be decoded by it."""
        if kind == frames.HEADERS:
            self._dropping_block = bool(self._refused)
        return kind in (frames.HEADERS, frames.CONTINUATION) and self._dropping_block

    def _break_off(self, kind: int, stream: int, still_open: set[int]) -> Iterator[frames.Payload]:
        """Trailers of a request, which gRPC does not have: the stream ends for both."""
        if kind == frames.HEADERS:
            still_open.discard(stream)
            self.for_client.append(frames.rst_stream(stream, ErrorCode.INTERNAL_ERROR))
            yield frames.rst_stream(stream, ErrorCode.CANCEL)
