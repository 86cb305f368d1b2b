"""The small HTTP server on a Unix socket: parts as they come, and a client that leaves; more in test_process_health."""

import asyncio
import http
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from governor.process.telemetry.http_server import Answer, HttpServer, Target, text_answer
from testbed.waiting import until

PATIENCE_S = 10.0


class Source:
    """Parts that a test says, and whether anybody wants them."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[bytes] = asyncio.Queue()
        self.readers = 0

    async def answer(self, target: Target) -> Answer:
        if target.path != "/parts":
            return text_answer(http.HTTPStatus.NOT_FOUND, f"{target.query}\n")
        return Answer(http.HTTPStatus.OK, "text/plain", parts=self._parts())

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        self.readers += 1
        try:
            while part := await self.said.get():
                yield part
        finally:
            self.readers -= 1


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[Source]:
    source = Source()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.setblocking(False)
        server = asyncio.create_task(HttpServer("test", listener, source.answer, exchange_s=PATIENCE_S).run())
        try:
            yield source
            assert not server.done(), "the server did not survive"
        finally:
            server.cancel()
            with pytest.raises(asyncio.CancelledError):
                await server


def _asked(method: str, target: str) -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def test_parts_arrive_as_they_come_and_end(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as source, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(_asked("GET", "/parts"))
        head = await reader.readuntil(b"\r\n\r\n")
        source.said.put_nowait(b"one")
        first = await reader.readuntil(b"one\r\n")
        source.said.put_nowait(b"two")
        source.said.put_nowait(b"")
        rest = await reader.read()
        writer.close()
    assert b"transfer-encoding: chunked" in head.lower()
    assert (first, rest) == (b"3\r\none\r\n", b"3\r\ntwo\r\n0\r\n\r\n")
    assert source.readers == 0


async def test_a_client_that_leaves_ends_the_parts_though_none_come(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as source, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(_asked("GET", "/parts"))
        await reader.readuntil(b"\r\n\r\n")

        async def readers(count: int) -> bool:
            return source.readers == count

        await until(lambda: readers(1))
        writer.close()
        await until(lambda: readers(0))


async def test_only_the_head_of_parts_is_told_if_only_that_is_wanted(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as source, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(_asked("HEAD", "/parts") + _asked("GET", "/elsewhere?a=1&b=%2F"))
        answers = await reader.readuntil(b"{'a': '1', 'b': '/'}\n")
        writer.close()
    assert answers.count(b"HTTP/1.1 200") == answers.count(b"HTTP/1.1 404") == 1
    assert source.readers == 0
