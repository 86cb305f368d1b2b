"""The base class of the test bed's proxies, which by default listen on loopback and can make connections fail.

Faults are named after what the client observes. Subclasses decide what is read and passed on; the HTTP/1.1 parsing
that several of them need is here.
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
    """A proxy in front of a server, open within ``async with``; faults can be switched at any time."""

    def __init__(self, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.unavailable = False
        """While set, new connections are reset at once."""
        self.connections = 0
        """The number of connections accepted so far."""
        self._tls = tls
        self._host = host
        self._open: set[asyncio.StreamWriter] = set()
        self._blackholed: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None

    @abstractmethod
    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; it is closed on return."""

    @property
    def port(self) -> int:
        """The port."""
        assert self._server is not None, "the proxy is not open"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"{'https' if self._tls else 'http'}://{self._host}:{self.port}"

    def cut(self) -> None:
        """Reset all open connections, possibly within a message."""
        for writer in self._open:
            writer.transport.abort()

    def stall(self) -> None:
        """Hold all data back in both directions; connections stay open."""
        self._flowing.clear()

    def resume(self) -> None:
        """End a stall and pass on the data held back."""
        self._flowing.set()

    def blackhole(self) -> None:
        """Drop all further data on the connections that are open now; later connections work."""
        self._blackholed |= self._open

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, 0, limit=HEAD_BYTES, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        self.resume()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.unavailable:
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self.handle(reader, writer)
            await _close(writer)
        finally:
            self._forget(writer)

    async def relay(self, upstream: asyncio.StreamWriter, *directions: Coroutine[Any, Any, None]) -> None:
        """Run both directions of a connection until one of them ends, then close the upstream connection."""
        self._open.add(upstream)
        tasks = [asyncio.create_task(direction) for direction in directions]
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
        self._blackholed.discard(writer)
        writer.transport.abort()

    async def send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Pass data on, subject to the faults."""
        await self._flowing.wait()
        if writer in self._blackholed:
            await asyncio.Event().wait()
        writer.write(data)
        await writer.drain()

    async def copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass all data on unchanged until end of file."""
        while data := await reader.read(65536):
            await self.send(writer, data)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Flush and close; a client that does not read delays this for a limited time only."""
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_CLOSE_WITHIN_S):
            await writer.wait_closed()


async def read_head(reader: asyncio.StreamReader) -> bytes:
    """Read the head of the next message, including the empty line."""
    return await reader.readuntil(b"\r\n\r\n")


def fields(head: bytes) -> dict[bytes, bytes]:
    """Return the header fields, with lower-case names."""
    lines = head.split(b"\r\n")[1:]
    parts = (line.partition(b":") for line in lines if line)
    return {name.strip().lower(): value.strip() for name, _, value in parts}


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the chunks of a body with their framing, including the last one; servers send each event as one chunk."""
    size = -1
    while size != 0:
        line = await reader.readuntil(b"\r\n")
        size = int(line, 16)
        yield line + await reader.readexactly(size + 2)


async def body(reader: asyncio.StreamReader, head: bytes) -> AsyncIterator[bytes]:
    """Yield the body that follows a head, in pieces that can be passed on."""
    header = fields(head)
    if header.get(b"transfer-encoding") == b"chunked":
        async for chunk in chunks(reader):
            yield chunk
    elif length := int(header.get(b"content-length", b"0")):
        yield await reader.readexactly(length)
