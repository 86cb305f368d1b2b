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


class Watcher(msgspec.Struct, frozen=True):
    """Which start of which agent watches a runtime; ``boot`` tells it from all others, ``host`` is for people."""

    boot: str
    host: str = ""


class Stream:
    """One open stream of events."""

    def __init__(self, credential: str, watcher: Watcher | None, since: datetime) -> None:
        self.credential = credential
        self.watcher = watcher
        self.since = since
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
    def open(self, topic: str, credential: str, watcher: Watcher | None = None) -> Iterator[Stream]:
        """A stream while it is followed. A credential that ended since it was checked opens nothing.

        A runtime has one watcher: another one is refused while the first is there, and its own older streams end.
        """
        if credential in self._ended:
            raise GovernorError(Kind.UNAUTHENTICATED, "credential-ended", "the credential was revoked or replaced")
        if self._closed:
            raise GovernorError(Kind.UNAVAILABLE, "stopping", "the server is stopping; connect again")
        if watcher is not None:
            self._make_way(topic, watcher)
        stream = Stream(credential, watcher, self._clock.now())
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

    def _make_way(self, topic: str, watcher: Watcher) -> None:
        others = [stream for stream in self._streams.get(topic, ()) if stream.watcher and not stream.closed]
        for other in others:
            if other.watcher is not None and other.watcher.boot != watcher.boot:
                raise _in_use(topic, other.watcher, other.since)
        for own in others:
            own.close()

    def _add(self, topic: str, stream: Stream) -> None:
        if topic not in self._streams:
            self._moved[topic] = self._clock.now()
        self._streams.setdefault(topic, set()).add(stream)

    def _remove(self, topic: str, stream: Stream) -> None:
        self._streams[topic].discard(stream)
        if not self._streams[topic]:
            del self._streams[topic]
            self._moved[topic] = self._clock.now()


def _in_use(runtime: str, watcher: Watcher, since: datetime) -> GovernorError:
    where = f" on host {watcher.host!r}" if watcher.host else ""
    message = (
        f"runtime {runtime!r} is in use by another agent{where} since {since:%Y-%m-%d %H:%M:%S} UTC; "
        "stop one of the two, or let this one join as a runtime of its own"
    )
    return GovernorError(Kind.CONFLICT, "runtime-in-use", message)
