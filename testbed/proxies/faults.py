"""A proxy in front of a plain HTTP/1.1 server that can break what passes: cut, stall, duplicate, swap, refuse.

It knows just enough of HTTP to see the chunks of an event stream one by one; everything else passes as it is.
"""

import asyncio

from testbed.proxies.proxy import HEAD_BYTES, Proxy, body, chunks, fields, read_head


class FaultProxy(Proxy):
    """Stands before one server on loopback while it is open; faults may be turned on and off at any time."""

    def __init__(self, upstream_port: int) -> None:
        super().__init__()
        self.upstream_port = upstream_port
        self.duplicating = False
        """Each event is sent twice."""
        self.swapping = False
        """Events go out in pairs, the later one first; a first one waits for its second."""
        self.holding = False
        """Whether a first event waits for its second."""
        self.events: list[bytes] = []
        """The event chunks that went out, in their order; comments are not among them."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests as they are, answers looked into."""
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream_port, limit=HEAD_BYTES)
        await self.couple(up_writer, self.copy(reader, up_writer), self._answer(up_reader, writer))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await read_head(reader)
            await self.send(writer, head)
            if fields(head).get(b"content-type", b"").startswith(b"text/event-stream"):
                await self._stream(reader, writer)
            else:
                async for piece in body(reader, head):
                    await self.send(writer, piece)

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held: bytes | None = None
        async for chunk in chunks(reader):
            if b"\ndata:" not in chunk:
                await self.send(writer, chunk)
                continue
            if self.swapping and held is None:
                held, self.holding = chunk, True
                continue
            out, held, self.holding = [chunk] if held is None else [chunk, held], None, False
            for each in out:
                await self._send_event(writer, each)

    async def _send_event(self, writer: asyncio.StreamWriter, chunk: bytes) -> None:
        for _ in range(2 if self.duplicating else 1):
            await self.send(writer, chunk)
            self.events.append(chunk)
