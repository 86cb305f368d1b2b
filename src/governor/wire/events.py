"""Server-sent events as bytes: an encoder and an incremental parser. No I/O.

The watch sends ``delivery`` (a SignedDelivery), ``notice`` (a DeliveryNotice) and ``progress``; a comment line keeps a
quiet connection alive.
"""

from typing import Final

import msgspec

from governor.errors import GovernorError, Kind

KEEPALIVE: Final = b": keep-alive\n\n"
MAX_EVENT_BYTES: Final = 32 * 1024 * 1024


class Event(msgspec.Struct, frozen=True):
    """One event of a stream."""

    event: str
    data: str
    id: str = ""


def encode(event: Event) -> bytes:
    """One event as it travels; data may hold line breaks."""
    lines = [f"event: {event.event}"]
    if event.id:
        lines.append(f"id: {event.id}")
    lines.extend(f"data: {line}" for line in event.data.split("\n"))
    return ("\n".join(lines) + "\n\n").encode()


class Parser:
    """Feed it chunks as they come; it gives whole events."""

    def __init__(self) -> None:
        self._buffer = b""
        self._event = ""
        self._id = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that this chunk completes."""
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise GovernorError(Kind.EXHAUSTED, "event-too-large", f"an event exceeds {MAX_EVENT_BYTES} bytes")
        events = [self._line(line.rstrip(b"\r").decode("utf-8", "replace")) for line in lines]
        return [event for event in events if event is not None]

    def _line(self, line: str) -> Event | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._event = value
        elif field == "id":
            self._id = value
        elif field == "data":
            self._data.append(value)
        return None

    def _dispatch(self) -> Event | None:
        complete = Event(self._event or "message", "\n".join(self._data), self._id) if self._data else None
        self._event, self._data = "", []
        return complete
