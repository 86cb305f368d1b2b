"""Opens, writes and ends relayed streams at both of their connections, and remembers what is to be told of it.

What a peer's frames or the caller's commands mean is ``relay``'s.
"""

from typing import Final

from governor.runtimeproxy.http2 import answers
from governor.runtimeproxy.http2.connection import Connection
from governor.runtimeproxy.http2.errors import Code
from governor.runtimeproxy.http2.events import Ended, Event, Requested, Responded, Wanted
from governor.runtimeproxy.http2.frames import LARGEST_STREAM
from governor.runtimeproxy.http2.limits import Limits
from governor.runtimeproxy.http2.streams import Lane, Outcome, Side, Stream

_NAMES: Final = {Side.RUNTIME: "runtime", Side.IMAGES: "image service"}


class Switchboard:
    """The streams of one client and the connections between which they pass."""

    def __init__(self, limits: Limits) -> None:
        self.client = Connection(limits, serving=True)
        self.upstreams: dict[Side, Connection] = {}
        self.streams: dict[int, Stream] = {}
        self.events: list[Event] = []
        self.retired = False
        """The client opens no more streams."""
        self.held_bytes = 0
        """Of held messages, until they were written or dropped."""
        self.resets = 0
        """Streams that the client cancelled, less those that were completed."""
        self._limits = limits
        self._lost: dict[Side, str] = {}
        self._leaving: set[Side] = set()
        self._queues: dict[Side, dict[int, Stream]] = {}

    def peer(self, side: Side) -> Connection | None:
        """The connection with a peer, if there is one."""
        return self.client if side is Side.CLIENT else self.upstreams.get(side)

    def attach(self, side: Side) -> None:
        """There is a connection with an upstream."""
        self.upstreams[side] = Connection(self._limits, serving=False)
        self._admit_queued(side)

    def retire(self) -> None:
        """Tell the client that no more streams are taken."""
        if not self.retired:
            self.retired = True
            self.client.goaway()

    def lose(self, side: Side, why: str) -> None:
        """An upstream is gone: its streams are answered, and the client is to come again."""
        self._lost[side] = f"the {_NAMES[side]} is not available: {why}"
        for stream in self._streams_of(side):
            self._miss(stream)
        self.retire()

    def let_go(self, side: Side, last: int) -> None:
        """An upstream takes no streams after ``last``: what it did not begin the client can try again elsewhere."""
        self._leaving.add(side)
        for stream in self._streams_of(side):
            if stream.upstream.id > last or stream.id in self._queues.get(side, ()):
                self.close_upstream(stream)
                self.give_up(stream, Outcome.RESET, client_code=Code.REFUSED_STREAM)
        self.retire()

    def _streams_of(self, side: Side) -> list[Stream]:
        """Those for which an upstream still has to do something."""
        return [stream for stream in self.streams.values() if stream.side is side and not stream.upstream.over]

    def _miss(self, stream: Stream) -> None:
        """The upstream of a stream is gone; what it answered in full stays."""
        if stream.upstream.got_end:
            self.close_upstream(stream)
            self.settle(stream)
        else:
            self.answer(stream, answers.UNAVAILABLE, self._lost[stream.side])

    def admit(self, stream: Stream) -> None:
        """Begin a stream at its upstream, or let it wait for its turn."""
        side = stream.side
        peer = self.upstreams.get(side)
        if side in self._lost:
            self.answer(stream, answers.UNAVAILABLE, self._lost[side])
        elif side in self._leaving:
            self.give_up(stream, Outcome.RESET, client_code=Code.REFUSED_STREAM)
        elif peer is None or not peer.room:
            self._queue(stream, wanted=peer is None)
        elif peer.writer.backlog > self._limits.backlog:
            self.answer(stream, answers.UNAVAILABLE, f"the {_NAMES[side]} does not read")
        else:
            peer.open(stream.upstream, peer.last + 2)
            if peer.last + 2 > LARGEST_STREAM:
                self._leaving.add(side)
                self.retire()
            self.flush(stream.upstream)

    def _queue(self, stream: Stream, *, wanted: bool) -> None:
        if wanted and stream.side not in self._queues:
            self.events.append(Wanted(stream.side))
        self._queues.setdefault(stream.side, {})[stream.id] = stream

    def _admit_queued(self, side: Side) -> None:
        queue = self._queues.get(side)
        peer = self.upstreams[side]
        while queue and peer.room:
            self.admit(queue.pop(next(iter(queue))))

    def share(self, side: Side) -> None:
        """A peer lets more be written, and perhaps more streams be opened."""
        peer = self.peer(side)
        for lane, written in peer.writer.share() if peer is not None else ():
            self._account(lane, written)
        if side is not Side.CLIENT:
            self._admit_queued(side)

    def flush(self, lane: Lane) -> None:
        """Write what waits in a lane, as far as it may be."""
        self._account(lane, self._peer_of(lane).writer.flush(lane))

    def credit(self, lane: Lane, size: int) -> None:
        """So much of what was read from a lane needs no room any more."""
        self._peer_of(lane).credit(lane, size)

    def _peer_of(self, lane: Lane) -> Connection:
        stream = lane.stream
        return self.client if lane is stream.client else self.upstreams[stream.side]

    def _account(self, lane: Lane, written: int) -> None:
        """So much DATA of a lane was written: who sent it may send more."""
        if lane.credited:
            self.held_bytes -= written
        elif written:
            self.credit(other(lane), written)
        if lane.sent_end:
            self.settle(lane.stream)

    def settle(self, stream: Stream) -> None:
        """Close what both directions are done with."""
        client, upstream = stream.client, stream.upstream
        if upstream.sent_end and upstream.got_end:
            self.close_upstream(stream)
        if client.sent_end and (client.got_end or upstream.over):
            self._close_client(stream, None if client.got_end else Code.NO_ERROR)
        if client.over and upstream.over:
            self._finish(stream)

    def answer(
        self, stream: Stream, status: int, message: str, details: bytes = b"", *, code: int = Code.CANCEL
    ) -> None:
        """End a response with a status of ours, after what of it was passed on."""
        client = stream.client
        stream.outcome = Outcome.REFUSED
        stream.status = b"%d" % status
        self.close_upstream(stream, code)
        if client.held:
            self._forget(client)
        if client.sent_head:
            client.tail = answers.trailers(status, message, details)
        else:
            client.heads.append(answers.trailers_only(status, message, details))
            client.head_ends = True
        client.ending = True
        self.flush(client)

    def give_up(
        self, stream: Stream, outcome: Outcome, *, client_code: int | None = None, upstream_code: int = Code.CANCEL
    ) -> None:
        """End a stream at once at both peers."""
        stream.outcome = outcome
        self.close_upstream(stream, upstream_code)
        self._close_client(stream, client_code)
        self._finish(stream)

    def _close_client(self, stream: Stream, code: int | None) -> None:
        lane = stream.client
        if lane.over:
            return
        if code is not None:
            self.client.reset(lane.id, code)
        self._forget(lane)
        self.client.close(lane)

    def close_upstream(self, stream: Stream, code: int | None = None) -> None:
        """The stream is over for its upstream, which is told if it does not know and had begun."""
        lane = stream.upstream
        if lane.over:
            return
        self._forget(lane)
        lane.over = True
        self._queues.get(stream.side, {}).pop(stream.id, None)
        if lane.flow is None:
            return
        peer = self.upstreams[stream.side]
        if code is not None and not peer.closed:
            peer.reset(lane.id, code)
        peer.close(lane)
        if not peer.closed:
            self._admit_queued(stream.side)

    def _forget(self, lane: Lane) -> None:
        if lane.credited:
            self.held_bytes -= lane.size
        lane.clear()

    def _finish(self, stream: Stream) -> None:
        if self.streams.pop(stream.id, None) is None:
            return
        if stream.outcome is Outcome.COMPLETED:
            self.resets = max(0, self.resets - 1)
        self.events.append(Ended(stream.id, stream.path, stream.hooked, stream.outcome, stream.status))


def completed(lane: Lane) -> Event:
    """A held message is complete."""
    stream = lane.stream
    if lane is stream.upstream:
        return Requested(stream.id, stream.path, lane.heads[0], lane.joined())
    return Responded(stream.id, stream.path, lane.heads[-1], lane.joined(), lane.tail or [])


def other(lane: Lane) -> Lane:
    """The lane at the other end of the same stream."""
    stream = lane.stream
    return stream.upstream if lane is stream.client else stream.client
