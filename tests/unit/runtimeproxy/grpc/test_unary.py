"""Unary calls against servers of the `h2` library, some of which violate the protocol."""

import asyncio
import contextlib
import gc
import gzip
import os
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import pytest

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.grpc import unary
from governor.runtimeproxy.grpc.framing import MESSAGE_LIMIT_BYTES, wrap
from governor.runtimeproxy.grpc.unary import UnaryClient
from governor.runtimeproxy.http2.frames import GOAWAY, RST_STREAM, frame
from testbed.waiting import until

METHOD = "/plugin.Hooks/PreRun"
ANSWER = [(b":status", b"200"), (b"content-type", b"application/grpc")]
OK = [(b"grpc-status", b"0")]


class ServerSide(asyncio.Protocol):
    """One server connection and its requests; ``respond`` answers each complete request."""

    def __init__(self, respond: "Respond", settings: dict[h2.settings.SettingCodes, int]) -> None:
        self.respond = respond
        self.settings = settings
        config = h2.config.H2Configuration(client_side=False, header_encoding=None)
        self.connection = h2.connection.H2Connection(config)
        self.fields: dict[int, list[tuple[bytes, bytes]]] = {}
        self.bodies: dict[int, bytes] = {}
        self.resets: list[tuple[int, int]] = []
        self.ping_acks: list[bytes] = []
        self.max_concurrent = 0
        self.lost = False
        self._unsent: dict[int, bytes] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        # Set at once: single settings are not sent with the preface, but count as acknowledged.
        self.connection.local_settings = h2.settings.Settings(client=False, initial_values=self.settings)
        self.connection.initiate_connection()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def data_received(self, data: bytes) -> None:
        for event in self.connection.receive_data(data):
            self._handle(event)
        for stream in list(self._unsent):
            self._send(stream)
        self.flush()

    def _handle(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=stream, headers=fields):
                self.fields[stream] = [(bytes(name), bytes(value)) for name, value in fields]
                self.bodies[stream] = b""
                self.max_concurrent = max(self.max_concurrent, self.connection.open_inbound_streams)
            case h2.events.DataReceived(stream_id=stream, data=data, flow_controlled_length=size):
                self.bodies[stream] += data
                self.connection.acknowledge_received_data(size, stream)
            case h2.events.StreamEnded(stream_id=stream):
                self.respond(self, stream)
            case h2.events.PingAckReceived(ping_data=data):
                self.ping_acks.append(data)
            case h2.events.StreamReset(stream_id=stream, error_code=code):
                self.resets.append((stream, int(code)))
                self._unsent.pop(stream, None)

    def answer(self, stream: int, body: bytes, trailers: list[tuple[bytes, bytes]] | None = None) -> None:
        self.connection.send_headers(stream, ANSWER)
        self._unsent[stream] = body
        self.trailers = trailers or OK
        self._send(stream)
        self.flush()

    def _send(self, stream: int) -> None:
        while self._unsent[stream]:
            size = min(self.connection.local_flow_control_window(stream), self.connection.max_outbound_frame_size)
            if size <= 0:
                return
            self.connection.send_data(stream, self._unsent[stream][:size])
            self._unsent[stream] = self._unsent[stream][size:]
        self.connection.send_headers(stream, self.trailers, end_stream=True)
        del self._unsent[stream]

    def flush(self) -> None:
        self.transport.write(self.connection.data_to_send())

    def write(self, data: bytes) -> None:
        """Write raw bytes past the library."""
        self.flush()
        self.transport.write(data)


Respond = Callable[[ServerSide, int], None]


def echo(side: ServerSide, stream: int) -> None:
    side.answer(stream, side.bodies[stream])


def hang(side: ServerSide, stream: int) -> None:
    """Never answer."""


def status(*fields: tuple[bytes, bytes]) -> Respond:
    return lambda side, stream: side.answer(stream, b"", list(fields))


class Bed:
    """A server, all its connections, and the client."""

    def __init__(self, path: Path) -> None:
        self.path = str(path / "s")
        self.client = UnaryClient(self.path, "the plugin")
        self.respond: Respond = echo
        self.settings: dict[h2.settings.SettingCodes, int] = {}
        self.sides: list[ServerSide] = []

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(self._accept, self.path)
        try:
            yield
        finally:
            server.close()
            for side in self.sides:
                side.transport.close()
            self.client.close()

    def _accept(self) -> ServerSide:
        self.sides.append(ServerSide(self._respond, self.settings))
        return self.sides[-1]

    def _respond(self, side: ServerSide, stream: int) -> None:
        self.respond(side, stream)

    async def call(self, message: bytes = b"ask", *, timeout_s: float = 30.0) -> bytes:
        return await self.client.call(METHOD, message, timeout_s=timeout_s, metadata=[(b"traceparent", b"00-1")])

    async def call_fails(self, *, timeout_s: float = 30.0) -> GovernorError:
        with pytest.raises(GovernorError) as raised:
            await self.call(timeout_s=timeout_s)
        return raised.value


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    bed = Bed(tmp_path)
    async with bed.serving():
        yield bed


async def test_calls_share_a_connection_and_arrive_with_their_metadata(bed: Bed) -> None:
    assert await bed.call(b"one") == b"one"
    assert await bed.call(b"two", timeout_s=15) == b"two"

    assert len(bed.sides) == 1
    fields = dict(bed.sides[0].fields[3])
    assert fields[b":path"] == METHOD.encode()
    assert fields[b"grpc-timeout"] == b"15000m"
    assert fields[b"traceparent"] == b"00-1"
    assert bed.client.connected


async def test_pings_of_an_idle_server_are_acknowledged(bed: Bed) -> None:
    await bed.call()
    [side] = bed.sides
    for number in range(3):
        side.connection.ping(b"number %d" % number)
        side.flush()

        async def is_acknowledged(sent: int = number) -> bool:
            return side.ping_acks == [b"number %d" % each for each in range(sent + 1)]

        await until(is_acknowledged)


@pytest.mark.parametrize(("window", "size"), [(1000, 300_000), (65_535, 5_000_000), (1_000_000, 3_000_000)])
async def test_messages_larger_than_windows_are_sent_both_ways(bed: Bed, window: int, size: int) -> None:
    bed.settings = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
    message = os.urandom(size)

    assert await bed.call(message) == message
    assert await bed.call(message[:10]) == message[:10]


async def test_concurrent_calls_share_windows_and_get_their_own_answers(bed: Bed) -> None:
    messages = [bytes([number]) * 100_000 for number in range(20)]

    assert await asyncio.gather(*map(bed.call, messages)) == messages


async def test_concurrent_calls_respect_the_servers_limit(bed: Bed) -> None:
    bed.settings = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 2}
    messages = [b"%d" % number for number in range(30)]

    assert await asyncio.gather(*map(bed.call, messages)) == messages
    assert bed.sides[0].max_concurrent == 2


async def test_a_call_that_times_out_in_the_queue_is_never_sent(bed: Bed) -> None:
    bed.settings = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 1}
    bed.respond = hang
    first = asyncio.create_task(bed.call())
    await until(lambda: _has(bed, requests=1))

    assert (await bed.call_fails(timeout_s=0.05)).kind is Kind.DEADLINE
    bed.sides[0].answer(1, wrap(b"late"))

    assert await first == b"late"
    bed.respond = echo
    assert await bed.call(b"next") == b"next"
    assert list(bed.sides[0].fields) == [1, 3]


async def test_a_call_that_times_out_is_reset(bed: Bed) -> None:
    await bed.call()  # connects, which takes time too
    bed.respond = hang

    error = await bed.call_fails(timeout_s=0.1)

    assert error.kind is Kind.DEADLINE
    assert "the plugin did not respond within 0.1 s" in error.message
    bed.respond = echo
    assert await bed.call(b"next") == b"next"
    assert bed.sides[0].resets == [(3, h2.errors.ErrorCodes.CANCEL)]


async def test_a_late_answer_to_a_reset_call_is_ignored(bed: Bed) -> None:
    late: list[ServerSide] = []
    await bed.call()
    bed.respond = lambda side, stream: late.append(side)
    await bed.call_fails(timeout_s=0.1)
    bed.respond = echo
    # The server has not received the reset: a response, DATA and trailers for stream 3 from another encoder's table.
    late[0].write(bytes.fromhex("000001010400000003880000050000000000030000000000"))

    assert await bed.call(b"next") == b"next"


@pytest.mark.parametrize(
    ("trailers", "kind", "message"),
    [
        ([(b"grpc-status", b"7"), (b"grpc-message", b"no %C3%BC")], Kind.DENIED, "no ü"),
        ([(b"grpc-status", b"14")], Kind.UNAVAILABLE, "gRPC status 14"),
        ([(b"grpc-status", b"123456789")], Kind.INTERNAL, "gRPC status 123456789"),
    ],
)
async def test_an_error_status_is_raised_with_its_message(
    bed: Bed, trailers: list[tuple[bytes, bytes]], kind: Kind, message: str
) -> None:
    bed.respond = status(*trailers)

    error = await bed.call_fails()

    assert (error.kind, error.code, error.message) == (kind, "grpc-status", message)


@pytest.mark.parametrize(
    "trailer", [(b"other", b"1"), (b"grpc-status", b""), (b"grpc-status", b"-1"), (b"grpc-status", b"9" * 5000)]
)
async def test_an_answer_without_a_valid_status_is_an_internal_error(bed: Bed, trailer: tuple[bytes, bytes]) -> None:
    bed.respond = status(trailer)

    error = await bed.call_fails()

    assert (error.kind, error.code) == (Kind.INTERNAL, "no-status")


async def test_a_trailers_only_response_is_a_status(bed: Bed) -> None:
    bed.respond = lambda side, stream: side.connection.send_headers(
        stream, [*ANSWER, (b"grpc-status", b"5")], end_stream=True
    )

    assert (await bed.call_fails()).kind is Kind.NOT_FOUND


async def test_an_http_error_status_is_raised(bed: Bed) -> None:
    bed.respond = lambda side, stream: side.connection.send_headers(stream, [(b":status", b"503")], end_stream=True)

    assert "HTTP status 503" in (await bed.call_fails()).message


async def test_interim_responses_are_skipped(bed: Bed) -> None:
    def respond(side: ServerSide, stream: int) -> None:
        side.connection.send_headers(stream, [(b":status", b"103")])
        echo(side, stream)

    bed.respond = respond

    assert await bed.call(b"after all") == b"after all"


async def test_a_compressed_answer_is_decompressed(bed: Bed) -> None:
    packed = gzip.compress(b"long " * 100)

    def respond(side: ServerSide, stream: int) -> None:
        side.connection.send_headers(stream, [*ANSWER, (b"grpc-encoding", b"gzip")])
        side.connection.send_data(stream, b"\1" + len(packed).to_bytes(4) + packed)
        side.connection.send_headers(stream, OK, end_stream=True)

    bed.respond = respond

    assert await bed.call() == b"long " * 100


async def test_an_oversized_answer_is_rejected_and_other_calls_continue(bed: Bed) -> None:
    bed.respond = lambda side, stream: side.answer(stream, bytes(MESSAGE_LIMIT_BYTES + 3_000_000))

    assert (await bed.call_fails()).code == "answer-size"
    bed.respond = echo
    assert await bed.call(b"next") == b"next"
    assert bed.sides[0].resets == [(1, h2.errors.ErrorCodes.CANCEL)]


async def test_oversized_answers_are_not_kept_in_memory(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unary, "_BODY_LIMIT_BYTES", 1_000_000)
    bed.respond = lambda side, stream: side.answer(stream, bytes(1_500_000))
    await bed.call_fails()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(4):
            assert (await bed.call_fails()).code == "answer-size"
        kept = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, unary.__file__)])
    finally:
        tracemalloc.stop()
        gc.enable()

    assert sum(each.size for each in kept.traces) < 1_000_000


async def test_an_answer_before_the_request_is_complete_counts(bed: Bed) -> None:
    bed.settings = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0}
    call = asyncio.create_task(bed.call())
    await until(lambda: _has(bed, requests=1))
    bed.sides[0].answer(1, wrap(b"early"))

    assert await call == b"early"
    await until(lambda: _has(bed, requests=1, resets=1))


@pytest.mark.parametrize(
    "trailing",
    [
        pytest.param(frame(RST_STREAM, 0, 1, bytes(4)), id="reset"),
        pytest.param(frame(GOAWAY, 0, 0, bytes(8)), id="goaway"),
        pytest.param(frame(GOAWAY, 0, 1, bytes(8)), id="invalid frame"),
    ],
)
async def test_a_complete_answer_counts_whatever_frame_follows_it(bed: Bed, trailing: bytes) -> None:
    def answer(side: ServerSide, stream: int) -> None:
        side.connection.send_headers(stream, ANSWER)
        side.connection.send_data(stream, wrap(b"whole"))
        side.connection.send_headers(stream, OK, end_stream=True)
        side.transport.write(side.connection.data_to_send() + trailing)

    bed.respond = answer
    async with bed.serving():
        assert await bed.call() == b"whole"


async def test_the_client_reconnects_at_once_to_a_restarted_server(bed: Bed) -> None:
    await bed.call()
    # Closed already, but the client's event loop has not noticed it yet.
    bed.sides[0].transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    assert await bed.call(b"again") == b"again"
    assert [list(side.fields) for side in bed.sides] == [[1], [1]]


@pytest.mark.parametrize("calls", [1, 3])
async def test_a_call_that_was_sent_is_not_sent_again_when_the_connection_is_lost(bed: Bed, calls: int) -> None:
    """The plugin may have executed it."""
    await bed.call()
    bed.respond = hang
    begun = [asyncio.create_task(bed.call_fails()) for _ in range(calls)]
    await until(lambda: _has(bed, requests=1 + calls))
    bed.respond = echo
    bed.sides[0].transport.abort()

    errors = await asyncio.gather(*begun)

    assert {(error.kind, error.code) for error in errors} == {(Kind.UNAVAILABLE, "connection-lost")}
    assert len(bed.sides) == 1


async def test_a_queued_call_is_sent_on_another_connection_when_the_first_is_lost(bed: Bed) -> None:
    bed.settings = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 1}
    await bed.call()
    bed.respond = hang
    begun = asyncio.create_task(bed.call_fails())
    await until(lambda: _has(bed, requests=2))
    waiting = asyncio.create_task(bed.call(b"waiting"))
    await asyncio.sleep(0)
    bed.respond = echo
    bed.sides[0].transport.abort()

    assert await waiting == b"waiting"
    assert (await begun).code == "connection-lost"
    assert [list(side.fields) for side in bed.sides] == [[1, 3], [1]]


async def test_a_new_connection_that_is_closed_is_not_retried(bed: Bed) -> None:
    bed.respond = lambda side, stream: side.transport.abort()

    error = await bed.call_fails()

    assert (error.kind, error.code) == (Kind.UNAVAILABLE, "connection-lost")
    assert len(bed.sides) == 1


async def test_a_missing_server_is_unreachable(tmp_path: Path) -> None:
    error = await Bed(tmp_path).call_fails()

    assert (error.kind, error.code) == (Kind.UNAVAILABLE, "unreachable")


async def test_after_goaway_open_calls_complete_and_new_ones_use_another_connection(bed: Bed) -> None:
    bed.respond = hang
    begun = asyncio.create_task(bed.call())
    await until(lambda: _has(bed, requests=1))
    # Raw GOAWAY with last stream id 1: the library would close all streams.
    bed.sides[0].write(bytes.fromhex("0000080700000000000000000100000000"))
    await until(lambda: _is(not bed.client.connected))
    bed.respond = echo

    assert await bed.call(b"new") == b"new"
    bed.sides[0].answer(1, wrap(b"old"))
    assert await begun == b"old"
    assert [list(side.fields) for side in bed.sides] == [[1], [1]]
    await until(lambda: _is(bed.sides[0].lost))


async def test_a_queued_call_is_retried_on_another_connection_after_goaway(bed: Bed) -> None:
    bed.settings = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 1}
    await bed.call()
    bed.respond = hang
    begun = asyncio.create_task(bed.call())
    await until(lambda: _has(bed, requests=2))
    waiting = asyncio.create_task(bed.call(b"waiting"))
    await asyncio.sleep(0)
    bed.respond = echo
    # GOAWAY with last stream id 3.
    bed.sides[0].write(bytes.fromhex("0000080700000000000000000300000000"))

    assert await waiting == b"waiting"
    bed.sides[0].answer(3, wrap(b"begun"))
    assert await begun == b"begun"
    assert [list(side.fields) for side in bed.sides] == [[1, 3], [1]]


async def test_a_call_after_the_last_stream_id_is_retried_on_another_connection(bed: Bed) -> None:
    await bed.call()

    def leave(side: ServerSide, _stream: int) -> None:
        bed.respond = echo
        side.write(bytes.fromhex("0000080700000000000000000100000000"))

    bed.respond = leave

    assert await bed.call(b"twice") == b"twice"
    assert [list(side.fields) for side in bed.sides] == [[1, 3], [1]]


async def test_a_refused_stream_is_retried(bed: Bed) -> None:
    await bed.call()

    def refuse(side: ServerSide, stream: int) -> None:
        bed.respond = echo
        side.connection.reset_stream(stream, h2.errors.ErrorCodes.REFUSED_STREAM)

    bed.respond = refuse

    assert await bed.call(b"again") == b"again"
    assert bed.sides[0].fields.keys() == {1, 3, 5}


async def test_a_stream_refused_twice_is_not_retried_again(bed: Bed) -> None:
    await bed.call()
    bed.respond = lambda side, stream: side.connection.reset_stream(stream, h2.errors.ErrorCodes.REFUSED_STREAM)

    error = await bed.call_fails()

    assert (error.kind, error.code) == (Kind.UNAVAILABLE, "connection-lost")
    assert bed.sides[0].fields.keys() == {1, 3, 5}


async def test_a_reset_call_is_not_retried(bed: Bed) -> None:
    await bed.call()
    bed.respond = lambda side, stream: side.connection.reset_stream(stream, h2.errors.ErrorCodes.INTERNAL_ERROR)

    error = await bed.call_fails()

    assert (error.kind, error.code) == (Kind.UNAVAILABLE, "call-reset")
    assert bed.sides[0].fields.keys() == {1, 3}


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param("000001000000000001ff", id="data-before-headers"),
        pytest.param("00000101040000000188 000001010400000001 88", id="trailers-without-end-stream"),
        pytest.param("000001010400000001ff", id="undecodable-headers"),
        pytest.param("ffffff000000000001", id="oversized-frame"),
        pytest.param("000004080000000000 7fffffff", id="window-beyond-the-maximum"),
        pytest.param("000005050400000001 0000000288", id="push"),
        pytest.param("485454502f312e3120343030204261642052657175657374", id="http1"),
    ],
)
async def test_a_servers_protocol_error_is_raised(bed: Bed, frames: str) -> None:
    bed.respond = lambda side, stream: side.write(bytes.fromhex(frames))

    error = await bed.call_fails()

    assert (error.kind, error.code) == (Kind.INTERNAL, "http2")
    assert "the plugin does not speak HTTP/2: " in error.message
    bed.respond = echo
    assert await bed.call(b"next") == b"next"


async def test_calls_fail_when_the_client_is_closed(bed: Bed) -> None:
    bed.respond = hang
    call = asyncio.create_task(bed.call_fails())
    await until(lambda: _has(bed, requests=1))
    bed.client.close()

    assert (await call).kind is Kind.UNAVAILABLE
    assert not bed.client.connected


async def _has(bed: Bed, requests: int, resets: int = 0) -> bool:
    return [(len(side.fields), len(side.resets)) for side in bed.sides] == [(requests, resets)]


async def _is(condition: bool) -> bool:
    return condition
