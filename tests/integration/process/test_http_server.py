"""The HTTP server on a Unix socket: streamed parts and disconnects. Requests and limits are in ``test_health``."""

import asyncio
import http
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from governor.process.telemetry.http_server import HttpServer, Response, Target, text_response
from testbed.waiting import until

TIMEOUT_S = 10.0


class Source:
    """Parts that a test sends, and the number of open streams."""

    def __init__(self) -> None:
        self.parts: asyncio.Queue[bytes] = asyncio.Queue()
        self.streams = 0

    async def handle(self, target: Target) -> Response:
        if target.path != "/parts":
            return text_response(http.HTTPStatus.NOT_FOUND, f"{target.query}\n")
        return Response(http.HTTPStatus.OK, "text/plain", parts=self._parts())

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        self.streams += 1
        try:
            while part := await self.parts.get():
                yield part
        finally:
            self.streams -= 1


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[Source]:
    source = Source()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.setblocking(False)
        server = asyncio.create_task(HttpServer("test", listener, source.handle, exchange_timeout_s=TIMEOUT_S).run())
        try:
            yield source
            assert not server.done(), "the server stopped"
        finally:
            server.cancel()
            with pytest.raises(asyncio.CancelledError):
                await server


def _request(method: str, target: str) -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def test_parts_are_streamed_until_they_end(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as source, asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(_request("GET", "/parts"))
        head = await reader.readuntil(b"\r\n\r\n")
        source.parts.put_nowait(b"one")
        first = await reader.readuntil(b"one\r\n")
        source.parts.put_nowait(b"two")
        source.parts.put_nowait(b"")
        rest = await reader.read()
        writer.close()
    assert b"transfer-encoding: chunked" in head.lower()
    assert (first, rest) == (b"3\r\none\r\n", b"3\r\ntwo\r\n0\r\n\r\n")
    assert source.streams == 0


async def test_a_disconnect_closes_an_idle_stream(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as source, asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(_request("GET", "/parts"))
        await reader.readuntil(b"\r\n\r\n")

        async def streams(count: int) -> bool:
            return source.streams == count

        await until(lambda: streams(1))
        writer.close()
        await until(lambda: streams(0))


async def test_head_sends_no_parts(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as source, asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(_request("HEAD", "/parts") + _request("GET", "/elsewhere?a=1&b=%2F"))
        responses = await reader.readuntil(b"{'a': '1', 'b': '/'}\n")
        writer.close()
    assert responses.count(b"HTTP/1.1 200") == responses.count(b"HTTP/1.1 404") == 1
    assert source.streams == 0


async def test_a_paused_server_finishes_requests_and_accepts_none_until_it_resumes(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        listener.setblocking(False)
        source = Source()
        server = HttpServer("test", listener, source.handle)
        running = asyncio.create_task(server.run())
        try:
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            writer.write(_request("GET", "/parts"))
            await reader.readuntil(b"\r\n\r\n")
            server.pause()
            waiting, waiting_writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            waiting_writer.write(_request("GET", "/"))
            source.parts.put_nowait(b"")
            assert await reader.read() == b"0\r\n\r\n"
            assert not await _is_readable(waiting)

            await server.resume()

            assert b"404" in await waiting.readline()
            writer.close()
            waiting_writer.close()
        finally:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running


async def _is_readable(reader: asyncio.StreamReader) -> bool:
    """Return whether anything was received after all ready callbacks have run."""
    for _ in range(20):
        await asyncio.sleep(0)
    return not reader.at_eof() and bool(reader._buffer)  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_post_is_served_on_demand(tmp_path: Path, is_allowed: bool) -> None:
    async def handle(target: Target) -> Response:
        return text_response(http.HTTPStatus.OK, f"{target.path} {target.is_post}")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        listener.setblocking(False)
        running = asyncio.create_task(HttpServer("test", listener, handle, allow_post=is_allowed).run())
        try:
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            writer.write(b"POST /act HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            response = await reader.read()
            writer.close()
        finally:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
    assert (b"/act True" in response, b"405" in response) == (is_allowed, not is_allowed)
