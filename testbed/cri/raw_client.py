"""A client of a runtime that sends arbitrary HTTP/2 frames, valid or not, and reads only on request."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from hpack import Encoder
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, SettingsFrame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER_BYTES = 9


class RawClient:
    """One connection; ``received`` are the frames read so far."""

    def __init__(self, reader: asyncio.StreamReader, out: socket.socket) -> None:
        self._reader = reader
        self._out = out
        self._encoder = Encoder()
        self.received: list[Frame] = []

    async def send_preface(self, settings: dict[int, int] | None = None) -> None:
        """Send the connection preface."""
        await self.send(PREFACE, SettingsFrame(0, settings or {}))

    async def send(self, *frames: Frame | bytes) -> None:
        """Send frames or arbitrary bytes; the peer may have closed the connection."""
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            for frame in frames:
                await loop.sock_sendall(self._out, frame if isinstance(frame, bytes) else frame.serialize())

    def request(
        self, stream: int, method: str, flags: Sequence[str] = ("END_HEADERS",), more: Iterable[tuple[str, str]] = ()
    ) -> Frame:
        """Return the HEADERS frame that starts a call of the runtime service."""
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/runtime.v1.RuntimeService/{method}"),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *more,
        ]
        return HeadersFrame(stream, self._encoder.encode(fields), flags=list(flags))

    @staticmethod
    def message(stream: int, message: bytes = b"") -> Frame:
        """Return the DATA frame with a call's only message, which ends the stream."""
        return DataFrame(stream, b"\0" + len(message).to_bytes(4) + message, flags=["END_STREAM"])

    async def read(self) -> Frame | None:
        """Return the next frame, or None once the connection is closed."""
        try:
            header = await self._reader.readexactly(_HEADER_BYTES)
            frame, length = Frame.parse_frame_header(memoryview(header))
            frame.parse_body(memoryview(await self._reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self.received.append(frame)
        return frame

    async def read_until_closed(self) -> int | None:
        """Read until the connection is closed, and return the GOAWAY error code, if any."""
        code = None
        while (frame := await self.read()) is not None:
            if isinstance(frame, GoAwayFrame):
                code = frame.error_code
        return code

    async def last_bytes(self) -> bytes:
        """Read until the connection is closed without parsing frames, and return the last bytes."""
        last = b""
        with suppress(ConnectionError):
            while data := await self._reader.read(1 << 20):
                last = (last + data)[-1000:]
        return last


@asynccontextmanager
async def raw_client(address: Path) -> AsyncIterator[RawClient]:
    """Connect to a socket; at the end the connection is reset."""
    with socket.socket(socket.AF_UNIX) as out:
        # asyncio reports a socket as connected even if the server's backlog is full.
        await asyncio.to_thread(out.connect, str(address))
        out.setblocking(False)
        # Writes bypass the stream: after a failed write it would discard what was received before.
        reader, writer = await asyncio.open_unix_connection(sock=out.dup())
        try:
            yield RawClient(reader, out)
        finally:
            writer.transport.abort()
