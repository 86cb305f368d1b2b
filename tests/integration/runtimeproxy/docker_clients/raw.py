"""HTTP/1.1 messages byte by byte, for requests that no client library sends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from testbed.docker.engine import ANSWER_WITHIN_S, connected

END = b"\r\n\r\n"


class Response(NamedTuple):
    """A response, whose body is without its framing."""

    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def message(self) -> str:
        """The message of an error."""
        return str(json.loads(self.body)["message"])


class RawConnection:
    """One connection to a daemon or a proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *parts: bytes) -> None:
        """Send bytes."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def head(self) -> Response:
        """Return the next response without its body."""
        async with asyncio.timeout(ANSWER_WITHIN_S):
            first, *lines = (await self.reader.readuntil(END))[: -len(END)].decode().split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Response(int(first.split()[1]), fields, b"")

    async def response(self) -> Response:
        """Return the next response."""
        head = await self.head()
        async with asyncio.timeout(ANSWER_WITHIN_S):
            if head.fields.get("transfer-encoding") == "chunked":
                return head._replace(body=b"".join([chunk async for chunk in self._chunks()]))
            return head._replace(body=await self.reader.readexactly(int(head.fields.get("content-length", "0"))))

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)

    async def is_closed(self) -> bool:
        """Wait for bytes or the end of the connection, and return whether it has ended."""
        async with asyncio.timeout(ANSWER_WITHIN_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


@asynccontextmanager
async def raw_connection(socket: Path) -> AsyncIterator[RawConnection]:
    """Connect, and close at the end."""
    async with connected(socket) as (reader, writer):
        yield RawConnection(reader, writer)


def request(line: str, body: bytes = b"", *fields: str) -> bytes:
    """Return a request with a Content-Length if it has a body."""
    length = [f"Content-Length: {len(body)}"] if body else []
    lines = [f"{line} HTTP/1.1", "Host: docker", "Content-Type: application/json", *length, *fields]
    return "\r\n".join(lines).encode() + END + body


def chunked(body: bytes, size: int) -> bytes:
    """Return a body in chunks."""
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def container(image: str, **more: Any) -> bytes:
    """Return the body that creates an idle container."""
    return json.dumps({"Image": image, "Cmd": ["-c", "exec sleep 100000"], **more}).encode()
