"""Bytes between clients and the daemon: what passes unchanged, what is refused, and who waits for whom."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from testbed.cri.fixtures import MakeDirectory
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.docker.engine import connected
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import StartProxy
from tests.integration.runtimeproxy.docker.bed import DOCKER_MODE
from tests.integration.runtimeproxy.docker.daemon import EMPTY, Script, ScriptedDaemon

Front = Callable[[Script], Awaitable[RuntimeProxy]]
HEAD = b"GET /info HTTP/1.1\r\nHost: docker\r\n"


@pytest.fixture
async def front(peer_directory: MakeDirectory, start_proxy: StartProxy):  # type: ignore[no-untyped-def]
    """Yield a function that starts a proxy in front of a scripted daemon."""
    async with AsyncExitStack() as stack:

        async def start(script: Script) -> RuntimeProxy:
            directory: Path = peer_directory()
            directory.mkdir(exist_ok=True)
            daemon = await stack.enter_async_context(ScriptedDaemon(directory, script))
            return await start_proxy(daemon.socket, DOCKER_MODE)

        yield start


async def exchanged(proxy: RuntimeProxy, data: bytes) -> bytes:
    """Send bytes on a new connection, and return all that comes until the proxy closes it."""
    async with connected(proxy.socket) as (reader, writer):
        writer.write(data)
        return await reader.read()


async def test_bytes_pass_untouched_in_both_directions(front: Front) -> None:
    received: list[bytes] = []
    answer = b"HTTP/1.1 299 Odd reason\r\nx-ODD:  spaced \r\nTransfer-Encoding: chunked\r\n\r\n"
    answer += b"3;ext=1\r\nabc\r\n0\r\nT: 1\r\n\r\n"

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readexactly(len(request)))
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer)
        received.append(await reader.readexactly(len(second)))
        writer.write(EMPTY)

    request = (
        b"POST /v1.41/unknown/%7Ething?x=1&x=2 HTTP/1.1\r\nhOsT: docker\r\nX-Unknown:\tvalue \r\nX-Unknown: \xff\r\n"
        b"Transfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n00\r\nTrailer: x\r\n\r\n"
    )
    second = b"DELETE /networks/x HTTP/1.1\r\nHost: docker\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    proxy = await front(script)

    answered = await exchanged(proxy, request + second)

    assert received == [request, second]
    assert answered == b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer + EMPTY


@pytest.mark.parametrize("sent", [HEAD + b"\r\n", b""], ids=["late", "never"])
async def test_a_connection_accepted_before_the_end_may_send_its_first_request(front: Front, sent: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(EMPTY)

    proxy = await front(script)
    async with connected(proxy.socket) as (reader, writer):

        async def is_accepted() -> bool:
            return await proxy.metric('governor_proxy_connections{mode="relayed"}') == 1

        async def is_draining() -> bool:
            return not proxy.socket.exists()

        await until(is_accepted)
        os.kill(proxy.pid, signal.SIGTERM)
        await until(is_draining)
        writer.write(sent)
        assert await reader.read() == (EMPTY if sent else b"")


AMBIGUOUS = [
    HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n",
    HEAD + b"Content-Length: 3, 3\r\n\r\n",
    HEAD + b"Content-Length: +3\r\n\r\n",
    HEAD + b"Content-Length: -3\r\n\r\n",
    HEAD + b"Content-Length : 3\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    HEAD + b"Transfer-Encoding: xchunked\r\n\r\n",
    HEAD + b"X: a\r\n folded\r\n\r\n",
    HEAD + b"X: a\nY: b\r\n\r\n",
    HEAD + b"X: a\rb\r\n\r\n",
    HEAD + b"X: a\x00b\r\n\r\n",
    HEAD + b": empty\r\n\r\n",
    HEAD + b"no colon\r\n\r\n",
    HEAD.replace(b"\r\n", b"\n") + b"\n",
    b"\r\n" + HEAD + b"\r\n",
    b"GET  /info HTTP/1.1\r\n\r\n",
    b"GET /info HTTP/1.1 \r\n\r\n",
    b"GET /in fo HTTP/1.1\r\n\r\n",
    b"GET /info HTTP/2.0\r\n\r\n",
    b"GET /info\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /info HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
]


async def test_an_ambiguous_head_is_refused_and_never_forwarded(front: Front) -> None:
    received = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1))

    proxy = await front(script)
    for head in AMBIGUOUS:
        answered = await exchanged(proxy, head + b"GET /smuggled HTTP/1.1\r\nHost: docker\r\n\r\n")

        status, _, body = answered.partition(b"\r\n\r\n")
        assert status.startswith(b"HTTP/1.1 400 Bad Request\r\n"), head
        assert json.loads(body)["message"].startswith("malformed HTTP head: "), head
    assert [each for each in received if each] == []


async def test_a_malformed_chunk_ends_both_connections_before_what_follows_it(front: Front) -> None:
    received = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())

    request = b"POST /build HTTP/1.1\r\nHost: d\r\nTransfer-Encoding: chunked\r\n\r\n"
    answered = await exchanged(await front(script), request + b"3\r\nabcd\r\nGET /smuggled HTTP/1.1\r\n\r\n")

    assert answered.startswith(b"HTTP/1.1 400 Bad Request")
    assert b"smuggled" not in b"".join(received)


@pytest.mark.parametrize("size", [256 * 1024 + 1, 1_000_000])
async def test_a_head_that_is_too_long_is_refused(front: Front, size: int) -> None:
    async def script(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        return

    answered = await exchanged(await front(script), HEAD + b"X: " + b"x" * size)

    assert answered.startswith(b"HTTP/1.1 431 ")


async def test_a_response_that_is_cut_off_is_cut_off_for_the_client(front: Front) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")

    answered = await exchanged(await front(script), HEAD + b"\r\n")

    assert answered == b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"


async def test_no_response_is_an_error_and_the_proxy_serves_on(front: Front) -> None:
    async def script(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    proxy = await front(script)
    for _ in range(2):
        answered = await exchanged(proxy, HEAD + b"\r\n")
        assert answered.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
        assert "closed the connection without a response" in json.loads(answered.partition(b"\r\n\r\n")[2])["message"]


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\nX: y\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"]
)
async def test_an_unusable_response_is_an_error_of_the_gateway(front: Front, answer: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    answered = await exchanged(await front(script), HEAD + b"\r\n")

    assert answered.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert b"its response is unusable" in answered


async def test_bytes_after_a_response_are_not_taken_for_the_next_one(front: Front) -> None:
    connections = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(await reader.readuntil(b"\r\n\r\n"))
        surplus = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad" if len(connections) == 1 else b""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + surplus)
        await reader.read()

    async with connected((await front(script)).socket) as (reader, writer):
        for _ in range(2):
            writer.write(HEAD + b"\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"Content-Length: 2" in head
            assert await reader.readexactly(2) == b"ok"

    assert len(connections) == 2


async def test_a_response_before_the_end_of_the_request_reaches_the_client(front: Front) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    request = b"POST /build HTTP/1.1\r\nHost: d\r\nContent-Length: 100000000\r\n\r\n" + b"x" * 1000
    assert (await exchanged(await front(script), request)).startswith(b"HTTP/1.1 413 ")


async def test_each_part_of_a_stream_arrives_before_the_next_one_is_sent(front: Front) -> None:
    arrived = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            writer.write(b"1\r\nx\r\n")
            await arrived.wait()
            arrived.clear()
        writer.write(b"0\r\n\r\n")

    async with connected((await front(script)).socket) as (reader, writer):
        writer.write(HEAD.replace(b"/info", b"/events") + b"\r\n")
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(20):
            assert await reader.readexactly(6) == b"1\r\nx\r\n"
            arrived.set()
        assert await reader.readexactly(5) == b"0\r\n\r\n"


@pytest.mark.parametrize("sender", ["daemon", "client"])
async def test_a_peer_that_does_not_read_stops_the_other(front: Front, sender: str) -> None:
    total, chunk, sent = 64 * 2**20, bytes(2**16), [0]
    reads = asyncio.Event()

    async def send(writer: asyncio.StreamWriter) -> None:
        while sent[0] < total:
            writer.write(chunk)
            await writer.drain()
            sent[0] += len(chunk)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if sender == "daemon":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
            await send(writer)
        else:
            await reads.wait()
            await reader.readexactly(total)
            writer.write(EMPTY)

    proxy = await front(script)
    async with connected(proxy.socket) as (reader, writer):
        size = total if sender == "client" else 0
        writer.write(b"POST /images/load HTTP/1.1\r\nHost: d\r\nContent-Length: %d\r\n\r\n" % size)
        sending = asyncio.create_task(send(writer)) if sender == "client" else None
        before = -1

        async def stands_still() -> bool:
            nonlocal before
            before, last = sent[0], before
            return bool(last == sent[0] > 0)

        await until(stands_still, every_s=0.3)
        assert sent[0] < 8 * 2**20
        reads.set()
        if sending is not None:
            await sending
            assert await reader.readuntil(b"\r\n\r\n") == EMPTY
        else:
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(total)
    assert proxy.resident_bytes() < 80 * 2**20


@pytest.mark.parametrize(
    ("more", "answer"),
    [
        (b"Connection: Upgrade\r\nUpgrade: tcp\r\n", b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\n\r\n"),
        (b"", b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n"),
    ],
)
@pytest.mark.parametrize("first", ["client", "daemon"])
async def test_a_hijacked_connection_is_closed_in_each_direction_on_its_own(
    front: Front, more: bytes, answer: bytes, first: str
) -> None:
    seen: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if first == "client":
            seen.append(await reader.read())
            writer.write(b"after your end")
        else:
            writer.write(b"all")
            writer.write_eof()
            seen.append(await reader.read())

    async with connected((await front(script)).socket) as (reader, writer):
        head = b"POST /v1.41/containers/my.app-1/attach?stream=1 HTTP/1.1\r\nHost: d\r\nContent-Length: 0\r\n"
        writer.write(head + more + b"\r\nsent before the answer, ")
        assert await reader.readuntil(b"\r\n\r\n") == answer
        if first == "client":
            writer.write(b"and after")
            writer.write_eof()
            assert await reader.read() == b"after your end"
        else:
            assert await reader.read() == b"all"
            writer.write(b"and after")
            writer.write_eof()
            await until(lambda: _true(bool(seen)))

    assert seen == [b"sent before the answer, and after"]


async def _true(value: bool) -> bool:
    return value


async def test_a_client_that_goes_ends_the_stream_of_the_daemon(front: Front) -> None:
    ended = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        await reader.read()
        ended.set()

    proxy = await front(script)
    async with connected(proxy.socket) as (reader, writer):
        writer.write(HEAD.replace(b"/info", b"/containers/x/logs?follow=1") + b"\r\n")
        await reader.readuntil(b"x\r\n")

    await ended.wait()
    await proxy.wait_for_metric("governor_proxy_streams", 0)
