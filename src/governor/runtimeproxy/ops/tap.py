"""``tap``, the proxy's side: publishes ended calls to readers. The command's side is ``tap_view``.

For a reader that is too slow, lines are dropped and counted; calls never wait for a reader.
"""

import asyncio
import datetime
import time
from collections.abc import AsyncGenerator, Callable
from typing import Final, Protocol

import msgspec

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.cri.subjects import decode_subject
from governor.runtimeproxy.grpc import status_codes
from governor.runtimeproxy.grpc.framing import unwrap
from governor.runtimeproxy.http2.events import RequestData, StreamClosed, StreamOpened
from governor.runtimeproxy.ops.control import CallFilter, Subject, TapCall, TapDropped, TapLine, TapOpened, Trail
from governor.runtimeproxy.store.records import Records

_QUEUE_LINES: Final = 1024
_MAX_READERS: Final = 8
_MAX_MESSAGE_BYTES: Final = 64 * 1024
"""A longer request is shown without its subject."""


class Tap:
    """All readers of calls; ``changed`` is called when the first reader opens the tap and when the last one closes it.

    It returns the number of connections that it retired.
    """

    def __init__(self) -> None:
        self.changed: Callable[[], int] = lambda: 0
        self._readers: set[_Reader] = set()

    @property
    def is_open(self) -> bool:
        """Return whether there are readers."""
        return bool(self._readers)

    @property
    def readers(self) -> int:
        """Return the number of readers."""
        return len(self._readers)

    def publish(self, call: TapCall) -> None:
        """Send an ended call to all readers."""
        for reader in self._readers:
            reader.put(call)

    def check_capacity(self) -> None:
        """Raise EXHAUSTED if there are too many readers for one more."""
        if len(self._readers) >= _MAX_READERS:
            raise GovernorError(Kind.EXHAUSTED, "taps", f"{_MAX_READERS} taps are already open; close one of them")

    async def lines(self, call_filter: CallFilter) -> AsyncGenerator[bytes, None]:
        """Yield calls as they end, as lines of JSON, until closed."""
        reader = _Reader(call_filter)
        self._readers.add(reader)
        try:
            yield _encode(TapOpened(self.changed() if len(self._readers) == 1 else 0))
            while True:
                yield await reader.next()
        finally:
            self._readers.discard(reader)
            if not self._readers:
                self.changed()


class _Reader:
    """Queue of one reader, and the number of calls dropped since it last read."""

    def __init__(self, call_filter: CallFilter) -> None:
        self._filter = call_filter
        self._queue: list[bytes] = []
        self._dropped = 0
        self._ready = asyncio.Event()

    def put(self, call: TapCall) -> None:
        if not self._filter.selects(call):
            return
        if len(self._queue) < _QUEUE_LINES:
            self._queue.append(_encode(call))
        else:
            self._dropped += 1
        self._ready.set()

    async def next(self) -> bytes:
        await self._ready.wait()
        self._ready.clear()
        lines, self._queue = self._queue, []
        dropped, self._dropped = self._dropped, 0
        return b"".join([*lines, *([_encode(TapDropped(dropped))] if dropped else ())])


def _encode(line: TapLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"


class HeldCall(Protocol):
    """A held call, as far as the tap reads it."""

    started: float
    subject: Subject

    def trail(self) -> Trail:
        """Return the plugins' part in the call."""


class ConnectionTap:
    """Streams of one connection while the tap is open."""

    def __init__(self, tap: Tap, records: Records) -> None:
        self._tap = tap
        self._records = records
        self._streams: dict[int, _Stream] = {}

    @property
    def is_idle(self) -> bool:
        """Return whether a stream that ends concerns no reader."""
        return not (self._tap.is_open or self._streams)

    def opened(self, event: StreamOpened) -> None:
        """Start a stream."""
        self._streams[event.stream_id] = _Stream(dict(event.fields).get(b"grpc-encoding", b"").decode(errors="replace"))

    def received(self, event: RequestData) -> None:
        """Add a part of a stream's request."""
        stream = self._streams.get(event.stream_id)
        if stream is not None and len(stream.body) <= _MAX_MESSAGE_BYTES:
            stream.body += event.data

    def ended(self, event: StreamClosed, held: HeldCall | None) -> None:
        """Publish a stream that has ended."""
        stream = self._streams.pop(event.stream_id, None)
        if self._tap.is_open:
            self._tap.publish(self._call(event, stream, held))

    def _call(self, event: StreamClosed, stream: "_Stream | None", held: HeldCall | None) -> TapCall:
        now, path = time.time(), event.path.decode(errors="replace")
        started = stream.started if stream is not None else held.started if held is not None else None
        return TapCall(
            time=datetime.datetime.fromtimestamp(started or now, datetime.UTC),
            path=path,
            outcome=event.outcome.value,
            status=status_codes.name_of(event.grpc_status),
            # The wall clock may have been set back.
            seconds=None if started is None else max(0.0, now - started),
            subject=held.subject if held is not None else self._subject(path, stream),
            held=held is not None,
            trail=None if held is None else held.trail(),
        )

    def _subject(self, path: str, stream: "_Stream | None") -> Subject:
        if stream is None or len(stream.body) > _MAX_MESSAGE_BYTES:
            return Subject()
        try:
            message = unwrap(bytes(stream.body), stream.encoding)
        except GovernorError:
            return Subject()
        return decode_subject(path.rpartition("/")[2], message, self._records)


class _Stream:
    __slots__ = ("body", "encoding", "started")

    def __init__(self, encoding: str) -> None:
        self.started = time.time()
        self.encoding = encoding
        self.body = bytearray()
