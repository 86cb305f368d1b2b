"""Server-sent events as bytes: an encoder and an incremental parser. No I/O.

The watch sends ``delivery`` (a SignedDelivery), ``notice`` (a DeliveryNotice) and ``progress``; a comment line keeps an
idle connection alive.
"""

import re
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind

DELIVERY: Final = "delivery"
NOTICE: Final = "notice"
PROGRESS: Final = "progress"
KEEPALIVE: Final = b": keep-alive\n\n"
CONNECTED: Final = b": connected\n\n"
MAX_SPREAD_S: Final = 60.0
MAX_EVENT_BYTES: Final = 32 * 1024 * 1024
# A carriage return at the end may be half of a line break; the next chunk decides.
_LINE_END: Final = re.compile(rb"\r\n|\n|\r(?!\Z)")


class Event(msgspec.Struct, frozen=True):
    """One event of a stream."""

    event: str
    data: str
    id: str = ""


def encode(event: Event) -> bytes:
    """Encode one event; all line breaks in its data arrive as ``\\n``."""
    lines = [f"event: {event.event}"]
    if event.id:
        lines.append(f"id: {event.id}")
    lines.extend(f"data: {line}" for line in re.split("\r\n|\r|\n", event.data))
    return ("\n".join(lines) + "\n\n").encode()


def with_spread(comment: bytes, spread_s: float) -> bytes:
    """Return a comment after which a client spreads its next reconnect over this time; 0 changes nothing."""
    return b"retry: %d\n%s" % (spread_s * 1000, comment) if spread_s else comment


class Parser:
    """An incremental parser. As the standard defines, ``id`` persists until another event sets it.

    ``spread_s`` is the time over which the server wants reconnects to be spread, from the field ``retry``.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._event = ""
        self._id = ""
        self._data: list[str] = []
        self._event_bytes = 0
        self.spread_s = 0.0

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that this chunk completes."""
        follows_return = bool(self._pieces) and self._pieces[-1].endswith(b"\r")
        self._pieces.append(chunk)
        self._pieces_bytes += len(chunk)
        events: list[Event] = []
        # Join only when a line ends, so that a long line in many chunks is copied once.
        if follows_return or b"\n" in chunk or b"\r" in chunk:
            *lines, rest = _LINE_END.split(b"".join(self._pieces))
            self._pieces, self._pieces_bytes = [rest], len(rest)
            events = [event for event in map(self._line, lines) if event is not None]
        if self._event_bytes + self._pieces_bytes > MAX_EVENT_BYTES:
            raise GovernorError(Kind.EXHAUSTED, "event-too-large", f"an event exceeds {MAX_EVENT_BYTES} bytes")
        return events

    def _line(self, line: bytes) -> Event | None:
        if not line:
            return self._dispatch()
        self._event_bytes += len(line)
        field, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._event = value
        elif field == "id":
            self._id = value
        elif field == "data":
            self._data.append(value)
        elif field == "retry" and value.isascii() and value.isdecimal():
            self.spread_s = min(int(value) / 1000, MAX_SPREAD_S)
        return None

    def _dispatch(self) -> Event | None:
        complete = Event(self._event or "message", "\n".join(self._data), self._id) if self._data else None
        self._event, self._data, self._event_bytes = "", [], 0
        return complete
