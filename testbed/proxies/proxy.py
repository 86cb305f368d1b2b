"""What all proxies of the test bed have in common: they listen on loopback, and connections can be made to fail.

The faults are named after what the client sees of the server. What a proxy reads and passes on is the subclass's
business; below are the few parts of HTTP/1.1 that more than one of them reads.
"""

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, Self

HEAD_BYTES = 64 * 1024
_CLOSE_WITHIN_S = 20.0


class Proxy(ABC):
    """Stands before a server while it is open; faults may be turned on and off at any time."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.gone = False
        """Connections that are made while this is set are reset at once."""
        self.connections = 0
        """How many connections were taken so far."""
        self._tls = tls
        self._open: set[asyncio.StreamWriter] = set()
        self._silent: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None

    @abstractmethod
    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it is to be closed."""

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None, "it is not open"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """What a client is told in place of the server's address."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def is_connected(self) -> bool:
        """Whether a client is connected now."""
        return bool(self._open)

    def cut(self) -> None:
        """Reset all connections, in the middle of whatever passes."""
        for writer in self._open:
            writer.transport.abort()

    def stall(self) -> None:
        """Let nothing pass any more in either direction; connections stay open."""
        self._flowing.clear()

    def flow(self) -> None:
        """End a stall; what waited goes out."""
        self._flowing.set()

    def silence(self) -> None:
        """Let nothing pass any more on the connections that are open now, for good; later ones work."""
        self._silent |= self._open

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=HEAD_BYTES, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        self.flow()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.gone:
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self.handle(reader, writer)
            await _close(writer)
        finally:
            self._forget(writer)

    async def couple(self, upstream: asyncio.StreamWriter, *ways: Coroutine[Any, Any, None]) -> None:
        """Run the ways of one connection until one of them ends, and close the server's side of it."""
        self._open.add(upstream)
        tasks = [asyncio.create_task(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._forget(upstream)
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        self._silent.discard(writer)
        writer.transport.abort()

    async def send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Pass on, unless a fault forbids it."""
        await self._flowing.wait()
        if writer in self._silent:
            await asyncio.Event().wait()
        writer.write(data)
        await writer.drain()

    async def copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass everything on as it is until its end."""
        while data := await reader.read(65536):
            await self.send(writer, data)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Let out what was written; a client that does not take it must not hold anybody up."""
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_CLOSE_WITHIN_S):
            await writer.wait_closed()


async def read_head(reader: asyncio.StreamReader) -> bytes:
    """The head of the next message, with the empty line that ends it."""
    return await reader.readuntil(b"\r\n\r\n")


def fields(head: bytes) -> dict[bytes, bytes]:
    """The fields of a head, their names in small letters."""
    lines = head.split(b"\r\n")[1:]
    parted = (line.partition(b":") for line in lines if line)
    return {name.strip().lower(): value.strip() for name, _, value in parted}


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The chunks of a body with their framing, the last one too; servers send each event as one chunk."""
    size = -1
    while size != 0:
        line = await reader.readuntil(b"\r\n")
        size = int(line, 16)
        yield line + await reader.readexactly(size + 2)


async def body(reader: asyncio.StreamReader, head: bytes) -> AsyncIterator[bytes]:
    """The body that follows a head, in the pieces in which it may be passed on."""
    described = fields(head)
    if described.get(b"transfer-encoding") == b"chunked":
        async for chunk in chunks(reader):
            yield chunk
    elif length := int(described.get(b"content-length", b"0")):
        yield await reader.readexactly(length)
