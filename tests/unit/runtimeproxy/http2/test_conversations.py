"""Random conversations through the relay: concurrent calls are held, rewritten, refused, cancelled and reset, while
peers change their settings and stop reading. What is not changed arrives as it was sent, no peer sees a protocol error,
and in the end every window and count has its initial value."""

import random
from collections.abc import Callable
from unittest.mock import patch

import h2.settings
import pytest
from h2.windows import WindowManager
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from governor.runtimeproxy.grpc.framing import wrap
from governor.runtimeproxy.http2.connection import Limits
from governor.runtimeproxy.http2.events import RequestHeld, ResponseHeld
from governor.runtimeproxy.http2.header_blocks import Fields
from tests.unit.runtimeproxy.http2.bed import ANSWER, HOOKED, IMAGES, OK, PLAIN, Bed, Endpoint, Message, request_fields

SIZES = (0, 1, 5, 100, 16_384, 16_385, 65_535, 65_536, 200_000)
ROOMY = Limits(stream_window=65_535, connection_window=65_535, max_held_response=max(SIZES))
BAD: Fields = [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-status", b"5")]
EARLY: Fields = [*ANSWER, (b"grpc-status", b"8")]
Code = h2.settings.SettingCodes


_CONSUME = WindowManager.window_consumed


def _consume(windows: WindowManager, size: int) -> None:
    """Allow empty DATA on a stream with a negative window, as RFC 9113 does and the library does not."""
    if size:
        _CONSUME(windows, size)


class Call:
    """One call: its random plan and its result."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.path = rng.choice((PLAIN, HOOKED, HOOKED, IMAGES))
        # A held message must announce its size, or its first bytes could announce another one.
        body = rng.randbytes(rng.choice(SIZES))
        self.body = wrap(body) if self.path == HOOKED else body
        self.fields = request_fields(self.path, (b"number", b"%d" % number), (b"grpc-timeout", b"%dm" % number))
        self.trailers = [(b"checksum", b"1")] if rng.random() < 0.1 else None
        self.answer = rng.randbytes(rng.choice(SIZES))
        self.manner = rng.choice(("unary", "unary", "status only", "reset", "early", "interim", "plain"))
        self.rewritten = rng.randbytes(rng.choice(SIZES)) if rng.random() < 0.4 else None
        self.refused = rng.random() < 0.2
        self.holds_response = rng.random() < 0.4
        self.refuses_response = rng.random() < 0.2
        self.cancelled = False
        self.message: Message | None = None
        self.seen: Message | None = None

    @property
    def hooked(self) -> bool:
        return self.path == HOOKED

    def check(self) -> None:
        """Assert that each peer received what the other sent."""
        assert self.message is not None
        if self.cancelled:
            return
        if self.hooked and self.refused:
            assert dict(self.message.fields)[b"grpc-status"] == b"7"
            assert self.seen is None
            return
        assert self.seen is not None
        assert self.seen.fields == self.fields
        if self.manner != "early":
            assert self.seen.trailers == self.trailers
            assert bytes(self.seen.body) == (self.sent if self.manner != "reset" else bytes(self.seen.body))
        self._check_answer(self.message)

    @property
    def sent(self) -> bytes:
        return self.rewritten if self.hooked and self.rewritten is not None else self.body

    def _check_answer(self, message: Message) -> None:
        if self.manner == "reset":
            assert message.reset == 2
        elif self.hooked and self.holds_response and self.refuses_response:
            assert dict(message.fields)[b"grpc-status"] == b"9"
        elif self.manner in {"status only", "early"}:
            assert (message.fields, bytes(message.body)) == (BAD if self.manner == "status only" else EARLY, b"")
        else:
            assert (message.fields, bytes(message.body)) == (ANSWER, self.answer)
            assert message.trailers == (None if self.manner == "plain" else OK)
            assert len(message.headers) == (2 if self.manner == "interim" else 1)


class Conversation:
    """Calls between one caller and two upstreams, driven by one rng."""

    def __init__(self, seed: int, calls: int) -> None:
        self.rng = random.Random(seed)
        self.bed = Bed(images=True, rng=self.rng, limits=ROOMY)
        self.calls = [Call(number, self.rng) for number in range(calls)]
        self.waiting = list(self.calls)
        self.decided: set[tuple[int, type]] = set()
        self.by_number: dict[bytes, Call] = {b"%d" % number: call for number, call in enumerate(self.calls)}
        for endpoint in self.bed.upstreams.values():
            endpoint.on_request = self._see(endpoint)
            endpoint.on_complete = self._serve(endpoint)

    def run(self) -> None:
        with patch.object(WindowManager, "window_consumed", _consume):
            self._run()

    def _run(self) -> None:
        steps: list[Callable[[], object]] = [self.open, self.decide, self.cancel, self.change, self.stall]
        while self.waiting:
            self.rng.choices(steps, weights=(3, 2, 1, 1, 1))[0]()
            for _ in range(self.rng.randrange(3)):
                self.bed._move()
        self.bed.settle()
        self.finish()

    def finish(self) -> None:
        """Let all endpoints read, with larger windows: the library withholds credit that falls due when they shrink."""
        for endpoint in self.endpoints:
            endpoint.reading = True
            endpoint.change({Code.MAX_CONCURRENT_STREAMS: 100, Code.INITIAL_WINDOW_SIZE: 2_000_000})
            endpoint.resume_reading()
        self.bed.settle()
        while self.decide():
            self.bed.settle()

    @property
    def endpoints(self) -> list[Endpoint]:
        return [self.bed.caller, *self.bed.upstreams.values()]

    def open(self) -> None:
        call = self.waiting.pop()
        ends = self.rng.random() < 0.8
        call.message = self.bed.caller.open(call.fields, call.body, trailers=call.trailers, ends=ends)
        if not ends:
            self.bed._move()
            self.bed.caller.finish(call.message)

    def _see(self, endpoint: Endpoint) -> Callable[[Message], None]:
        """Return a handler that may respond before the request is complete and reset it, as gRPC servers do."""

        def see(message: Message) -> None:
            call = self.by_number[dict(message.fields)[b"number"]]
            call.seen = message
            if call.manner == "early":
                endpoint.send(message, EARLY)
                if self.rng.random() < 0.5:
                    endpoint.cancel(message, 0)

        return see

    def _serve(self, endpoint: Endpoint) -> Callable[[Message], None]:
        def serve(message: Message) -> None:
            self._answer(endpoint, message, self.by_number[dict(message.fields)[b"number"]])

        return serve

    def _answer(self, endpoint: Endpoint, message: Message, call: Call) -> None:
        match call.manner:
            case "status only":
                endpoint.send(message, BAD)
            case "early":
                pass
            case "reset":
                endpoint.cancel(message, 2)
            case "interim":
                endpoint.connection.send_headers(message.stream_id, [(b":status", b"103")])
                endpoint.send(message, ANSWER, call.answer, trailers=OK)
            case manner:
                endpoint.send(message, ANSWER, call.answer, trailers=None if manner == "plain" else OK)

    def decide(self) -> bool:
        """Release or refuse one held message as planned; return False if there is none."""
        held = [event for event in self.bed.events if isinstance(event, RequestHeld | ResponseHeld)]
        undecided = [event for event in held if (event.stream_id, type(event)) not in self.decided]
        if not undecided:
            return False
        event = self.rng.choice(undecided)
        self.decided.add((event.stream_id, type(event)))
        call = next(
            call for call in self.calls if call.message is not None and call.message.stream_id == event.stream_id
        )
        if isinstance(event, RequestHeld):
            self._decide_request(call, event)
        elif call.refuses_response:
            assert self.bed.relay.refuse(event.stream_id, 9, "no") or call.cancelled
        else:
            self.bed.relay.release_response(event.stream_id)
        return True

    def _decide_request(self, call: Call, event: RequestHeld) -> None:
        assert event.body == call.body
        if call.refused:
            self.bed.relay.refuse(event.stream_id, 7, "no")
        else:
            self.bed.relay.release(event.stream_id, call.rewritten, hold_response=call.holds_response)

    def cancel(self) -> None:
        open_calls = [call for call in self.calls if call.message is not None and not call.message.over]
        open_calls = [
            call for call in open_calls if call.manner != "interim"
        ]  # the library fails on a late interim response
        if open_calls and self.rng.random() < 0.3:
            call = self.rng.choice(open_calls)
            assert call.message is not None
            self.bed.caller.cancel(call.message)
            call.cancelled = True

    def change(self) -> None:
        setting = self.rng.choice(
            [
                {Code.INITIAL_WINDOW_SIZE: self.rng.choice((0, 1000, 20_000, 65_535, 1_000_000))},
                {Code.MAX_FRAME_SIZE: self.rng.choice((16_384, 20_000, 2**24 - 1))},
                {Code.HEADER_TABLE_SIZE: self.rng.choice((0, 100, 4096, 65_536))},
                {Code.MAX_CONCURRENT_STREAMS: self.rng.choice((0, 1, 5, 100))},
            ]
        )
        of_upstreams = Code.MAX_CONCURRENT_STREAMS in setting
        self.rng.choice(self.endpoints[of_upstreams:]).change(setting)
        self.rng.choice(self.endpoints).connection.ping(self.rng.randbytes(8))

    def stall(self) -> None:
        endpoint = self.rng.choice(self.endpoints)
        endpoint.reading = not endpoint.reading
        endpoint.padded = self.rng.random() < 0.3
        endpoint.resume_reading()


def converse(seed: int, calls: int) -> None:
    conversation = Conversation(seed, calls)
    conversation.run()
    for call in conversation.calls:
        call.check()
    assert [endpoint.goaway_received for endpoint in conversation.endpoints] == [None] * 3
    assert sorted(event.stream_id for event in conversation.bed.closed_streams()) == [
        2 * number + 1 for number in range(calls)
    ]
    conversation.bed.check_balanced()


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), calls=st.integers(1, 30))
def test_unchanged_messages_arrive_and_all_windows_are_restored(seed: int, calls: int) -> None:
    converse(seed, calls)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_thousand_conversations_restore_all_windows() -> None:
    for seed in range(10_000):
        converse(seed, 1 + seed % 30)
