"""A hook plugin that violates HTTP/2 and gRPC: a test decides which bytes it sends.

For plugins that keep to the protocol, even if they hang, crash or fail calls, use ``HookPlugin``.
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


class HookCall:
    """One hook call, and the connection on which it arrived."""

    def __init__(self, stream: int, protocol: h2.connection.H2Connection, writer: asyncio.StreamWriter) -> None:
        self.stream = stream
        self.reset = asyncio.Event()
        """Set when the caller resets the stream."""
        self.window_grew = asyncio.Event()
        self._protocol = protocol
        self._writer = writer
        self._spent = 0

    async def write(self, *frames: Frame | bytes) -> None:
        """Send frames or arbitrary bytes, as fast as the caller reads."""
        for frame in frames:
            self._writer.write(frame if isinstance(frame, bytes) else frame.serialize())
            await self._writer.drain()

    async def write_within_windows(self, data: bytes) -> None:
        """Send DATA once the flow-control windows allow it; return early if the stream is reset."""
        while self._protocol.local_flow_control_window(self.stream) - self._spent < len(data):
            self.window_grew.clear()
            await self.window_grew.wait()
            if self.reset.is_set():
                return
        self._spent += len(data)
        await self.write(*self.data(data))

    def abort(self) -> None:
        """Reset the connection."""
        self._writer.transport.abort()

    def head(self, fields: Fields = HEAD) -> Frame:
        """Return the HEADERS frame that starts a response."""
        return HeadersFrame(self.stream, _encoded(fields), flags=["END_HEADERS"])

    def data(self, *parts: bytes) -> Iterator[Frame]:
        """Yield DATA frames of at most ``FRAME_BYTES``."""
        whole = b"".join(parts)
        for at in range(0, len(whole), FRAME_BYTES):
            yield DataFrame(self.stream, whole[at : at + FRAME_BYTES])

    def end(self, fields: Fields = DONE) -> Frame:
        """Return the HEADERS frame with the trailers."""
        return HeadersFrame(self.stream, _encoded(fields), flags=["END_HEADERS", "END_STREAM"])

    def continuation(self) -> Frame:
        """Return a CONTINUATION frame that does not end the header block."""
        return ContinuationFrame(self.stream, _encoded([("x-more", "y" * 8000)]))

    async def answer(self, message: bytes) -> None:
        """Send a complete, valid response."""
        await self.write(self.head(), *self.data(b"\0", len(message).to_bytes(4), message), self.end())


Handler = Callable[[HookCall], Awaitable[None]]


class MisbehavingPlugin:
    """A plugin that passes each call to ``handler``; ``calls`` records them."""

    def __init__(self, socket: Path, handler: Handler) -> None:
        self.socket = socket
        self.handler = handler
        self.calls: list[HookCall] = []
        self.connections = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve until the context exits; then close all connections."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            connections: list[asyncio.Task[None]] = []

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                connections.append(tasks.create_task(self._serve(reader, writer)))

            server = await asyncio.start_unix_server(serve, str(self.socket))
            try:
                yield
            finally:
                server.close()
                for task in connections:
                    task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        protocol = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        protocol.initiate_connection()
        calls: dict[int, HookCall] = {}
        try:
            # After invalid frames the caller may close the connection in a way that h2 rejects.
            with suppress(ConnectionError, h2.exceptions.ProtocolError):
                while True:
                    writer.write(protocol.data_to_send())
                    data = await reader.read(65536)
                    if not data:
                        return
                    for event in protocol.receive_data(data):
                        self._handle(event, protocol, calls, writer)
        finally:
            writer.transport.abort()

    def _handle(
        self,
        event: h2.events.Event,
        protocol: h2.connection.H2Connection,
        calls: dict[int, HookCall],
        writer: asyncio.StreamWriter,
    ) -> None:
        if isinstance(event, h2.events.StreamEnded):
            call = calls[event.stream_id or 0] = HookCall(event.stream_id or 0, protocol, writer)
            self.calls.append(call)
            self._tasks.create_task(self._answer(call))
        elif isinstance(event, h2.events.StreamReset) and event.stream_id in calls:
            calls[event.stream_id].reset.set()
        for each in calls.values():
            each.window_grew.set()

    async def _answer(self, call: HookCall) -> None:
        with suppress(ConnectionError):
            await self.handler(call)


def _encoded(fields: Fields) -> bytes:
    """Encode without the dynamic table, so that a test may omit frames."""
    return Encoder().encode([(name.encode(), value.encode()) for name, value in fields], huffman=False)
