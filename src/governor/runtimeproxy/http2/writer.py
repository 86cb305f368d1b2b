"""What is to be written to one peer: control frames at once, streams as far as windows allow, in fair turns.

Nothing is read here, and nothing decided about which streams there are.
"""

from collections.abc import Iterator
from typing import Final

from governor.runtimeproxy.http2 import frames
from governor.runtimeproxy.http2.flow_control import FlowControl
from governor.runtimeproxy.http2.frames import Payload
from governor.runtimeproxy.http2.header_blocks import Fields, HeaderEncoder
from governor.runtimeproxy.http2.streams import Stream

COALESCE_DELAY_S: Final = 0.002
"""How long frames that can wait may wait for others."""
_PATIENT_MOST: Final = 4
"""A peer that provokes more of them gets them at once."""


class Writer:
    """The bytes for one peer."""

    def __init__(self, ledger: FlowControl) -> None:
        self.max_frame_size: int = frames.SMALLEST_MAX_FRAME_SIZE
        self.backlog = 0
        """Bytes that wait to be taken, besides DATA."""
        self._ledger = ledger
        self._blocks = HeaderEncoder()
        self._blocked: dict[Stream, None] = {}
        self._out: list[Payload] = []
        self._patient = 0
        """How many of them can wait."""

    @property
    def can_defer(self) -> bool:
        """Whether there are only frames for which nobody waits, so that they may be written with the next ones."""
        return 0 < self._patient == len(self._out) <= _PATIENT_MOST

    @property
    def pending(self) -> bool:
        """Whether there is something to be written."""
        return bool(self._out)

    @property
    def blocked(self) -> bool:
        """Whether lanes wait for the connection's window."""
        return bool(self._blocked)

    def outgoing(self) -> bytes:
        """All that is to be written now."""
        out, self._out = self._out, []
        self.backlog = self._patient = 0
        return b"".join(out)

    def write(self, written: bytes, *, can_wait: bool = False) -> None:
        """A whole frame, or several."""
        self._out.append(written)
        self.backlog += len(written)
        self._patient += can_wait

    def block(self, lane: Stream) -> None:
        """Let a lane write in its turn."""
        self._blocked[lane] = None

    def forget(self, lane: Stream) -> None:
        """A lane writes no more."""
        self._blocked.pop(lane, None)

    def flush(self, lane: Stream) -> int:
        """Write as much of what waits as windows allow; how much of it was DATA."""
        self._flush_heads(lane)
        written = 0
        while lane.waiting:
            size = self._write_chunk(lane)
            if not size:
                return written
            written += size
        self._flush_end(lane)
        return written

    def share(self) -> Iterator[tuple[Stream, int]]:
        """Let the lanes that waited for the connection write in turns, a frame each, and say how much each wrote."""
        blocked = self._blocked
        while blocked and self._ledger.send > 0:
            lane = next(iter(blocked))
            del blocked[lane]
            size = self._write_chunk(lane) if lane.waiting else 0
            if not lane.waiting:
                self._flush_end(lane)
            elif size:
                blocked[lane] = None
            yield lane, size

    def _flush_heads(self, lane: Stream) -> None:
        if not lane.heads:
            return
        heads, lane.heads = lane.heads, []
        ends = lane.head_ends and lane.ending and not lane.waiting and lane.tail is None
        for fields in heads[:-1]:
            self._write_headers(lane, fields, ended=False)
        self._write_headers(lane, heads[-1], ended=ends)

    def _flush_end(self, lane: Stream) -> None:
        if not lane.ending or lane.sent_end:
            return
        if lane.tail is not None:
            self._write_headers(lane, lane.tail, ended=True)
            lane.tail = None
        else:
            self.write(frames.head(frames.DATA, frames.END_STREAM, lane.id, 0))
            lane.sent_end = True

    def _write_headers(self, lane: Stream, fields: Fields, *, ended: bool) -> None:
        block = self._blocks.write(fields)
        self.write(frames.headers(lane.id, block, ended=ended, max_frame_size=self.max_frame_size))
        lane.sent_end = ended

    def _write_chunk(self, lane: Stream) -> int:
        """One frame of DATA, if the windows allow any."""
        flow = lane.flow
        allowed = min(self._ledger.send, flow.send, self.max_frame_size) if flow is not None else 0
        if allowed <= 0 or flow is None:
            if self._ledger.send <= 0:
                self._blocked[lane] = None
            return 0
        chunk = lane.waiting.popleft()
        if len(chunk) > allowed:
            view = memoryview(chunk)
            lane.waiting.appendleft(view[allowed:])
            chunk = view[:allowed]
        size = len(chunk)
        lane.size -= size
        self._ledger.spend(flow, size)
        lane.sent_end = lane.ending and not lane.waiting and lane.tail is None
        self._out.append(frames.head(frames.DATA, frames.END_STREAM if lane.sent_end else 0, lane.id, size))
        self._out.append(chunk)
        return size
