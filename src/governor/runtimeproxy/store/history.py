"""What plugins made of each pod's calls, for whoever asks later; bounded, and in memory only.

A pod's history stays while the pod is known. Of pods that never ran, or are gone, only the latest are remembered: why a
pod was refused is asked when there is none.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec

from governor.runtimeproxy.ops.control import Subject, Trail

_TRAILS_OF_A_CALL: Final = 4
_KINDS_OF_CALLS: Final = 32
_PODS_WITHOUT_RECORD: Final = 64
_DECODER: Final = msgspec.msgpack.Decoder(Trail)


class PodHistory:
    """The latest trails of one pod: some for each call of each container, so that a frequent one drives out none."""

    def __init__(self, subject: Subject) -> None:
        self.namespace = subject.namespace
        self.name = subject.pod
        self.uid = subject.uid
        self._trails: dict[tuple[str, str], tuple[bytes, ...]] = {}
        """Encoded: most are never asked for, and objects are several times as large."""

    def add(self, trail: Trail) -> None:
        """Remember one call more."""
        key = trail.call, trail.container
        trails = (*self._trails.pop(key, ()), msgspec.msgpack.encode(trail))
        self._trails[key] = trails[-_TRAILS_OF_A_CALL:]
        if len(self._trails) > _KINDS_OF_CALLS:
            del self._trails[next(iter(self._trails))]

    @property
    def trails(self) -> tuple[Trail, ...]:
        """All of them, oldest first."""
        all_of_them = [_DECODER.decode(each) for some in self._trails.values() for each in some]
        return tuple(sorted(all_of_them, key=lambda each: each.time))


class History:
    """The pods' histories; ``known`` are the uids of pods that there are."""

    def __init__(self, known: Callable[[], Collection[str]]) -> None:
        self._known = known
        self._pods: dict[str, PodHistory] = {}
        """By uid, or by name where there is none; those that were heard of last come last."""

    def __iter__(self) -> Iterator[PodHistory]:
        return iter(self._pods.values())

    def note(self, subject: Subject, trail: Trail) -> None:
        """Remember what became of a call, if that is worth it and it is known whose call it was."""
        if not (trail.is_remarkable and subject.pod):
            return
        key = subject.uid or f"{subject.namespace}/{subject.pod}"
        is_new = key not in self._pods
        pod = self._pods.pop(key, None) or PodHistory(subject)
        self._pods[key] = pod
        pod.add(trail)
        if is_new:
            self._forget()

    def of(self, namespace: str, name: str) -> tuple[Trail, ...]:
        """What is remembered of a pod, oldest first."""
        found = (each for each in self._pods.values() if (each.namespace, each.name) == (namespace, name))
        return tuple(sorted((trail for each in found for trail in each.trails), key=lambda each: each.time))

    def _forget(self) -> None:
        if len(self._pods) <= _PODS_WITHOUT_RECORD:
            return
        known = self._known()
        without = [key for key, pod in self._pods.items() if pod.uid not in known]
        for key in without[:-_PODS_WITHOUT_RECORD]:
            del self._pods[key]
