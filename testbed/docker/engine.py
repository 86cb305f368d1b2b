"""The Docker Engine API over a Unix socket: JSON calls, and raw connections for bytes that no client sends."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from toolchain.errors import TestbedError

ANSWER_WITHIN_S = 120.0
_PING_WITHIN_S = 5.0
_VERSION = "v1.41"


class EngineError(TestbedError):
    """A response with an error status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Engine:
    """The API on one socket; each call has a connection of its own."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket

    async def __call__(self, method: str, path: str, body: Any = None, query: Mapping[str, str] | None = None) -> Any:
        """Send a request, and return the decoded response or None; raise EngineError for an error status."""
        async with asyncio.timeout(ANSWER_WITHIN_S), self.stream(method, path, body, query) as response:
            text = await response.text()
            if response.status >= 400:
                raise EngineError(response.status, text)
            return json.loads(text) if text and "json" in response.content_type else None

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, body: Any = None, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and yield the response with its body unread."""
        timeout = aiohttp.ClientTimeout(total=None)
        # As a stream: aiohttp warns of large bodies in one piece.
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        headers = {} if body is None else {"Content-Type": "application/json"}
        connector = aiohttp.UnixConnector(str(self.socket))
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.request(
                method, f"http://docker/{_VERSION}{path}", data=data, headers=headers, params=query
            ) as response,
        ):
            yield response


async def is_serving(socket: Path) -> bool:
    """Return whether a daemon serves the API on a socket."""
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(_PING_WITHIN_S), connected(socket) as (reader, writer):
            writer.write(b"GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n")
            return (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    return False


@asynccontextmanager
async def connected(socket: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a raw connection, which is closed at the end."""
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):  # the peer has closed it
            await writer.wait_closed()
