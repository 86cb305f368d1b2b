"""The hub of open event streams: wakes them when their topic changes, closes them when their credential is revoked.

The hub stores no events. A woken stream reads the store and sends only the newest state, so a slow client costs no
memory. Writing events to connections belongs to the API.

It also records, in memory, each runtime's watch session, the delivery that was sent to its agent, the one that its
agent holds, its last check, and why its last watch was rejected.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final, Protocol

import msgspec

from governor.domain.bundles import Delivery
from governor.domain.reports import Check
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.server.watch.followers import Followers, is_followed

TOO_MANY_WATCHES: Final = "too-many-watches"
_SESSIONS_PER_START: Final = 2**32


class Presence(msgspec.Struct, frozen=True):
    """Whether a runtime has an open watch, and since when, if known.

    ``held_sequence`` is that of the delivery that its agent holds, 0 if none. ``check`` is the last check by its agent,
    received at ``checked``. ``refusal`` is why its last watch was rejected, if it was.
    """

    watching: bool
    since: datetime | None
    held_sequence: int = 0
    check: Check | None = None
    checked: datetime | None = None
    refusal: str = ""


class Watcher(msgspec.Struct, frozen=True):
    """The agent process behind a watch: ``boot`` identifies the process, ``host`` is shown to users.

    ``held_sequence`` is that of the delivery that it holds, 0 if none or if it cannot show which one. ``epoch``
    increases with each process that takes over the state of the same agent; it is 0 where that cannot happen.
    """

    boot: str
    host: str = ""
    held_sequence: int = 0
    epoch: int = 0


class Outlet(Protocol):
    """The connection of a streamed response; ``on_lost`` is called when it is closed."""

    on_lost: Callable[[], None] | None

    def write_chunk(self, parts: Sequence[bytes]) -> None:
        """Write one chunk."""

    def buffered_bytes(self) -> int:
        """Return how much of what was written is still in this process."""

    def abort(self) -> None:
        """Close the connection at once."""

    def is_lost(self) -> bool:
        """Return whether the connection is closed."""


class Feed(Protocol):
    """What a watch sends: it knows which delivery its agent has and which formats it understands."""

    def takes(self, delivery: Delivery) -> bool:
        """Return whether a delivery that was just issued can be sent as it is."""

    def sent(self, delivery: Delivery) -> None:
        """Record that a delivery was sent."""


class Stream:
    """One open stream of events.

    While it is idle it has its ``feed``, through which deliveries are sent without waking its task.
    """

    __slots__ = (
        "_buffered",
        "_stalled_since_s",
        "_woken",
        "closed",
        "credential",
        "feed",
        "outlet",
        "session",
        "since",
        "watcher",
    )

    def __init__(
        self, credential: str, watcher: Watcher | None, since: datetime, session: int, outlet: Outlet | None = None
    ) -> None:
        self.credential = credential
        self.watcher = watcher
        self.since = since
        self.session = session
        self.outlet = outlet
        self.feed: Feed | None = None
        self.closed = False
        self._woken = asyncio.Event()
        self._buffered = 0
        self._stalled_since_s = 0.0

    def takes(self, delivery: Delivery) -> bool:
        """Return whether a delivery can be sent without waking the task of the stream."""
        return (
            self.feed is not None
            and self.outlet is not None
            and not self.closed
            and not self.outlet.buffered_bytes()
            and self.feed.takes(delivery)
        )

    def send(self, delivery: Delivery, parts: Sequence[bytes]) -> None:
        """Send a delivery that the stream takes."""
        assert self.feed is not None and self.outlet is not None  # noqa: PT018, S101 - the stream takes it
        self.feed.sent(delivery)
        self.outlet.write_chunk(parts)

    def keep_alive(self, chunk: bytes, now_s: float, stall_s: float) -> bool:
        """Send a chunk that says nothing, unless the client does not read.

        Return False, and abort the connection, if it has read nothing for ``stall_s``.
        """
        if self.outlet is None or self.closed:
            return True
        buffered = self.outlet.buffered_bytes()
        if not buffered or buffered != self._buffered:
            self._buffered, self._stalled_since_s = buffered, now_s
        if not buffered:
            self.outlet.write_chunk((chunk,))
        elif now_s - self._stalled_since_s >= stall_s:
            self.close()
            self.outlet.abort()
            return False
        return True

    def is_replaced_by(self, credential: str, watcher: Watcher) -> bool:
        """Return whether a watch is of the same agent process, or of a later process of the same agent."""
        present = self.watcher
        if present is None:
            return False
        return present.boot == watcher.boot or (self.credential == credential and present.epoch < watcher.epoch)

    def wake(self) -> None:
        """Signal that the topic changed."""
        self._woken.set()

    def close(self) -> None:
        """Mark the stream as closed and wake it."""
        self.closed = True
        self._woken.set()

    async def wait(self) -> None:
        """Wait until the stream is woken or closed."""
        await self._woken.wait()
        self._woken.clear()


class Hub:
    """All open streams, by topic. Sessions are numbered in the order in which watches were accepted."""

    def __init__(self, clock: Clock, starts: int = 0, max_watches: int = 1_000_000) -> None:
        """``starts`` is the number of this start of the server, so that sessions increase over restarts."""
        self._clock = clock
        self._max_watches = max_watches
        self._watches = 0
        self._session = starts * _SESSIONS_PER_START
        self._sessions: dict[str, tuple[str, int]] = {}
        self._held: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self._confirmed: dict[str, tuple[str, int]] = {}
        self._checks: dict[str, tuple[Check, datetime]] = {}
        self._refusals: dict[str, str] = {}
        self._streams: dict[str, set[Stream]] = {}
        self._since: dict[str, datetime] = {}
        self._blocked: set[str] = set()
        self._closed = False
        self.followers = Followers(self.wake)
        self.announcements = 0
        """Number of announcements of new deliveries: none was missed if it is unchanged."""
        self.revocations = 0
        self.on_block: Callable[[str], None] = lambda _: None
        """Called with each credential that is revoked or replaced."""

    @contextmanager
    def open(
        self, topic: str, credential: str, watcher: Watcher | None = None, outlet: Outlet | None = None
    ) -> Iterator[Stream]:
        """Open a stream; raise if its credential was blocked after authentication.

        A runtime has one watching agent: another agent is rejected, and older streams of the same agent are closed.
        Those of an earlier process of the agent, one with the same credential and a lower epoch, are closed too: a
        process that is suspended, or whose node is down, does not close them itself.
        """
        if credential in self._blocked:
            raise GovernorError(Kind.UNAUTHENTICATED, "credential-ended", "the credential was revoked or replaced")
        if self._closed:
            raise GovernorError(Kind.UNAVAILABLE, "stopping", "the server is stopping; reconnect")
        if watcher is not None:
            self._supersede(topic, credential, watcher)
            self._check_limit(topic)
        self._session += 1
        stream = Stream(credential, watcher, self._clock.now(), self._session, outlet)
        self._add(topic, stream)
        if outlet is not None:
            outlet.on_lost = stream.close
            if outlet.is_lost():
                stream.close()
        if watcher is not None:
            self._refusals.pop(topic, None)
            self._sessions[topic] = watcher.boot, stream.session
            self._held[topic] = watcher.held_sequence
        try:
            yield stream
        finally:
            # Its connection may carry another request from now on.
            stream.close()
            if outlet is not None:
                outlet.on_lost = None
            self._remove(topic, stream)

    def wake(self, topic: str) -> None:
        """Wake all streams of a topic."""
        for stream in self._streams.get(topic, ()):
            stream.wake()

    def announce(self, runtime: str) -> None:
        """Wake the watches of a runtime that has a new delivery, and the followers of its revisions."""
        self.announcements += 1
        self.wake(runtime)
        self.followers.changed([runtime])

    def streams_of(self, topic: str) -> Iterable[Stream]:
        """Return the open streams of a topic."""
        return self._streams.get(topic, ())

    def streams(self) -> list[Stream]:
        """Return all open streams."""
        return [stream for streams in self._streams.values() for stream in streams]

    def block(self, credential: str) -> None:
        """Close the streams of a revoked or replaced credential and reject new ones."""
        self._blocked.add(credential)
        self.revocations += 1
        self.on_block(credential)
        for streams in self._streams.values():
            for stream in streams:
                if stream.credential == credential:
                    stream.close()

    def unblock(self, credential: str) -> None:
        """Allow streams of a credential that is valid again."""
        self._blocked.discard(credential)

    def close(self) -> None:
        """Close all streams and reject new ones."""
        self._closed = True
        for streams in self._streams.values():
            for stream in streams:
                stream.close()

    def presence(self, runtime: str) -> Presence:
        """Return whether a runtime's agent is watching."""
        held, (check, checked) = self._held.get(runtime, 0), self._checks.get(runtime, (None, None))
        refusal = self._refusals.get(runtime, "")
        return Presence(runtime in self._streams, self._since.get(runtime), held, check, checked, refusal)

    def note_refusal(self, runtime: str, reason: str) -> None:
        """Record why a watch of a runtime's agent was rejected; the next accepted one clears it."""
        self._refusals[runtime] = reason
        self._since[runtime] = self._clock.now()
        self.followers.changed([runtime])

    def note_check(self, runtime: str, check: Check) -> None:
        """Record that a runtime's agent has checked what it reported last; not stored, a restart forgets it.

        A check in another session than the newest is of an earlier process.
        """
        if self._sessions.get(runtime, ("", 0))[1] == check.session:
            self._checks[runtime] = check, self._clock.now()

    def note_held(self, runtime: str, session: int, sequence: int) -> None:
        """Record that a runtime's agent reported about a delivery in its newest session, so it holds it."""
        boot, newest = self._sessions.get(runtime, ("", 0))
        if newest == session:
            self._held[runtime] = sequence
            self._confirmed[runtime] = boot, sequence

    def is_confirmed(self, runtime: str, boot: str, sequence: int) -> bool:
        """Return whether the last delivery that this agent process reported about has the sequence."""
        return self._confirmed.get(runtime) == (boot, sequence)

    def note_sent(self, runtime: str, sequence: int) -> None:
        """Record the newest delivery that was sent to a runtime's agent."""
        self._sent[runtime] = sequence

    def was_sent(self, runtime: str, sequence: int) -> bool:
        """Return whether the last delivery that this server process sent to a runtime's agent has the sequence."""
        return self._sent.get(runtime) == sequence

    def is_session(self, runtime: str, session: int) -> bool:
        """Return whether this server has accepted a watch of the runtime and the session is not newer than it."""
        return 0 < session <= self._sessions.get(runtime, ("", 0))[1]

    def session_of(self, runtime: str, boot: str) -> int | None:
        """Return the newest session of an agent process, or None if it is not the last that watched."""
        last_boot, session = self._sessions.get(runtime, ("", 0))
        return session if last_boot == boot and session else None

    def open_watches(self) -> int:
        """Return the number of open watches."""
        return self._watches

    def _check_limit(self, topic: str) -> None:
        """Raise if there are too many watches; one that replaces another of its runtime is not counted."""
        if self._watches >= self._max_watches and topic not in self._streams:
            message = (
                f"this server has {self._watches} open watches, and its limit (max-watches) is {self._max_watches}; "
                "raise the limit, together with that of open files, or reconnect later"
            )
            raise GovernorError(Kind.UNAVAILABLE, TOO_MANY_WATCHES, message)

    def _supersede(self, topic: str, credential: str, watcher: Watcher) -> None:
        """Close the streams that a watch replaces; raise if another agent is watching."""
        others = [stream for stream in self._streams.get(topic, ()) if stream.watcher and not stream.closed]
        for other in others:
            if other.watcher is not None and not other.is_replaced_by(credential, watcher):
                raise _in_use(topic, other.watcher, other.since)
        for replaced in others:
            replaced.close()

    def _add(self, topic: str, stream: Stream) -> None:
        if topic not in self._streams:
            self._since[topic] = self._clock.now()
        self._streams.setdefault(topic, set()).add(stream)
        self._watches += not is_followed(topic)

    def _remove(self, topic: str, stream: Stream) -> None:
        self._streams[topic].discard(stream)
        self._watches -= not is_followed(topic)
        if not self._streams[topic]:
            del self._streams[topic]
            self._since[topic] = self._clock.now()


def _in_use(runtime: str, watcher: Watcher, since: datetime) -> GovernorError:
    where = f" on host {watcher.host!r}" if watcher.host else ""
    message = (
        f"runtime {runtime!r} is in use by another agent{where} since {since:%Y-%m-%d %H:%M:%S} UTC; "
        "stop one of the two, or enrol this one as a separate runtime"
    )
    return GovernorError(Kind.CONFLICT, "runtime-in-use", message)
