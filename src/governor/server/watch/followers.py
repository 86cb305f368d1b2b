"""Followers of revisions: woken only by changes of the runtimes that their revision concerns."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager


def topic_of(revision: int, runtime: str | None = None) -> str:
    """Return the topic of a revision, or of one of its runtimes; no runtime has such a name."""
    return f"revision/{revision}" if runtime is None else f"revision/{revision}/{runtime}"


def is_followed(topic: str) -> bool:
    """Return whether a topic is that of a revision, not the name of a runtime."""
    return "/" in topic


class Followers:
    """The topics that are followed, each with its runtimes and the number of changes so far."""

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._runtimes: dict[str, Collection[str]] = {}
        self._count: dict[str, int] = {}
        self._changes: dict[str, int] = {}

    @contextmanager
    def follow(self, topic: str, runtimes: Collection[str]) -> Iterator[None]:
        """Wake the streams of a topic when one of these runtimes changes."""
        self._runtimes[topic] = runtimes
        self._count[topic] = self._count.get(topic, 0) + 1
        try:
            yield
        finally:
            self._count[topic] -= 1
            if not self._count[topic]:
                del self._count[topic], self._runtimes[topic]
                self._changes.pop(topic, None)

    def changed(self, runtimes: Iterable[str]) -> None:
        """Wake the followers of some runtimes."""
        names = frozenset(runtimes)
        for topic, followed in self._runtimes.items():
            if any(name in followed for name in names):
                self._changes[topic] = self._changes.get(topic, 0) + 1
                self._wake(topic)

    def changes(self, topic: str) -> int | None:
        """Return how often a topic has changed; None if it is not followed, so that nothing is known."""
        return self._changes.get(topic, 0) if topic in self._count else None
