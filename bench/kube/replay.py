"""Replays recorded responses of an API server, as fast as a client can read or for a thousand clusters at once.

It responds to a GET by its path and repeats the recorded watch for ever. A connection that is idle after the get of a
ConfigMap is closed early, as load balancers do.
"""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from testbed.kube.pki import Authority, kubeconfig, put

_IDLE_TIMEOUT_S: Final = 0.1
_CONFIG_MAPS: Final = b"/configmaps/"
_WRITE_BYTES: Final = 256 * 1024


class Recording(msgspec.Struct, frozen=True):
    """Recorded responses."""

    config_map: bytes
    deployments: bytes
    """The response to a list."""
    events: tuple[bytes, ...]
    """The lines of a watch."""

    @property
    def event_bytes(self) -> int:
        """The average size of an event."""
        return sum(map(len, self.events)) // len(self.events)


class Replay:
    """Replayed clusters on loopback, each with its own port, authority, certificate and user."""

    def __init__(self, recording: Recording, directory: Path, clusters: int) -> None:
        self._recording = recording
        self._directory = directory
        self._clusters = clusters
        self._events = b"".join(map(_chunk, recording.events))
        self._servers: list[asyncio.Server] = []
        self.kubeconfigs: tuple[Path, ...] = ()

    async def __aenter__(self) -> Self:
        self.kubeconfigs = tuple([await self._start(number) for number in range(self._clusters)])
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()

    async def _start(self, number: int) -> Path:
        authority = Authority(f"cluster-{number}")
        context = authority.server_context()
        context.load_verify_locations(cadata=authority.certificate.decode())
        context.verify_mode = ssl.CERT_REQUIRED
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self._servers.append(server)
        port = server.sockets[0].getsockname()[1]
        user = authority.issue(f"user-{number}", groups=["system:masters"])
        content = kubeconfig(f"https://127.0.0.1:{port}", authority.certificate, user)
        return put(self._directory / f"cluster-{number}.kubeconfig", content)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        idle_s = None
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            while True:
                async with asyncio.timeout(idle_s):
                    head = await reader.readuntil(b"\r\n\r\n")
                target = head.split(b" ", 2)[1]
                await self._respond(target, writer)
                # Only idle clients are measured without a connection; a client that has listed goes on to watch.
                idle_s = _IDLE_TIMEOUT_S if _CONFIG_MAPS in target else None
        writer.close()

    async def _respond(self, target: bytes, writer: asyncio.StreamWriter) -> None:
        if b"watch=" in target:
            await self._stream(writer)
        body = self._recording.config_map if _CONFIG_MAPS in target else self._recording.deployments
        writer.write(_head(b"Content-Length: %d" % len(body)) + body)
        await writer.drain()

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        """Repeat the events until the client disconnects."""
        writer.write(_head(b"Transfer-Encoding: chunked"))
        while not writer.is_closing():
            for start in range(0, len(self._events), _WRITE_BYTES):
                writer.write(self._events[start : start + _WRITE_BYTES])
                await writer.drain()
                # While the socket accepts everything, drain does not suspend, and a lost connection goes unnoticed.
                await asyncio.sleep(0)


def _head(length: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n%s\r\n\r\n" % length


def _chunk(line: bytes) -> bytes:
    """Encode one event as one chunk, as the API server does."""
    return b"%x\r\n%s\n\r\n" % (len(line) + 1, line)
