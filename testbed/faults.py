"""A TCP proxy in front of a plain HTTP/1.1 server that can break what passes: cut, stall, duplicate, swap, refuse.

It knows just enough of HTTP to see the chunks of an event stream one by one; everything else passes as it is. The
faults are named after what the client sees of the server.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Self

_HEAD_BYTES = 64 * 1024


class FaultProxy:
    """Stands before one server on loopback while it is open; faults may be turned on and off at any time."""

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.gone = False
        """Connections that are made while this is set are reset at once."""
        self.duplicating = False
        """Each event is sent twice."""
        self.swapping = False
        """Events go out in pairs, the later one first; a first one waits for its second."""
        self.holding = False
        """Whether a first event waits for its second."""
        self.connections = 0
        """How many connections were taken so far."""
        self.events: list[bytes] = []
        """The event chunks that went out, in their order; comments are not among them."""
        self._open: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None, "it is not open"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """What a client is told in place of the server's address."""
        return f"http://127.0.0.1:{self.port}"

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

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
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
            with suppress(OSError):
                await self._connect(reader, writer)
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream_port, limit=_HEAD_BYTES)
        self._open.add(up_writer)
        ways = [asyncio.create_task(self._ask(reader, up_writer)), asyncio.create_task(self._answer(up_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.discard(up_writer)
            up_writer.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._pass(writer, data)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await self._pass(writer, head)
                fields = _fields(head)
                if fields.get(b"content-type", b"").startswith(b"text/event-stream"):
                    await self._stream(reader, writer)
                else:
                    await self._pass(writer, await reader.readexactly(int(fields.get(b"content-length", b"0"))))

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held: bytes | None = None
        async for chunk in _chunks(reader):
            if b"\ndata:" not in chunk:
                await self._pass(writer, chunk)
                continue
            if self.swapping and held is None:
                held, self.holding = chunk, True
                continue
            out, held, self.holding = [chunk] if held is None else [chunk, held], None, False
            for each in out:
                await self._send_event(writer, each)

    async def _send_event(self, writer: asyncio.StreamWriter, chunk: bytes) -> None:
        for _ in range(2 if self.duplicating else 1):
            await self._pass(writer, chunk)
            self.events.append(chunk)

    async def _pass(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        await self._flowing.wait()
        writer.write(data)
        await writer.drain()


def _fields(head: bytes) -> dict[bytes, bytes]:
    lines = head.split(b"\r\n")[1:]
    parted = (line.partition(b":") for line in lines if line)
    return {name.strip().lower(): value.strip() for name, _, value in parted}


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The chunks of a body with their framing, the last one too; the server sends each event as one chunk."""
    size = -1
    while size != 0:
        line = await reader.readuntil(b"\r\n")
        size = int(line, 16)
        yield line + await reader.readexactly(size + 2)
