"""A plugin of the runtime proxy that breaks every rule: it answers with whatever bytes a test wants.

Well-behaved ones, and those that only hang, crash or refuse, are ``HookPlugin``.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.exceptions
from hpack import Encoder
from hyperframe.frame import ContinuationFrame, DataFrame, Frame, HeadersFrame

FRAME_BYTES = 16384

Fields = Sequence[tuple[str, str]]
HEAD: Fields = ((":status", "200"), ("content-type", "application/grpc"))
DONE: Fields = (("grpc-status", "0"),)


class Asked:
    """One question, and the connection on which it came."""

    def __init__(self, stream: int, protocol: h2.connection.H2Connection, writer: asyncio.StreamWriter) -> None:
        self.stream = stream
        self.given_up = asyncio.Event()
        """The caller has reset the stream."""
        self.window_grew = asyncio.Event()
        self._protocol = protocol
        self._writer = writer
        self._spent = 0

    async def write(self, *frames: Frame | bytes) -> None:
        """Send frames, or bytes that are none, as fast as they are read."""
        for frame in frames:
            self._writer.write(frame if isinstance(frame, bytes) else frame.serialize())
            await self._writer.drain()

    async def write_within_windows(self, data: bytes) -> None:
        """Send DATA when the caller has room for it, unless it gives up."""
        while self._protocol.local_flow_control_window(self.stream) - self._spent < len(data):
            self.window_grew.clear()
            await self.window_grew.wait()
            if self.given_up.is_set():
                return
        self._spent += len(data)
        await self.write(*self.data(data))

    def break_off(self) -> None:
        """End the connection at once."""
        self._writer.transport.abort()

    def head(self, fields: Fields = HEAD) -> Frame:
        """The beginning of an answer."""
        return HeadersFrame(self.stream, _encoded(fields), flags=["END_HEADERS"])

    def data(self, *parts: bytes) -> Iterator[Frame]:
        """Bytes of an answer, in frames that are not too large."""
        whole = b"".join(parts)
        for at in range(0, len(whole), FRAME_BYTES):
            yield DataFrame(self.stream, whole[at : at + FRAME_BYTES])

    def end(self, fields: Fields = DONE) -> Frame:
        """The end of an answer."""
        return HeadersFrame(self.stream, _encoded(fields), flags=["END_HEADERS", "END_STREAM"])

    def more_fields(self) -> Frame:
        """A part of a header block that does not end."""
        return ContinuationFrame(self.stream, _encoded([("x-more", "y" * 8000)]))

    async def answer(self, message: bytes) -> None:
        """A whole and proper answer."""
        await self.write(self.head(), *self.data(b"\0", len(message).to_bytes(4), message), self.end())


Act = Callable[[Asked], Awaitable[None]]


class RudePlugin:
    """Does ``act`` with each question; ``asked`` are all that came."""

    def __init__(self, socket: Path, act: Act) -> None:
        self.socket = socket
        self.act = act
        self.asked: list[Asked] = []
        self.connections = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve; afterwards all connections are closed."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            ended: list[asyncio.Task[None]] = []

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                ended.append(tasks.create_task(self._serve(reader, writer)))

            server = await asyncio.start_unix_server(serve, str(self.socket))
            try:
                yield
            finally:
                server.close()
                for task in ended:
                    task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        protocol = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        protocol.initiate_connection()
        mine: dict[int, Asked] = {}
        try:
            # Who is told nonsense may well end with what our side takes for nonsense.
            with suppress(ConnectionError, h2.exceptions.ProtocolError):
                while True:
                    writer.write(protocol.data_to_send())
                    data = await reader.read(65536)
                    if not data:
                        return
                    for event in protocol.receive_data(data):
                        self._handle(event, protocol, mine, writer)
        finally:
            writer.transport.abort()

    def _handle(
        self,
        event: h2.events.Event,
        protocol: h2.connection.H2Connection,
        mine: dict[int, Asked],
        writer: asyncio.StreamWriter,
    ) -> None:
        if isinstance(event, h2.events.StreamEnded):
            asked = mine[event.stream_id or 0] = Asked(event.stream_id or 0, protocol, writer)
            self.asked.append(asked)
            self._tasks.create_task(self._answer(asked))
        elif isinstance(event, h2.events.StreamReset) and event.stream_id in mine:
            mine[event.stream_id].given_up.set()
        for each in mine.values():
            each.window_grew.set()

    async def _answer(self, asked: Asked) -> None:
        with suppress(ConnectionError):
            await self.act(asked)


def _encoded(fields: Fields) -> bytes:
    """Without a table, so that frames may be left out."""
    return Encoder().encode([(name.encode(), value.encode()) for name, value in fields], huffman=False)
