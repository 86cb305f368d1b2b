"""Peers that mostly keep to HTTP/2 and often do not, and a caller that decides at random: one sequence per seed."""

import random
from collections.abc import Callable

from hpack import Encoder

from governor.runtimeproxy.http2 import frames
from governor.runtimeproxy.http2.connection import Limits
from governor.runtimeproxy.http2.events import RequestHeld, ResponseHeld
from governor.runtimeproxy.http2.relay import Relay
from governor.runtimeproxy.http2.streams import Peer, Stream
from tests.unit.runtimeproxy.http2.bed import ANSWER, HOOKED, IMAGES, OK, PLAIN, request_fields

LIMITS = Limits(
    stream_window=1000,
    connection_window=65_535,
    streams=8,
    header_list=2000,
    held_body=2500,
    held_bodies=4000,
    backlog=3000,
    resets=20,
    interim_responses=2,
)
MOST_KEPT = 8 * 2 * (1000 + 65_535) + 4000
"""Bytes of DATA that can wait: what eight streams may send both ways before their windows' size is agreed."""

PATHS = (PLAIN, HOOKED, HOOKED, IMAGES)


class FuzzPeer:
    """Writes the frames of one side, as chance has it, for streams that the relay has open."""

    def __init__(self, chance: random.Random, *, client: bool) -> None:
        self.chance = chance
        self.client = client
        self.encoder = Encoder()
        self.next = 1

    def greeting(self) -> bytes:
        return (frames.PREFACE if self.client else b"") + self._settings(0) + frames.SETTINGS_ACK

    def frame(self, known: list[int]) -> bytes:
        """Something that a peer of this side may well say."""
        of_streams = (self._headers, self._headers, self._data, self._data, self._end)
        of_any_time = (self._settings, self._control)
        if not known:
            return self.chance.choice((self._headers, *of_any_time) if self.client else of_any_time)(0)
        return self.chance.choice((*of_streams, *of_streams, *of_any_time))(self.chance.choice(known))

    def _settings(self, _stream: int) -> bytes:
        chance = self.chance
        setting = chance.choice(
            (
                (frames.INITIAL_WINDOW_SIZE, chance.choice((0, 100, 65_535, 200_000))),
                (frames.MAX_FRAME_SIZE, chance.choice((16_384, 20_000))),
                (frames.MAX_CONCURRENT_STREAMS, chance.choice((0, 1, 100))),
                (frames.HEADER_TABLE_SIZE, chance.choice((0, 4096))),
                (chance.randrange(7, 2**16), chance.randrange(2**32)),
            )
        )
        return frames.settings([setting])

    def _headers(self, stream: int) -> bytes:
        chance = self.chance
        ended = chance.random() < 0.5
        if not self.client:
            fields = chance.choice((ANSWER, OK, [*ANSWER, *OK], [(b":status", b"103")]))
        elif not stream or chance.random() < 0.9:
            stream, self.next = self.next, self.next + 2
            fields = request_fields(chance.choice(PATHS), (b"number", b"%d" % chance.randrange(100)))
        else:
            fields = [(b"checksum", b"1")]
        block = self.encoder.encode(fields, huffman=chance.random() < 0.5)
        return frames.headers(stream, block, ended=ended, max_frame_size=chance.choice((10, 100, 16_384)))

    def _data(self, stream: int) -> bytes:
        chance = self.chance
        payload = bytes(chance.choice((0, 1, 5, 400, 900)))
        flags = chance.random() < 0.4
        if chance.random() < 0.2:
            return frames.frame(frames.DATA, flags | frames.PADDED, stream, b"\x05" + payload + bytes(5))
        return frames.frame(frames.DATA, flags, stream, payload)

    def _end(self, stream: int) -> bytes:
        chance = self.chance
        return chance.choice((self._data(stream), frames.rst_stream(stream, chance.randrange(14))))

    def _control(self, stream: int) -> bytes:
        chance = self.chance
        return chance.choice(
            (
                frames.window_update(chance.choice((0, stream)), chance.choice((1, 1000, 100_000))),
                frames.window_update(0, chance.choice((1, 1000, 100_000))),
                frames.frame(frames.PING, chance.randrange(2), 0, bytes(8)),
                frames.frame(frames.PRIORITY, 0, stream or 1, bytes(5)),
                frames.frame(chance.randrange(10, 256), 0, stream, bytes(chance.randrange(20))),
                frames.goaway(chance.choice((0, stream, 2**31 - 1)), chance.randrange(3))
                if chance.random() < 0.1
                else frames.SETTINGS_ACK,
            )
        )

    def mutated(self, data: bytes) -> bytes:
        """The same with something wrong."""
        chance = self.chance
        if not data:
            return data
        at = chance.randrange(len(data))
        return chance.choice(
            (
                lambda: data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :],
                lambda: data[:at] + chance.randbytes(chance.randrange(1, 10)) + data[at:],
                lambda: data[:at],
                lambda: data + data,
                lambda: chance.randbytes(chance.randrange(1, 60)),
                lambda: frames.frame(
                    chance.randrange(11),
                    chance.randrange(256),
                    chance.randrange(6),
                    chance.randbytes(chance.randrange(30)),
                ),
            )
        )()


class Sequence:
    """One relay and what is done to it."""

    def __init__(self, seed: int, *, steps: int) -> None:
        self.chance = random.Random(seed)
        self.relay = Relay(lambda path: path == HOOKED, has_image_service=self.chance.random() < 0.3, limits=LIMITS)
        self.peers = {side: FuzzPeer(self.chance, client=side is Peer.CLIENT) for side in Peer}
        self.steps = steps
        self.bad = self.chance.choice((0.0, 0.01, 0.05, 0.3))
        self.held: list[RequestHeld | ResponseHeld] = []
        self.taken = 0

    def run(self) -> None:
        self.relay.attach(Peer.RUNTIME)
        if self.chance.random() < 0.5:
            self.relay.attach(Peer.IMAGES)
        for side in self.peers:
            self._send(side, self.peers[side].greeting())
        for _ in range(self.steps):
            self.chance.choices((self._speak, self._decide, self._take, self._intervene), weights=(20, 4, 4, 0.1))[0]()
            self.check()
        self._end()

    def _speak(self) -> None:
        side = self.chance.choices(tuple(Peer), weights=(6, 4, 1))[0]
        peer = self.peers[side]
        known = self.relay._exchanges.peer(side)
        data = peer.frame(list(known.lanes) if known is not None else [])
        self._send(side, peer.mutated(data) if self.chance.random() < self.bad else data)

    def _send(self, side: Peer, data: bytes) -> None:
        cut = self.chance.randrange(len(data) + 1)
        for part in (data[:cut], data[cut:]):
            self.relay.receive(side, part)
            self.held += [event for event in self.relay.events() if isinstance(event, RequestHeld | ResponseHeld)]

    def _decide(self) -> None:
        if not self.held:
            return
        event = self.held.pop(self.chance.randrange(len(self.held)))
        body = self.chance.choice((None, b"", bytes(5000)))
        act: Callable[[], object] = self.chance.choice(
            (
                lambda: self.relay.release(event.stream, body, hold_response=self.chance.random() < 0.5),
                lambda: self.relay.release_response(event.stream),
                lambda: self.relay.refuse(event.stream, self.chance.randrange(17), "no"),
            )
        )
        act()

    def _take(self) -> None:
        for side in Peer:
            self.taken += len(self.relay.outgoing(side))

    def _intervene(self) -> None:
        side = self.chance.choice(tuple(Peer))
        act: Callable[[], object] = self.chance.choice(
            (
                self.relay.drain,
                lambda: self.relay.lost(side),
                lambda: self.relay.attach(Peer.IMAGES) if Peer.IMAGES not in self.relay.flow_controls() else None,
            )
        )
        act()

    def check(self) -> None:
        """Nothing is counted twice or forgotten, and nothing grows beyond its limit."""
        board = self.relay._exchanges
        lanes: list[Stream] = [lane for stream in board.streams.values() for lane in (stream.client, stream.upstream)]
        assert self.relay.streams <= LIMITS.streams + len(self.held)
        assert self.relay.held_bytes == sum(lane.size for lane in lanes if lane.credited)
        assert all(lane.size == sum(map(len, lane.waiting)) for lane in lanes)
        assert sum(lane.size for lane in lanes if not lane.credited) <= MOST_KEPT
        for side in self.relay.flow_controls():
            peer = board.peer(side)
            assert peer is not None
            assert peer.ledger.flows.keys() == peer.lanes.keys()
            assert all(flow.unread >= 0 for flow in peer.ledger.flows.values())
            assert peer.writer.backlog <= 3 * LIMITS.backlog + LIMITS.streams * 4 * LIMITS.header_list

    def _end(self) -> None:
        """When everybody is gone nothing is left."""
        for side in Peer:
            self.relay.lost(side)
        assert self.relay.streams == 0
        assert self.relay.held_bytes == 0
        assert all(not ledger.flows for ledger in self.relay.flow_controls().values())
