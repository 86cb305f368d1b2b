"""A caller of a runtime that keeps to no rule: it sends whatever frames a test makes up, and reads or does not."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from hpack import Encoder
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, SettingsFrame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER_BYTES = 9


class Intruder:
    """One connection; ``received`` are the frames that came, by type, as far as they were read."""

    def __init__(self, reader: asyncio.StreamReader, out: socket.socket) -> None:
        self._reader = reader
        self._out = out
        self._encoder = Encoder()
        self.received: list[Frame] = []

    async def greet(self, settings: dict[int, int] | None = None) -> None:
        """Begin as every caller does."""
        await self.send(PREFACE, SettingsFrame(0, settings or {}))

    async def send(self, *frames: Frame | bytes) -> None:
        """Send frames, or bytes that are none; the other side may have had enough of them."""
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            for frame in frames:
                await loop.sock_sendall(self._out, frame if isinstance(frame, bytes) else frame.serialize())

    def request(
        self, stream: int, method: str, flags: Sequence[str] = ("END_HEADERS",), more: Iterable[tuple[str, str]] = ()
    ) -> Frame:
        """The beginning of a call of the runtime service; its message is still to come."""
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
        """The only message of a call, and its end."""
        return DataFrame(stream, b"\0" + len(message).to_bytes(4) + message, flags=["END_STREAM"])

    async def read(self) -> Frame | None:
        """The next frame; None when there are no more."""
        try:
            header = await self._reader.readexactly(_HEADER_BYTES)
            frame, length = Frame.parse_frame_header(memoryview(header))
            frame.parse_body(memoryview(await self._reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self.received.append(frame)
        return frame

    async def read_to_the_end(self) -> int | None:
        """Read until the other side has had enough; the code with which it said so."""
        code = None
        while (frame := await self.read()) is not None:
            if isinstance(frame, GoAwayFrame):
                code = frame.error_code
        return code

    async def last_bytes(self) -> bytes:
        """Read to the end what is too much to be looked at; how it ends."""
        last = b""
        with suppress(ConnectionError):
            while data := await self._reader.read(1 << 20):
                last = (last + data)[-1000:]
        return last


@asynccontextmanager
async def intruding(place: Path) -> AsyncIterator[Intruder]:
    """A connection, which ends without a farewell."""
    with socket.socket(socket.AF_UNIX) as out:
        await asyncio.to_thread(out.connect, str(place))  # asyncio takes one for connected for which there is no room
        out.setblocking(False)
        # What is sent goes past the stream: if it failed there, nothing that came before could be read any more.
        reader, writer = await asyncio.open_unix_connection(sock=out.dup())
        try:
            yield Intruder(reader, out)
        finally:
            writer.transport.abort()
