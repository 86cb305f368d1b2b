"""A peer in dockerd's place that does what dockerd cannot be made to do: it shows and sends exact bytes."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from testbed.server import short_socket

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


class ScriptedDaemon:
    """A listening socket; each connection runs the script and is closed."""

    def __init__(self, directory: Path, script: Script) -> None:
        self.socket = short_socket(directory / "scripted.sock")
        self._script = script
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self.socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            self.connections += 1
            await self._script(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
