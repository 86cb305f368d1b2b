"""Correlation of Events as in client-go: what is written for each occurrence. Pure: the caller passes the time.

| occurrences of one object | written |
|---|---|
| the same type, reason and message again | the count and the last time of the first Event |
| more than 10 messages of one type and reason within 10 minutes | one Event "(combined from similar events)" |
| more than 25 in a burst, or more than one per 5 minutes after it | nothing |
"""

import datetime
import enum
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Final, Generic, TypeVar

import msgspec

from governor.kube.objects import ObjectRef

MAX_SIMILAR: Final = 10
SIMILAR_WINDOW_S: Final = 600.0
BURST: Final = 25
REFILL_S: Final = 300.0
MAX_TRACKED: Final = 4096
"""Objects, groups and Events that are remembered; the least recently used are forgotten."""
MAX_MESSAGE: Final = 1024
"""The longest message that the API server accepts."""
_MAX_NAME: Final = 253
_COMBINED: Final = "(combined from similar events): "

K = TypeVar("K", bound=Hashable)
S = TypeVar("S")


class EventType(enum.StrEnum):
    """Type of an Event."""

    NORMAL = "Normal"
    WARNING = "Warning"


class Occurrence(msgspec.Struct, frozen=True):
    """Something that happened to an object."""

    ref: ObjectRef
    api_version: str
    uid: str
    type: EventType
    reason: str
    message: str
    annotations: Mapping[str, str] = {}
    """Annotations of the Event; those of the last occurrence are kept."""


class EventWrite(msgspec.Struct, frozen=True):
    """An Event to create or, if ``count`` is above one, to update."""

    name: str
    occurrence: Occurrence
    count: int
    first: datetime.datetime
    last: datetime.datetime


class _Bucket(msgspec.Struct):
    tokens: float
    at: datetime.datetime


class _Similar(msgspec.Struct):
    messages: set[str]
    at: datetime.datetime


class EventCorrelator:
    """Decides what is written for each occurrence."""

    def __init__(self) -> None:
        self._buckets = _Recent[str, _Bucket]()
        self._similar = _Recent[tuple[str, EventType, str], _Similar]()
        self._written = _Recent[tuple[str, EventType, str, str], EventWrite]()
        self._last_number = 0

    def correlate(self, occurrence: Occurrence, now: datetime.datetime) -> EventWrite | None:
        """Return the Event to write, or None if the object has too many."""
        occurrence = msgspec.structs.replace(occurrence, message=_truncate(occurrence.message))
        group = (occurrence.uid, occurrence.type, occurrence.reason)
        combined = self._is_combined(group, occurrence.message, now)
        key = (*group, "" if combined else occurrence.message)
        if combined:
            occurrence = msgspec.structs.replace(occurrence, message=_truncate(_COMBINED + occurrence.message))
        before = self._written.get(key)
        if before:
            write = EventWrite(before.name, occurrence, before.count + 1, before.first, now)
        else:
            write = EventWrite(self._new_name(occurrence.ref.name, now), occurrence, 1, now, now)
        # An occurrence that is not written still counts, so that the next write has the right count.
        self._written.put(key, write)
        return write if self._take_token(occurrence.uid, now) else None

    def _is_combined(self, group: tuple[str, EventType, str], message: str, now: datetime.datetime) -> bool:
        similar = self._similar.get(group)
        if similar is None or (now - similar.at).total_seconds() > SIMILAR_WINDOW_S:
            similar = _Similar(set(), now)
        similar.at = now
        if message not in similar.messages and len(similar.messages) >= MAX_SIMILAR:
            combined = True
        else:
            similar.messages.add(message)
            combined = False
        self._similar.put(group, similar)
        return combined

    def _take_token(self, uid: str, now: datetime.datetime) -> bool:
        bucket = self._buckets.get(uid) or _Bucket(BURST, now)
        elapsed_s = max(0.0, (now - bucket.at).total_seconds())
        tokens = min(float(BURST), bucket.tokens + elapsed_s / REFILL_S)
        allowed = tokens >= 1
        self._buckets.put(uid, _Bucket(tokens - 1 if allowed else tokens, now))
        return allowed

    def _new_name(self, name: str, now: datetime.datetime) -> str:
        """Return the object's name with a number that is unique in this process and rises with time."""
        self._last_number = max(self._last_number + 1, int(now.timestamp() * 1e6) * 1000)
        suffix = f".{self._last_number:x}"
        return name[: _MAX_NAME - len(suffix)].rstrip("-.") + suffix


class _Recent(Generic[K, S]):
    """The most recently used entries."""

    def __init__(self) -> None:
        self._entries: OrderedDict[K, S] = OrderedDict()

    def get(self, key: K) -> S | None:
        return self._entries.get(key)

    def put(self, key: K, entry: S) -> None:
        self._entries[key] = entry
        self._entries.move_to_end(key)
        if len(self._entries) > MAX_TRACKED:
            self._entries.popitem(last=False)


def _truncate(message: str) -> str:
    encoded = message.encode("utf-8", errors="replace")
    if len(encoded) <= MAX_MESSAGE:
        return encoded.decode()
    return encoded[: MAX_MESSAGE - 3].decode(errors="ignore") + "..."
