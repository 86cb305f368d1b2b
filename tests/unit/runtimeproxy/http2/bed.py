"""A relay between in-memory endpoints of the `h2` library: a caller, a runtime, and what they received."""

import random
from collections.abc import Callable, Iterable, Iterator

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from hpack import NeverIndexedHeaderTuple

from governor.runtimeproxy.http2.connection import Limits
from governor.runtimeproxy.http2.events import RelayEvent, RequestHeld, ResponseHeld, StreamClosed, UpstreamNeeded
from governor.runtimeproxy.http2.frames import GOAWAY, HEADER_SIZE, PREFACE, goaway_in
from governor.runtimeproxy.http2.header_blocks import Fields
from governor.runtimeproxy.http2.held_budget import HeldBudget
from governor.runtimeproxy.http2.relay import Relay
from governor.runtimeproxy.http2.streams import Outcome, Peer

LIMITS = Limits(stream_window=65_535, connection_window=65_535)
HOOKED = b"/runtime.v1.RuntimeService/CreateContainer"
PLAIN = b"/runtime.v1.RuntimeService/ListContainers"
IMAGES = b"/runtime.v1.ImageService/ListImages"
ANSWER: Fields = [(b":status", b"200"), (b"content-type", b"application/grpc")]
OK: Fields = [(b"grpc-status", b"0"), (b"grpc-message", b"")]


def request_fields(path: bytes, *more: tuple[bytes, bytes]) -> Fields:
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        *more,
    ]


class Message:
    """A stream at one endpoint: what was received, and what is still to be sent."""

    def __init__(self, stream: int) -> None:
        self.stream_id = stream
        self.headers: list[Fields] = []
        self.body = bytearray()
        self.trailers: Fields | None = None
        self.ended = False
        self.reset: int | None = None
        self.unsent = memoryview(b"")
        self.sends_end = False
        self.sends_trailers: Fields | None = None
        self.sent_end = False

    @property
    def over(self) -> bool:
        return self.reset is not None or (self.ended and self.sent_end)

    @property
    def fields(self) -> Fields:
        return self.headers[-1] if self.headers else []


class Endpoint:
    """An `h2` connection that reads and acknowledges all DATA and sends as much as its windows allow."""

    def __init__(self, *, client: bool, rng: random.Random | None = None) -> None:
        config = h2.config.H2Configuration(client_side=client, header_encoding=None)
        self.connection = h2.connection.H2Connection(config)
        self.messages: dict[int, Message] = {}
        self.goaway_received: tuple[int, int] | None = None
        self.reading = True
        self.padded = False
        self.rng = rng or random.Random(0)
        self.on_request: Callable[[Message], None] = lambda message: None
        self.on_complete: Callable[[Message], None] = lambda message: None
        self._changing = True
        self._unread: list[tuple[int, int]] = []
        self.connection.initiate_connection()

    def change(self, settings: dict[h2.settings.SettingCodes, int]) -> None:
        """Send SETTINGS unless some are unacknowledged: the library applies all of them on one ACK."""
        if not self._changing:
            self._changing = True
            self.connection.update_settings({int(code): value for code, value in settings.items()})

    def open(self, fields: Fields, body: bytes = b"", *, trailers: Fields | None = None, ends: bool = True) -> Message:
        """Send a new request."""
        message = Message(self.connection.get_next_available_stream_id())
        self.messages[message.stream_id] = message
        self.send(message, fields, body, trailers=trailers, ends=ends)
        return message

    def send(
        self, message: Message, fields: Fields, body: bytes = b"", *, trailers: Fields | None = None, ends: bool = True
    ) -> None:
        message.unsent, message.sends_trailers, message.sends_end = memoryview(body), trailers, ends
        message.sent_end = ends and not body and trailers is None
        self.connection.send_headers(message.stream_id, fields, end_stream=message.sent_end)
        self.pump(message)

    def finish(self, message: Message, body: bytes = b"") -> None:
        message.unsent = memoryview(bytes(message.unsent) + body)
        message.sends_end = True
        self.pump(message)

    def cancel(self, message: Message, code: int = 8) -> None:
        if not message.over:
            self.connection.reset_stream(message.stream_id, code)
            message.reset = code

    def pump(self, message: Message) -> None:
        """Send as much as the windows allow, in frames of random sizes."""
        while message.unsent and message.reset is None and not self._send_some(message):
            pass
        if not message.unsent and message.sends_end and not message.sent_end and message.reset is None:
            message.sent_end = True
            if message.sends_trailers is not None:
                self.connection.send_headers(message.stream_id, message.sends_trailers, end_stream=True)
            else:
                self.connection.end_stream(message.stream_id)

    def _send_some(self, message: Message) -> bool:
        """Send one frame; return True if the windows are exhausted."""
        pad = self.rng.randrange(255) if self.padded else None
        extra = 0 if pad is None else pad + 1
        limit = min(
            self.connection.local_flow_control_window(message.stream_id) - extra,
            self.connection.max_outbound_frame_size - extra,
        )
        if limit <= 0:
            return True
        size = limit if len(message.unsent) > 4 * limit else self.rng.randint(1, limit)
        part, message.unsent = message.unsent[:size], message.unsent[size:]
        last = not message.unsent and message.sends_end and message.sends_trailers is None
        message.sent_end = last
        self.connection.send_data(message.stream_id, bytes(part), end_stream=last, pad_length=pad)
        return False

    def receive(self, data: bytes) -> None:
        """Pass frames one by one: the library applies acknowledged settings only to the next chunk."""
        for part in whole_frames(data):
            if part[3] == GOAWAY:  # the library would close all streams
                self.goaway_received = goaway_in(part[HEADER_SIZE:])
                continue
            for event in self.connection.receive_data(part):
                self._handle(event)
        for message in self.messages.values():
            self.pump(message)

    def _handle(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=stream, headers=fields, stream_ended=end):
                self.messages[stream] = Message(stream)
                self.messages[stream].ended = end is not None
                self.messages[stream].headers.append(list(fields))
                self.on_request(self.messages[stream])
            case h2.events.ResponseReceived(stream_id=stream, headers=fields):
                self.messages[stream].headers.append(list(fields))
            case h2.events.InformationalResponseReceived(stream_id=stream, headers=fields):
                self.messages[stream].headers.append(list(fields))
            case h2.events.TrailersReceived(stream_id=stream, headers=fields):
                self.messages[stream].trailers = list(fields)
            case h2.events.DataReceived(stream_id=stream, data=data, flow_controlled_length=size):
                self.messages[stream].body += data
                self._unread.append((stream, size))
                self.resume_reading()
            case h2.events.StreamEnded(stream_id=stream):
                self.messages[stream].ended = True
                self.on_complete(self.messages[stream])
            case h2.events.StreamReset(stream_id=stream, error_code=code):
                self.messages[stream].reset = int(code)
            case h2.events.SettingsAcknowledged():
                self._changing = False

    def resume_reading(self) -> None:
        """Acknowledge received DATA while ``reading`` is set."""
        if not self.reading:
            return
        unread, self._unread = self._unread, []
        for stream, size in unread:
            if size:
                self.connection.acknowledge_received_data(size, stream)


class Bed:
    """A caller, one or two upstreams and the relay; ``settle`` moves bytes until none are left."""

    def __init__(
        self,
        *,
        limits: Limits = LIMITS,
        images: bool = False,
        attach: bool = True,
        rng: random.Random | None = None,
        hooked: Callable[[bytes], bool] = lambda path: path == HOOKED,
        budget: HeldBudget | None = None,
    ) -> None:
        self.rng = rng
        self.relay = Relay(hooked, has_image_service=images, limits=limits, budget=budget)
        self.caller = Endpoint(client=True, rng=rng)
        self.upstreams = {Peer.RUNTIME: Endpoint(client=False, rng=rng)}
        if images:
            self.upstreams[Peer.IMAGES] = Endpoint(client=False, rng=rng)
        self.events: list[RelayEvent] = []
        if attach:
            for peer in self.upstreams:
                self.relay.attach(peer)

    @property
    def runtime(self) -> Endpoint:
        return self.upstreams[Peer.RUNTIME]

    def settle(self) -> list[RelayEvent]:
        """Move all bytes and return the events emitted meanwhile."""
        before = len(self.events)
        while self._move():
            pass
        return self.events[before:]

    def _move(self) -> bool:
        moved = False
        attached = self.relay.flow_controls().keys()
        for peer, endpoint in [(Peer.CLIENT, self.caller), *self.upstreams.items()]:
            if peer not in attached:
                continue
            for chunk in self._chunks(endpoint.connection.data_to_send()):
                moved = True
                self.relay.receive(peer, chunk)
                self.events += self.relay.events()
            data = self.relay.data_to_send(peer)
            if data:
                moved = True
                endpoint.receive(data)
        self.events += self.relay.events()
        return moved

    def _chunks(self, data: bytes) -> Iterable[bytes]:
        if self.rng is None or not data:
            return [data] if data else []
        cuts = sorted(self.rng.randrange(len(data) + 1) for _ in range(self.rng.randrange(4)))
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]

    def held_requests(self) -> list[RequestHeld]:
        return [event for event in self.events if isinstance(event, RequestHeld)]

    def held_responses(self) -> list[ResponseHeld]:
        return [event for event in self.events if isinstance(event, ResponseHeld)]

    def closed_streams(self) -> list[StreamClosed]:
        return [event for event in self.events if isinstance(event, StreamClosed)]

    def needed_upstreams(self) -> list[UpstreamNeeded]:
        return [event for event in self.events if isinstance(event, UpstreamNeeded)]

    def check_balanced(self) -> None:
        """Assert that every window and count has its initial value at both ends of each connection."""
        assert self.relay.streams == 0
        assert self.relay.held_bytes == 0
        endpoints = {Peer.CLIENT: self.caller, **self.upstreams}
        for peer, flow_control in self.relay.flow_controls().items():
            connection = endpoints[peer].connection
            assert flow_control.streams == {}
            assert flow_control.unread_bytes == 0
            assert flow_control.is_full
            assert flow_control.receive_window == connection.outbound_flow_control_window
            assert flow_control.send_window == connection.inbound_flow_control_window
            assert connection.open_inbound_streams == connection.open_outbound_streams == 0


def whole_frames(data: bytes) -> Iterator[bytes]:
    """Yield frames one by one, the first with the connection preface if present."""
    at = 0
    begin = len(PREFACE) if data.startswith(PREFACE) else 0
    while at < len(data):
        stop = at + begin + HEADER_SIZE + int.from_bytes(data[at + begin : at + begin + 3])
        yield data[at:stop]
        at, begin = stop, 0


def answer_all(endpoint: Endpoint, body: bytes = b"answer", trailers: Fields | None = None) -> None:
    """Make an upstream respond to each request once it is complete."""
    endpoint.on_complete = lambda message: endpoint.send(message, ANSWER, body, trailers=trailers or OK)


def never_indexed(name: bytes, value: bytes) -> NeverIndexedHeaderTuple:
    return NeverIndexedHeaderTuple(name, value)


def grpc_status(message: Message) -> bytes:
    """Return the gRPC status that a caller received."""
    return dict(message.trailers or message.fields).get(b"grpc-status", b"none")


def outcomes(bed: Bed) -> list[Outcome]:
    """Return the outcomes of the closed streams."""
    return [event.outcome for event in bed.closed_streams()]
