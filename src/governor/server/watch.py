"""Who follows what: open streams of events, woken when there is news and closed when their credential ends.

The hub holds no events. A woken stream looks at the store and sends only what is newest, so a slow reader costs nobody
anything. How events travel is the API's business.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.process.clock import Clock

PROGRESS: Final = ""
"""The topic of everybody who follows the progress of revisions; all other topics are names of runtimes."""


class Presence(msgspec.Struct, frozen=True):
    """Whether somebody watches a runtime, and since when that is so, if it is known."""

    watching: bool
    since: datetime | None


class Stream:
    """One open stream of events."""

    def __init__(self, credential: str) -> None:
        self.credential = credential
        self.closed = False
        self._news = asyncio.Event()

    def wake(self) -> None:
        """There is something new."""
        self._news.set()

    def close(self) -> None:
        """End the stream as soon as it looks."""
        self.closed = True
        self._news.set()

    async def news(self, timeout_s: float) -> bool:
        """Wait for the next wake-up or the end; False when neither came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True


class Hub:
    """All open streams, by topic."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._streams: dict[str, set[Stream]] = {}
        self._moved: dict[str, datetime] = {}
        self._ended: set[str] = set()
        self._closed = False

    @contextmanager
    def open(self, topic: str, credential: str) -> Iterator[Stream]:
        """A stream while it is followed. A credential that ended since it was checked opens nothing."""
        if credential in self._ended:
            raise GovernorError(Kind.UNAUTHENTICATED, "credential-ended", "the credential was revoked or replaced")
        if self._closed:
            raise GovernorError(Kind.UNAVAILABLE, "stopping", "the server is stopping; connect again")
        stream = Stream(credential)
        self._add(topic, stream)
        try:
            yield stream
        finally:
            self._remove(topic, stream)

    def wake(self, topic: str) -> None:
        """Tell everybody who follows a topic."""
        for stream in self._streams.get(topic, ()):
            stream.wake()

    def end(self, credential: str) -> None:
        """Close the streams of a credential that was revoked or replaced, and refuse it from now on."""
        self._ended.add(credential)
        for streams in self._streams.values():
            for stream in streams:
                if stream.credential == credential:
                    stream.close()

    def begin(self, credential: str) -> None:
        """Take a credential that is valid, again if it had ended."""
        self._ended.discard(credential)

    def close(self) -> None:
        """Close all streams and open none again."""
        self._closed = True
        for streams in self._streams.values():
            for stream in streams:
                stream.close()

    def presence(self, runtime: str) -> Presence:
        """Whether a runtime's agent watches now."""
        return Presence(runtime in self._streams, self._moved.get(runtime))

    def open_watches(self) -> int:
        """How many streams follow runtimes."""
        return sum(len(streams) for topic, streams in self._streams.items() if topic != PROGRESS)

    def _add(self, topic: str, stream: Stream) -> None:
        if topic not in self._streams:
            self._moved[topic] = self._clock.now()
        self._streams.setdefault(topic, set()).add(stream)

    def _remove(self, topic: str, stream: Stream) -> None:
        self._streams[topic].discard(stream)
        if not self._streams[topic]:
            del self._streams[topic]
            self._moved[topic] = self._clock.now()
