"""The live view of calls: who looks, and the streams of a connection while somebody does.

A reader that does not keep up loses lines and is told how many; no call ever waits for one.
"""

import asyncio
import datetime
import time
from collections.abc import AsyncGenerator, Callable
from typing import Final, Protocol

import msgspec

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.grpc import status_codes
from governor.runtimeproxy.grpc.framing import unwrap
from governor.runtimeproxy.hooks.subject import subject_in
from governor.runtimeproxy.http2.events import RequestData, StreamClosed, StreamOpened
from governor.runtimeproxy.ops.control import CallFilter, Line, LostCalls, SeenCall, Subject, TapOpened, Trail
from governor.runtimeproxy.store.records import Known

_WAITING_LINES: Final = 1024
_READERS: Final = 8
_MESSAGE_BYTES: Final = 64 * 1024
"""A request that is longer is shown without what it is about."""


class Tap:
    """All who look; ``changed`` is called when the first comes and when the last has gone, and says how many
    connections it retired."""

    def __init__(self) -> None:
        self.changed: Callable[[], int] = lambda: 0
        self._readers: set[_Reader] = set()

    @property
    def is_open(self) -> bool:
        """Whether anybody looks."""
        return bool(self._readers)

    @property
    def readers(self) -> int:
        """How many look."""
        return len(self._readers)

    def publish(self, call: SeenCall) -> None:
        """A call has ended."""
        for reader in self._readers:
            reader.tell(call)

    def check_room(self) -> None:
        """EXHAUSTED if so many look that one more is too many."""
        if len(self._readers) >= _READERS:
            raise GovernorError(Kind.EXHAUSTED, "taps", f"{_READERS} taps are open already; end one of them")

    async def lines(self, wanted: CallFilter) -> AsyncGenerator[bytes, None]:
        """The calls from now on, as lines of JSON, until the reader leaves."""
        reader = _Reader(wanted)
        self._readers.add(reader)
        try:
            yield _written(TapOpened(self.changed() if len(self._readers) == 1 else 0))
            while True:
                yield await reader.next()
        finally:
            self._readers.discard(reader)
            if not self._readers:
                self.changed()


class _Reader:
    """One who looks: what waits for it, and how much it has lost."""

    def __init__(self, wanted: CallFilter) -> None:
        self._wanted = wanted
        self._waiting: list[bytes] = []
        self._lost = 0
        self._told = asyncio.Event()

    def tell(self, call: SeenCall) -> None:
        if not self._wanted.selects(call):
            return
        if len(self._waiting) < _WAITING_LINES:
            self._waiting.append(_written(call))
        else:
            self._lost += 1
        self._told.set()

    async def next(self) -> bytes:
        await self._told.wait()
        self._told.clear()
        lines, self._waiting = self._waiting, []
        lost, self._lost = self._lost, 0
        return b"".join([*lines, *([_written(LostCalls(lost))] if lost else ())])


def _written(line: Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


class HeldCall(Protocol):
    """What is known of a call that was held."""

    began: float
    subject: Subject

    def trail(self) -> Trail:
        """What plugins made of it."""


class Watch:
    """The streams of one connection, while somebody looks."""

    def __init__(self, tap: Tap, known: Known) -> None:
        self._tap = tap
        self._known = known
        self._streams: dict[int, _Watched] = {}

    def opened(self, event: StreamOpened) -> None:
        """A stream began."""
        self._streams[event.stream_id] = _Watched(
            dict(event.fields).get(b"grpc-encoding", b"").decode(errors="replace")
        )

    def said(self, event: RequestData) -> None:
        """A part of its request passed."""
        watched = self._streams.get(event.stream_id)
        if watched is not None and len(watched.body) <= _MESSAGE_BYTES:
            watched.body += event.data

    def ended(self, event: StreamClosed, held: HeldCall | None) -> None:
        """A stream is over."""
        watched = self._streams.pop(event.stream_id, None)
        if self._tap.is_open:
            self._tap.publish(self._seen(event, watched, held))

    def _seen(self, event: StreamClosed, watched: "_Watched | None", held: HeldCall | None) -> SeenCall:
        now, path = time.time(), event.path.decode(errors="replace")
        began = watched.began if watched is not None else held.began if held is not None else None
        return SeenCall(
            time=datetime.datetime.fromtimestamp(began or now, datetime.UTC),
            path=path,
            outcome=event.outcome.value,
            status=status_codes.name_of(event.grpc_status),
            # The wall clock may be set meanwhile.
            seconds=None if began is None else max(0.0, now - began),
            subject=held.subject if held is not None else self._subject(path, watched),
            held=held is not None,
            trail=None if held is None else held.trail(),
        )

    def _subject(self, path: str, watched: "_Watched | None") -> Subject:
        if watched is None or len(watched.body) > _MESSAGE_BYTES:
            return Subject()
        try:
            message = unwrap(bytes(watched.body), watched.encoding)
        except GovernorError:
            return Subject()
        return subject_in(path.rpartition("/")[2], message, self._known)


class _Watched:
    __slots__ = ("began", "body", "encoding")

    def __init__(self, encoding: str) -> None:
        self.began = time.time()
        self.encoding = encoding
        self.body = bytearray()
