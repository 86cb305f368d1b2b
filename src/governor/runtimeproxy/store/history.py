"""History of the plugins' part in each pod's calls, for ``explain``. Bounded, and in memory only.

A pod's history is kept as long as its record. Of pods without a record only the latest are kept, since a rejected pod
never gets one. Calls are added in batches, and before the history is read.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, Protocol

import msgspec

from governor.runtimeproxy.ops.batch import Batch
from governor.runtimeproxy.ops.control import Subject, Trail

_TRAILS_PER_CALL: Final = 4
_CALLS_PER_POD: Final = 32
_UNRECORDED_PODS: Final = 64
_DECODER: Final = msgspec.msgpack.Decoder(Trail)


class EndedCall(Protocol):
    """A held call that has ended."""

    subject: Subject

    def trail(self) -> Trail:
        """Return the plugins' part in the call."""


class PodHistory:
    """Latest trails of one pod, a few per call and container, so that a frequent call does not evict the others."""

    def __init__(self, subject: Subject) -> None:
        self.namespace = subject.namespace
        self.name = subject.pod
        self.uid = subject.uid
        self._trails: dict[tuple[str, str], tuple[bytes, ...]] = {}
        """Encoded, since decoded trails take several times the memory."""

    def add(self, trail: Trail) -> None:
        """Add a trail and evict the oldest of its kind."""
        key = trail.call, trail.container
        trails = (*self._trails.pop(key, ()), msgspec.msgpack.encode(trail))
        self._trails[key] = trails[-_TRAILS_PER_CALL:]
        if len(self._trails) > _CALLS_PER_POD:
            del self._trails[next(iter(self._trails))]

    @property
    def trails(self) -> tuple[Trail, ...]:
        """Return all trails, oldest first."""
        decoded = [_DECODER.decode(each) for trails in self._trails.values() for each in trails]
        return tuple(sorted(decoded, key=lambda each: each.time))


class History:
    """Histories of all pods; ``recorded_uids`` returns the uids of the pods that have a record."""

    def __init__(self, recorded_uids: Callable[[], Collection[str]]) -> None:
        self._recorded_uids = recorded_uids
        self._pods: dict[str, PodHistory] = {}
        """By uid, or by name without one; the most recently used last."""
        self._ended = Batch(self._add_all)

    def __iter__(self) -> Iterator[PodHistory]:
        self._ended.flush()
        return iter(self._pods.values())

    def ended(self, call: EndedCall) -> None:
        """Add the trail of a call soon."""
        self._ended.add(call)

    def _add_all(self, calls: Iterable[EndedCall]) -> None:
        for call in calls:
            self.add(call.subject, call.trail())

    def add(self, subject: Subject, trail: Trail) -> None:
        """Add a trail if its pod is known."""
        if not subject.pod:
            return
        key = subject.uid or f"{subject.namespace}/{subject.pod}"
        is_new = key not in self._pods
        pod = self._pods.pop(key, None) or PodHistory(subject)
        self._pods[key] = pod
        pod.add(trail)
        if is_new:
            self._evict()

    def of(self, namespace: str, name: str) -> tuple[Trail, ...]:
        """Return the trails of a pod, oldest first."""
        found = (each for each in self if (each.namespace, each.name) == (namespace, name))
        return tuple(sorted((trail for each in found for trail in each.trails), key=lambda each: each.time))

    def _evict(self) -> None:
        if len(self._pods) <= _UNRECORDED_PODS:
            return
        recorded = self._recorded_uids()
        unrecorded = [key for key, pod in self._pods.items() if pod.uid not in recorded]
        for key in unrecorded[:-_UNRECORDED_PODS]:
            del self._pods[key]
