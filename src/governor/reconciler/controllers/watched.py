"""What the controllers have in common: shared watches, the catalogue that they fill, and their pace."""

import datetime
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec

from governor.kube.applyset import Settings
from governor.kube.controller import Context, NamespacedName, Resource
from governor.kube.controller.status import is_changed, merge_status
from governor.kube.objects import ObjectRef
from governor.kube.reflector import Metadata, Store, View
from governor.process.clock import Clock
from governor.process.reconcile.reconciler import Done, Outcome
from governor.process.telemetry.logging import correlation_id
from governor.reconciler.kinds.channel import Channel
from governor.reconciler.kinds.cluster import ClusterStatus
from governor.reconciler.kinds.definition import GROUP
from governor.reconciler.kinds.installation import Installation
from governor.reconciler.kinds.module import Module
from governor.reconciler.kinds.module_instance import LABEL_PREFIX, ModuleInstance, ModuleInstanceStatus
from governor.reconciler.resolution.catalogue import Catalogue

S = TypeVar("S", ClusterStatus, ModuleInstanceStatus)

MANAGER: Final = "governor-reconciler"
RUN_ANNOTATION: Final = f"{GROUP}/run"
"""Annotation of an Event with the correlation id of the run that has caused it."""
SETTINGS: Final = Settings(
    manager=MANAGER,
    label_prefix=LABEL_PREFIX,
    force_conflicts=True,
    refuse_foreign=True,
    repair_limit=100_000,  # no other client decides what is installed, however often it tries
)

NOT_OURS: Final = f"!{SETTINGS.inventory_label}"
"""Selects ConfigMaps that are not inventories of the reconciler."""


class SourceMetadata(Metadata, frozen=True):
    """Metadata of a kind without generation: only its resourceVersion shows that the content changed."""

    def __eq__(self, other: object) -> bool:
        equal = super().__eq__(other)
        if equal is not True or not isinstance(other, SourceMetadata):
            return equal
        return self.resource_version == other.resource_version

    __hash__ = Metadata.__hash__


class SecretSource(View, frozen=True):
    """A Secret, without its content."""

    metadata: SourceMetadata


class ConfigMapSource(View, frozen=True):
    """A ConfigMap, without its content."""

    metadata: SourceMetadata


def catalogue_of(context: Context[Any]) -> Catalogue:
    """Return what a controller that watches all of these kinds has cached."""
    return Catalogue(
        context.key.namespace,
        context.store(Installation),
        context.store(Channel),
        context.store(Module),
        context.store(ModuleInstance),
    )


def secret_version(context: Context[Any], name: str) -> str:
    """Return the resourceVersion of a Secret in the hub namespace, or ``""`` if there is none."""
    entry = context.store(SecretSource).get(ObjectRef("", "Secret", context.key.namespace, name))
    return entry.metadata.resource_version if entry else ""


def is_edited(old: Resource, new: Resource) -> bool:
    """Return whether more than the status has changed: a change of the spec changes the generation."""
    return old.metadata != new.metadata


def names_of(store: Store[Any]) -> Iterator[NamespacedName]:
    """Yield the names of all objects in a store."""
    return (NamespacedName(ref.namespace, ref.name) for ref in store)


async def nothing_to_finalize(_: Context[Any]) -> Outcome:
    """Return Done: the controller owns no objects."""
    return Done()


def run_annotations(run: str) -> dict[str, str]:
    """Return the annotation of an Event with the correlation id of its run."""
    return {RUN_ANNOTATION: run}


def stamped(before: S, status: S, generation: int, now: datetime.datetime) -> S:
    """Return a status with the correlation id of this run if anything else has changed, otherwise with the last one.

    Only then is it written.
    """
    unchanged = msgspec.structs.replace(status, run=before.run)
    is_same = not is_changed(before, merge_status(before, unchanged, generation, now))
    return unchanged if is_same else msgspec.structs.replace(status, run=correlation_id())


class Pace:
    """Limits how often a key is worked on. The first run is immediate; more changes within the interval are one run."""

    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._last: dict[str, float] = {}

    def wait_s(self, key: str) -> float:
        """Return how long to wait before the next run; zero begins one."""
        now_s = self._clock.monotonic()
        wait_s = self._last.get(key, now_s - self._interval_s) + self._interval_s - now_s
        if wait_s <= 0:
            self._last[key] = now_s
        return max(0.0, wait_s)

    def forget(self, key: str) -> None:
        """Drop what is known of a deleted key."""
        self._last.pop(key, None)


class Delay:
    """How long something is the case for a key, and whether that is long enough to act."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._since: dict[str, float] = {}

    def wait_s(self, key: str) -> float:
        """Return how long to wait; it begins with the first call for a key."""
        now_s = self._clock.monotonic()
        return max(0.0, self._since.setdefault(key, now_s) + self._seconds - now_s)

    def forget(self, key: str) -> None:
        """Begin again with the next call."""
        self._since.pop(key, None)
