"""Random sequences of mostly valid frames and random commands against a relay: one sequence per seed."""

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
    max_streams=8,
    max_header_list=2000,
    max_held_body=2500,
    max_held_total=4000,
    max_backlog=3000,
    max_resets=20,
    max_interim_responses=2,
)
MAX_BUFFERED = 8 * 2 * (1000 + 65_535) + 4000
"""Bytes of DATA that can be buffered: eight streams in both directions before SETTINGS are acknowledged."""

PATHS = (PLAIN, HOOKED, HOOKED, IMAGES)


class FuzzPeer:
    """Generator of one peer's random frames for the relay's open streams."""

    def __init__(self, rng: random.Random, *, client: bool) -> None:
        self.rng = rng
        self.client = client
        self.encoder = Encoder()
        self.next = 1

    def preface(self) -> bytes:
        return (frames.PREFACE if self.client else b"") + self._settings(0) + frames.SETTINGS_ACK

    def frame(self, open_streams: list[int]) -> bytes:
        """Return a random frame that this peer may send."""
        on_stream = (self._headers, self._headers, self._data, self._data, self._end)
        at_any_time = (self._settings, self._control)
        if not open_streams:
            return self.rng.choice((self._headers, *at_any_time) if self.client else at_any_time)(0)
        return self.rng.choice((*on_stream, *on_stream, *at_any_time))(self.rng.choice(open_streams))

    def _settings(self, _stream: int) -> bytes:
        rng = self.rng
        setting = rng.choice(
            (
                (frames.INITIAL_WINDOW_SIZE, rng.choice((0, 100, 65_535, 200_000))),
                (frames.MAX_FRAME_SIZE, rng.choice((16_384, 20_000))),
                (frames.MAX_CONCURRENT_STREAMS, rng.choice((0, 1, 100))),
                (frames.HEADER_TABLE_SIZE, rng.choice((0, 4096))),
                (rng.randrange(7, 2**16), rng.randrange(2**32)),
            )
        )
        return frames.settings([setting])

    def _headers(self, stream: int) -> bytes:
        rng = self.rng
        ended = rng.random() < 0.5
        if not self.client:
            fields = rng.choice((ANSWER, OK, [*ANSWER, *OK], [(b":status", b"103")]))
        elif not stream or rng.random() < 0.9:
            stream, self.next = self.next, self.next + 2
            fields = request_fields(rng.choice(PATHS), (b"number", b"%d" % rng.randrange(100)))
        else:
            fields = [(b"checksum", b"1")]
        block = self.encoder.encode(fields, huffman=rng.random() < 0.5)
        return frames.headers(stream, block, end_stream=ended, max_frame_size=rng.choice((10, 100, 16_384)))

    def _data(self, stream: int) -> bytes:
        rng = self.rng
        payload = bytes(rng.choice((0, 1, 5, 400, 900)))
        flags = rng.random() < 0.4
        if rng.random() < 0.2:
            return frames.frame(frames.DATA, flags | frames.PADDED, stream, b"\x05" + payload + bytes(5))
        return frames.frame(frames.DATA, flags, stream, payload)

    def _end(self, stream: int) -> bytes:
        rng = self.rng
        return rng.choice((self._data(stream), frames.rst_stream(stream, rng.randrange(14))))

    def _control(self, stream: int) -> bytes:
        rng = self.rng
        return rng.choice(
            (
                frames.window_update(rng.choice((0, stream)), rng.choice((1, 1000, 100_000))),
                frames.window_update(0, rng.choice((1, 1000, 100_000))),
                frames.frame(frames.PING, rng.randrange(2), 0, bytes(8)),
                frames.frame(frames.PRIORITY, 0, stream or 1, bytes(5)),
                frames.frame(rng.randrange(10, 256), 0, stream, bytes(rng.randrange(20))),
                frames.goaway(rng.choice((0, stream, 2**31 - 1)), rng.randrange(3))
                if rng.random() < 0.1
                else frames.SETTINGS_ACK,
            )
        )

    def mutated(self, data: bytes) -> bytes:
        """Return the frame corrupted."""
        rng = self.rng
        if not data:
            return data
        at = rng.randrange(len(data))
        return rng.choice(
            (
                lambda: data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :],
                lambda: data[:at] + rng.randbytes(rng.randrange(1, 10)) + data[at:],
                lambda: data[:at],
                lambda: data + data,
                lambda: rng.randbytes(rng.randrange(1, 60)),
                lambda: frames.frame(
                    rng.randrange(11),
                    rng.randrange(256),
                    rng.randrange(6),
                    rng.randbytes(rng.randrange(30)),
                ),
            )
        )()


class Sequence:
    """One relay and its random peers."""

    def __init__(self, seed: int, *, steps: int) -> None:
        self.rng = random.Random(seed)
        self.relay = Relay(lambda path: path == HOOKED, has_image_service=self.rng.random() < 0.3, limits=LIMITS)
        self.peers = {peer: FuzzPeer(self.rng, client=peer is Peer.CLIENT) for peer in Peer}
        self.steps = steps
        self.bad = self.rng.choice((0.0, 0.01, 0.05, 0.3))
        self.held: list[RequestHeld | ResponseHeld] = []
        self.taken = 0

    def run(self) -> None:
        self.relay.attach(Peer.RUNTIME)
        if self.rng.random() < 0.5:
            self.relay.attach(Peer.IMAGES)
        for peer in self.peers:
            self._send(peer, self.peers[peer].preface())
        for _ in range(self.steps):
            self.rng.choices(
                (self._receive_frame, self._decide, self._drain_output, self._intervene), weights=(20, 4, 4, 0.1)
            )[0]()
            self.check()
        self._end()

    def _receive_frame(self) -> None:
        peer = self.rng.choices(tuple(Peer), weights=(6, 4, 1))[0]
        sender = self.peers[peer]
        connection = self.relay._exchanges.connections.get(peer)
        data = sender.frame(list(connection.streams) if connection is not None else [])
        self._send(peer, sender.mutated(data) if self.rng.random() < self.bad else data)

    def _send(self, peer: Peer, data: bytes) -> None:
        cut = self.rng.randrange(len(data) + 1)
        for part in (data[:cut], data[cut:]):
            self.relay.receive(peer, part)
            self.held += [event for event in self.relay.events() if isinstance(event, RequestHeld | ResponseHeld)]

    def _decide(self) -> None:
        if not self.held:
            return
        event = self.held.pop(self.rng.randrange(len(self.held)))
        body = self.rng.choice((None, b"", bytes(5000)))
        act: Callable[[], object] = self.rng.choice(
            (
                lambda: self.relay.release(event.stream_id, body, hold_response=self.rng.random() < 0.5),
                lambda: self.relay.release_response(event.stream_id),
                lambda: self.relay.refuse(event.stream_id, self.rng.randrange(17), "no"),
            )
        )
        act()

    def _drain_output(self) -> None:
        for peer in Peer:
            self.taken += len(self.relay.data_to_send(peer))

    def _intervene(self) -> None:
        peer = self.rng.choice(tuple(Peer))
        act: Callable[[], object] = self.rng.choice(
            (
                self.relay.drain,
                lambda: self.relay.connection_lost(peer),
                lambda: self.relay.attach(Peer.IMAGES) if Peer.IMAGES not in self.relay.flow_controls() else None,
            )
        )
        act()

    def check(self) -> None:
        """Assert that all counts agree and stay within their limits."""
        exchanges = self.relay._exchanges
        streams: list[Stream] = [
            stream for exchange in exchanges.by_id.values() for stream in (exchange.client, exchange.upstream)
        ]
        assert self.relay.streams <= LIMITS.max_streams + len(self.held)
        assert self.relay.held_bytes == sum(stream.held_bytes for stream in streams)
        assert all(stream.credited_bytes <= stream.held_bytes <= stream.buffered_bytes for stream in streams)
        assert all(stream.buffered_bytes == sum(map(len, stream.queued_data)) for stream in streams)
        assert sum(stream.buffered_bytes - stream.credited_bytes for stream in streams) <= MAX_BUFFERED
        for peer in self.relay.flow_controls():
            connection = exchanges.connections[peer]
            assert connection.flow_control.streams.keys() == connection.streams.keys()
            assert all(windows.unread_bytes >= 0 for windows in connection.flow_control.streams.values())
            assert connection.writer.backlog <= 3 * LIMITS.max_backlog + LIMITS.max_streams * 4 * LIMITS.max_header_list

    def _end(self) -> None:
        """Disconnect all peers and assert that nothing is left."""
        for peer in Peer:
            self.relay.connection_lost(peer)
        assert self.relay.streams == 0
        assert self.relay.held_bytes == 0
        assert all(not flow_control.streams for flow_control in self.relay.flow_controls().values())
