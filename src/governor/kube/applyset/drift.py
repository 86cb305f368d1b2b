"""Drift: how live objects differ from the desired state, and how often each field was repaired.

The metadata of all objects is listed once per kind by the owner label, or read one by one if they are few. Only objects
whose content changed since they were last seen as desired are compared. A field that another client keeps changing back
is no longer repaired once the limit is reached. The repair history is a value that the caller keeps and passes to the
next check.
"""

import datetime
import enum
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.apply import ApplyTask, Writer
from governor.kube.applyset.entries import Entry, LiveObjects, is_unchanged, seen_in
from governor.kube.applyset.live import get, is_terminating, other_managers, try_get
from governor.kube.applyset.manifests import Desired
from governor.kube.applyset.order import gather_bounded
from governor.kube.applyset.results import RETRYABLE, SUCCEEDED, ObjectResult, Seen
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.client import Client
from governor.kube.errors import NO_API
from governor.kube.objects import ApiResource, Object, ObjectRef, ref_of
from governor.values.paths import parse
from governor.values.treediff import Difference

_LIST_REJECTED: Final = frozenset({Kind.DENIED, Kind.UNIMPLEMENTED})
"""Errors of a list that say nothing about the single objects."""


class DriftMode(enum.StrEnum):
    """Whether drift is ignored, reported, or reported and repaired."""

    OFF = "off"
    WARN = "warn"
    ENFORCE = "enforce"


class Repair(msgspec.Struct, frozen=True):
    """Number of repairs of one field; an empty path means that the deleted object was re-created."""

    ref: ObjectRef
    path: str
    count: int
    at: datetime.datetime
    """Time of the last repair."""


class FieldDrift(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field that differs: ``old`` is the live value, ``new`` the desired one, both masked."""

    difference: Difference
    managers: tuple[str, ...] = ()
    """Other managers of the field, the latest first."""
    repairs: int = 0
    """Number of earlier repairs."""
    exhausted: bool = False
    """Whether the repair limit is reached."""


class ObjectDrift(msgspec.Struct, frozen=True, omit_defaults=True):
    """An object that differs from its desired state, or could not be compared."""

    ref: ObjectRef
    deleted: bool = False
    fields: tuple[FieldDrift, ...] = ()
    error: str = ""
    is_transient: bool = False
    """Whether the error usually ends without an action."""
    repairs: int = 0
    """Number of earlier re-creations after a deletion."""
    exhausted: bool = False
    """Whether the repair limit of a deleted object is reached."""
    repair: ObjectResult | None = None
    """Result of the repair."""

    @property
    def repairable(self) -> bool:
        """Return whether the object or one of its fields is to be repaired."""
        return (self.deleted and not self.exhausted) or any(not field.exhausted for field in self.fields)

    @property
    def remains(self) -> bool:
        """Return whether the object is still not in the desired state after the repair."""
        repaired = self.repair is not None and self.repair.outcome in SUCCEEDED
        return not repaired or any(field.exhausted for field in self.fields)


class DriftReport(msgspec.Struct, frozen=True):
    """All objects that differ from their desired state."""

    mode: DriftMode
    checked: int = 0
    objects: tuple[ObjectDrift, ...] = ()
    repairs: tuple[Repair, ...] = ()
    """History to pass to the next check."""


class RepairHistory:
    """The repairs within the repair window at one time."""

    def __init__(self, repairs: Iterable[Repair], settings: Settings, now: datetime.datetime) -> None:
        self._settings = settings
        self._now = now
        window = datetime.timedelta(seconds=settings.repair_window_s)
        self._repairs = {(each.ref, each.path): each for each in repairs if now - each.at < window}

    def deletion_drift(self, ref: ObjectRef) -> ObjectDrift:
        """Return the drift of a deleted object."""
        count = self._count(ref, "")
        return ObjectDrift(ref, deleted=True, repairs=count, exhausted=count >= self._settings.repair_limit)

    def field_drift(self, ref: ObjectRef, live: Object, differences: Iterable[Difference]) -> ObjectDrift:
        """Return the drift of an object whose fields differ."""
        return ObjectDrift(ref, fields=tuple(self._field(ref, live, each) for each in differences))

    def updated(self, drifts: Iterable[ObjectDrift], desired: Iterable[ObjectRef]) -> tuple[Repair, ...]:
        """Return the history of the desired objects including the repairs that succeeded now."""
        refs = frozenset(desired)
        history = {key: each for key, each in self._repairs.items() if each.ref in refs}
        for drift in drifts:
            if drift.repair and drift.repair.outcome in SUCCEEDED:
                history |= {(drift.ref, path): self._incremented(drift.ref, path) for path in _repaired_paths(drift)}
        return tuple(history.values())

    def _field(self, ref: ObjectRef, live: Object, difference: Difference) -> FieldDrift:
        count = self._count(ref, difference.path)
        managers = other_managers(live, parse(difference.path), self._settings.manager)
        return FieldDrift(difference, managers, count, exhausted=count >= self._settings.repair_limit)

    def _count(self, ref: ObjectRef, path: str) -> int:
        known = self._repairs.get((ref, path))
        return known.count if known else 0

    def _incremented(self, ref: ObjectRef, path: str) -> Repair:
        return Repair(ref, path, self._count(ref, path) + 1, self._now)


def _repaired_paths(drift: ObjectDrift) -> list[str]:
    return [""] if drift.deleted else [each.difference.path for each in drift.fields if not each.exhausted]


class Observer:
    """Reads the metadata of objects with one list per kind; few objects, or without the owner label, one by one."""

    def __init__(self, client: Client, owner: Owner, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._selector = f"{settings.owner_label}={owner.id}"
        self.whole: LiveObjects = {}
        """Those of the observed objects that were read with their content, or were not found."""

    async def observe(self, desired: Iterable[Desired]) -> LiveObjects:
        """Return what is known of each object: at least its metadata, None if it is absent, or an error."""
        kinds: dict[ApiResource, list[Desired]] = {}
        for each in desired:
            kinds.setdefault(each.resource, []).append(each)
        many = [each for each in kinds.items() if len(each[1]) > self._settings.single_reads]
        found: dict[ObjectRef, Object | GovernorError | None] = {}
        for listed in await gather_bounded(many, self._list, self._settings.concurrency):
            found |= listed
        unlisted = [each for group in kinds.values() for each in group if each.ref not in found]
        read = await gather_bounded(unlisted, self._get, self._settings.concurrency)
        alone = {each.ref: live for each, live in zip(unlisted, read, strict=True)}
        self.whole = {ref: live for ref, live in alone.items() if not isinstance(live, GovernorError)}
        return found | alone

    async def _list(self, kind: tuple[ApiResource, list[Desired]]) -> dict[ObjectRef, Object | GovernorError | None]:
        resource, desired = kind
        found: dict[ObjectRef, Object | GovernorError | None] = {}
        try:
            for namespace in self._namespaces(resource, desired):
                listed = self._client.list(resource, namespace, labels=self._selector, metadata_only=True)
                found |= {ref_of(each): each async for each in listed}
        except GovernorError as error:
            if error.kind in _LIST_REJECTED or error.code == NO_API:
                return {}
            return {each.ref: error for each in desired}
        return found

    def _namespaces(self, resource: ApiResource, desired: Iterable[Desired]) -> Collection[str]:
        namespaces = {each.ref.namespace for each in desired}
        one_by_one = len(namespaces) == 1 or self._settings.allowed_namespaces is not None
        return sorted(namespaces) if resource.namespaced and one_by_one else ("",)

    async def _get(self, desired: Desired) -> Object | GovernorError | None:
        return await try_get(self._client, desired)


class DriftCheck:
    """Compares applied objects with their desired state."""

    def __init__(self, client: Client, writer: Writer, history: RepairHistory) -> None:
        self._client = client
        self._writer = writer
        self._history = history

    async def check(
        self, task: ApplyTask, entry: Entry, observed: Object | GovernorError | None
    ) -> ObjectDrift | Seen | None:
        """Return the drift; the new state of a changed object that is as desired; or None if it did not change."""
        ref, resource = task.desired.ref, task.desired.resource
        if isinstance(observed, GovernorError):
            return _incomparable(ref, observed)
        if _is_gone(observed, entry):
            return self._history.deletion_drift(ref)
        if observed is not None and is_unchanged(entry.seen, seen_in(observed, resource, task.ignored)):
            return None
        try:
            live = await get(self._client, resource, ref)
            if live is None or _is_gone(live, entry):
                return self._history.deletion_drift(ref)
            if rejected := self._writer.rejection(task, live):
                return ObjectDrift(ref, error=rejected.error)
            found = await self._writer.compare(task, live)
        except GovernorError as error:
            return _incomparable(ref, error)
        return self._history.field_drift(ref, live, found) if found else seen_in(live, resource, task.ignored)


def _incomparable(ref: ObjectRef, error: GovernorError) -> ObjectDrift:
    return ObjectDrift(ref, error=str(error), is_transient=error.kind in RETRYABLE)


def _is_gone(live: Object | None, entry: Entry) -> bool:
    """Return whether the object that was applied is deleted, in deletion, or replaced by another of its name."""
    return live is None or is_terminating(live) or live["metadata"]["uid"] != entry.uid
