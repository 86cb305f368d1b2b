"""A proxy in front of a plain HTTP/1.1 server that cuts, stalls or refuses connections, and duplicates or swaps events.

It parses only the chunks of event streams; everything else passes unchanged.
"""

import asyncio

from testbed.proxies.proxy import HEAD_BYTES, Proxy, body, chunks, fields, read_head


class FaultProxy(Proxy):
    """A proxy in front of one server on loopback; faults can be switched at any time."""

    def __init__(self, upstream_port: int) -> None:
        super().__init__()
        self.upstream_port = upstream_port
        self.duplicating = False
        """Whether each event is sent twice."""
        self.swapping = False
        """Whether events are sent in pairs, the later one first; the first of a pair is held for the second."""
        self.holding = False
        """Whether the first event of a pair is held."""
        self.events: list[bytes] = []
        """The event chunks sent, in order, without comments."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass requests unchanged, and apply the faults to responses."""
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream_port, limit=HEAD_BYTES)
        await self.relay(up_writer, self.copy(reader, up_writer), self._pass_responses(up_reader, writer))

    async def _pass_responses(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
