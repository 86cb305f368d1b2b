"""One HTTP/2 connection with a peer: reads its frames, answers what concerns the connection alone, writes streams.

SETTINGS, PING and the connection's windows are settled here; what is read on streams is handed to the caller, who
decides what is written. Which streams belong together is ``relay``'s.
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
_CONTINUATIONS_MOST: Final = 64
_RESETS_KNOWN: Final = 1000
"""Streams that we ended whose last frames may still be under way."""


class Limits(msgspec.Struct, frozen=True):
    """Bytes and counts; beyond them a stream is refused or the connection of who went beyond them ends."""

    stream_window: int = 256 * _KIB
    """What a peer may send on a stream before its bytes were passed on."""
    connection_window: int = _MIB
    streams: int = 1000
    """Streams that a client may have open at once."""
    header_list: int = 256 * _KIB
    """The size of a header list, encoded or decoded."""
    held_body: int = 16 * _MIB + 64 * _KIB
    """A held request or response: the 16 MiB that kubelet and containerd allow, and a margin for its frames."""
    held_bodies: int = 128 * _MIB
    """All of them together, on all connections."""
    backlog: int = 4 * _MIB
    """What waits to be written besides DATA, which windows limit, to a peer that does not read."""
    resets: int = 10_000
    """Streams that a client cancels without as many others coming to their end."""
    interim_responses: int = 16
    """Responses 1xx before the one that counts."""


class _Block:
    """A header block that has begun and is not yet complete."""

    __slots__ = ("continuations", "ended", "parts", "size", "stream")

    def __init__(self, stream: int, first: Payload, *, ended: bool) -> None:
        self.stream = stream
        self.ended = ended
        self.parts = [bytes(first)]
        self.size = len(first)
        self.continuations = 0


class Connection:
    """One peer. ``serving`` says that it opens the streams, otherwise we do."""

    def __init__(self, limits: Limits, *, serving: bool) -> None:
        self.ledger = FlowControl(connection_window=limits.connection_window, stream_window=limits.stream_window)
        self.writer = Writer(self.ledger)
        self.lanes: dict[int, Stream] = {}
        self.last = 0 if serving else -1
        """The newest stream, of whoever opens them."""
        self.closed = False
        """Nothing is read any more; what is to be written ends with GOAWAY."""
        self.failure = ""
        """What rule the peer broke, if that is why the connection ended."""
        self._limits = limits
        self._serving = serving
        self._streams_most = frames.LARGEST_STREAM
        self._reader = FrameReader(preface=serving)
        self._blocks = HeaderDecoder(limits.header_list)
        self._block: _Block | None = None
        self._reset: dict[int, None] = {}
        """Streams that we ended before the peer did; the newest come last."""
        self.greeted = False
        """Whether the peer has said how it wants to be spoken to."""
        self._greet()

    def _greet(self) -> None:
        settings = [
            (frames.INITIAL_WINDOW_SIZE, self._limits.stream_window),
            (frames.MAX_HEADER_LIST_SIZE, self._limits.header_list),
        ]
        if self._serving:
            settings.append((frames.MAX_CONCURRENT_STREAMS, self._limits.streams))
        else:
            self.writer.write(frames.PREFACE)
            settings.append((frames.ENABLE_PUSH, 0))
        self.writer.write(frames.settings(settings))
        opening = self.ledger.take_opening()
        if opening:
            self.writer.write(frames.window_update(0, opening))

    @property
    def room(self) -> bool:
        """Whether the peer lets us open another stream; it says first how many it takes."""
        return self.greeted and len(self.lanes) < self._streams_most and not self.closed

    def cut(self, data: bytes) -> list[Frame]:
        """The frames in what arrived; ``check_rest`` after they were read."""
        return [] if self.closed else self._reader.feed(data)

    def check_rest(self) -> None:
        """Whether more frames can follow."""
        if self._reader.fault is not None:
            self.fail(self._reader.fault)

    def read(self, frame: Frame) -> ConnectionEvent | None:
        """What a frame tells of a stream, if it does. Raises what is wrong with it."""
        kind, flags, stream, payload = frame
        if self._block is not None and (kind != frames.CONTINUATION or stream != self._block.stream):
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
        if not self.greeted:
            self._check_greeting(kind, flags)
        handle = self._HANDLERS.get(kind)
        return None if handle is None else handle(self, flags, stream, payload)

    def _check_greeting(self, kind: int, flags: int) -> None:
        if kind != frames.SETTINGS or flags & frames.ACK:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the connection does not begin with SETTINGS")
        self.greeted = True

    def _lane(self, stream: int) -> Stream | None:
        """The lane of an open stream, None for one that is over; there must have been one."""
        lane = self.lanes.get(stream)
        if lane is None and (stream > self.last or not stream & 1):
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"stream {stream} was never opened")
        return lane

    def _check_late(self, code: ErrorCode, what: str, stream: int) -> None:
        """A client sends nothing on a stream that it ended or never opened; of a server's connection others live."""
        if self._serving and stream not in self._reset:
            raise Http2ConnectionError(code, f"{what} of stream {stream}, which is over")

    def _data(self, flags: int, stream: int, payload: Payload) -> ConnectionEvent | None:
        size = len(payload)
        self.ledger.receive_bytes(size)
        credit = self.ledger.take_credit()
        if credit:
            self.writer.write(frames.window_update(0, credit))
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        lane = self._lane(stream)
        if lane is None:
            self._check_late(ErrorCode.STREAM_CLOSED, "DATA", stream)
            return None
        if lane.flow is None:
            return None
        if lane.got_end:
            raise Http2StreamError(ErrorCode.STREAM_CLOSED, "DATA after the end of a stream")
        self.ledger.receive_on(lane.flow, size)
        if size > len(payload):
            self.credit(lane, size - len(payload))
        return DataReceived(lane, payload, bool(flags & frames.END_STREAM))

    def _headers(self, flags: int, stream: int, payload: Payload) -> ConnectionEvent | None:
        if not stream & 1:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"HEADERS of stream {stream}")
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        if flags & frames.PRIORITISED:
            payload = frames.without_priority(stream, payload)
        ended = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            return self._complete(stream, bytes(payload), ended=ended)
        self._block = _Block(stream, payload, ended=ended)
        return None

    def _continuation(self, flags: int, stream: int, payload: Payload) -> ConnectionEvent | None:
        block = self._block
        if block is None:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        block.parts.append(bytes(payload))
        block.size += len(payload)
        block.continuations += 1
        if block.size > self._limits.header_list or block.continuations > _CONTINUATIONS_MOST:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "a header block that does not end")
        if not flags & frames.END_HEADERS:
            return None
        self._block = None
        return self._complete(stream, b"".join(block.parts), ended=block.ended)

    def _complete(self, stream: int, block: bytes, *, ended: bool) -> ConnectionEvent | None:
        """Every block is decoded, whatever becomes of it: the next ones may build on it."""
        fields = self._blocks.read(block)
        lane = self.lanes.get(stream)
        if lane is not None:
            if lane.got_end:
                raise Http2StreamError(ErrorCode.STREAM_CLOSED, "HEADERS after the end of a stream")
            return HeadersReceived(stream, lane, fields, ended)
        if stream <= self.last:
            self._check_late(ErrorCode.PROTOCOL_ERROR, "HEADERS", stream)
            return None
        if not self._serving:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"HEADERS of stream {stream}, which we did not open")
        self.last = stream
        return HeadersReceived(stream, None, fields, ended)

    def _priority(self, _flags: int, stream: int, payload: Payload) -> None:
        frames.check_size(frames.PRIORITY, payload)
        if not stream:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PRIORITY of the connection")

    def _rst_stream(self, _flags: int, stream: int, payload: Payload) -> ConnectionEvent | None:
        frames.check_size(frames.RST_STREAM, payload)
        lane = self._lane(stream)
        return None if lane is None else StreamReset(lane, frames.word(payload))

    def _settings(self, flags: int, stream: int, payload: Payload) -> ConnectionEvent | None:
        if stream:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & frames.ACK:
            if payload:
                raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS that acknowledge and set")
            self.ledger.agree()
            return None
        for setting, value in frames.settings_in(payload):
            self._set(setting, value)
        self._reply(frames.SETTINGS_ACK)
        return WindowUpdated(None)

    def _set(self, setting: int, value: int) -> None:
        if setting == frames.INITIAL_WINDOW_SIZE:
            self.ledger.restart(value)
            for lane in self.lanes.values():
                if lane.waiting and not lane.held:
                    self.writer.block(lane)
        elif setting == frames.MAX_FRAME_SIZE:
            if not frames.SMALLEST_MAX_FRAME_SIZE <= value <= frames.LARGEST_MAX_FRAME_SIZE:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE of {value}")
            self.writer.max_frame_size = value
        elif setting == frames.MAX_CONCURRENT_STREAMS:
            self._streams_most = value
        elif setting == frames.ENABLE_PUSH and value > (1 if self._serving else 0):
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH of {value}")

    def _push_promise(self, _flags: int, _stream: int, _payload: Payload) -> None:
        raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE, which is not enabled")

    def _ping(self, flags: int, stream: int, payload: Payload) -> None:
        frames.check_size(frames.PING, payload)
        if stream:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        if not flags & frames.ACK:
            # Who measures bandwidth by them, as gRPC does, sends one with every message.
            self._reply(frames.ping_ack(payload), can_wait=True)

    def _goaway(self, _flags: int, stream: int, payload: Payload) -> ConnectionEvent:
        if stream:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "GOAWAY of a stream")
        return GoawayReceived(*frames.goaway_in(payload))

    def _window_update(self, _flags: int, stream: int, payload: Payload) -> ConnectionEvent | None:
        frames.check_size(frames.WINDOW_UPDATE, payload)
        increment = frames.word(payload) & frames.LARGEST_STREAM
        if not stream:
            self.ledger.grant(increment)
            return WindowUpdated(None) if self.writer.blocked else None
        lane = self._lane(stream)
        if lane is None:
            return None
        self.ledger.grant_stream(stream, increment)
        return WindowUpdated(lane) if lane.waiting and not lane.held else None

    def open(self, lane: Stream, stream: int) -> None:
        """A stream begins here, the peer's or ours."""
        self.last = stream
        lane.id = stream
        lane.flow = self.ledger.open(stream)
        self.lanes[stream] = lane

    def close(self, lane: Stream) -> None:
        """The stream is over here."""
        lane.over = True
        lane.clear()
        self.writer.forget(lane)
        self.lanes.pop(lane.id, None)
        self.ledger.close(lane.id)

    def reset(self, stream: int, code: int) -> None:
        """Tell the peer that a stream is over."""
        self.writer.write(frames.rst_stream(stream, code))
        self._reset[stream] = None
        if len(self._reset) > _RESETS_KNOWN:
            del self._reset[next(iter(self._reset))]

    def credit(self, lane: Stream, size: int) -> None:
        """So much of what was read from the lane needs no room here any more."""
        if lane.flow is None or lane.over:
            return
        self.ledger.pass_on(lane.flow, size)
        credit = 0 if lane.got_end else self.ledger.take_stream_credit(lane.flow)
        if credit:
            self.writer.write(frames.window_update(lane.id, credit))

    def goaway(self, code: int = ErrorCode.NO_ERROR, message: str = "") -> None:
        """Tell the peer that we take no more of its streams."""
        self.writer.write(frames.goaway(self.last if self._serving else 0, code, message))

    def fail(self, fault: Http2ConnectionError) -> None:
        """The peer broke the rules: tell it how, and read no more."""
        if not self.closed:
            self.goaway(fault.code, fault.message)
            self.failure = fault.message
            self.closed = True

    def _reply(self, written: bytes, *, can_wait: bool = False) -> None:
        """Write what the peer provokes; it must read, too."""
        self.writer.write(written, can_wait=can_wait)
        if self.writer.backlog > self._limits.backlog:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "much is asked and no answer is read")

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
