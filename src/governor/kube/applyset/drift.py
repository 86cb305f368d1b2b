"""Drift: how live objects differ from the desired state, and how often each field was repaired.

A field that another client keeps changing back is no longer repaired once the limit is reached. The repair history is a
value that the caller keeps and passes to the next check, in memory or in a status.
"""

import datetime
import enum
from collections.abc import Iterable

import msgspec

from governor.kube.applyset.live import other_managers
from governor.kube.applyset.results import SUCCEEDED, ObjectResult
from governor.kube.applyset.settings import Settings
from governor.kube.objects import Object, ObjectRef
from governor.values.paths import parse
from governor.values.treediff import Difference


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
