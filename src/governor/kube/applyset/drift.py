"""Drift: what differs from what is wanted, and how often it was repaired already.

A field that somebody sets back again and again is left to them: the memory of repairs is a value that the caller keeps
and hands in again, so that it may live in a process or in a status.
"""

import datetime
import enum
from collections.abc import Iterable

import msgspec

from governor.kube.applyset.ownership import holders
from governor.kube.applyset.results import GOOD, ObjectResult
from governor.kube.applyset.settings import Settings
from governor.kube.objects import Object, ObjectRef
from governor.values.paths import parse
from governor.values.treediff import Difference


class DriftMode(enum.StrEnum):
    """What is done about drift."""

    OFF = "off"
    WARN = "warn"
    ENFORCE = "enforce"


class Repair(msgspec.Struct, frozen=True):
    """How often a field was set back to what is wanted; an empty path is the object itself, which was deleted."""

    ref: ObjectRef
    path: str
    count: int
    at: datetime.datetime
    """Of the last time."""


class FieldDrift(msgspec.Struct, frozen=True, omit_defaults=True):
    """One field that is not as wanted; ``old`` is what there is, ``new`` what is wanted, both masked."""

    difference: Difference
    managers: tuple[str, ...] = ()
    """Who else manages it now, the latest first."""
    repairs: int = 0
    """How often it was set back before."""
    left: bool = False
    """Whether it is no longer set back, because that did not last."""


class ObjectDrift(msgspec.Struct, frozen=True, omit_defaults=True):
    """One object that is not as wanted, or could not be compared."""

    ref: ObjectRef
    deleted: bool = False
    fields: tuple[FieldDrift, ...] = ()
    error: str = ""
    repairs: int = 0
    """How often it was made again after it had been deleted."""
    left: bool = False
    """Whether it is no longer made again, because that did not last."""
    repair: ObjectResult | None = None
    """What became of the attempt to set it back."""

    @property
    def to_repair(self) -> bool:
        """Whether something of it is to be set back."""
        return (self.deleted and not self.left) or any(not field.left for field in self.fields)


class DriftReport(msgspec.Struct, frozen=True):
    """All objects that are not as wanted."""

    mode: DriftMode
    checked: int = 0
    objects: tuple[ObjectDrift, ...] = ()
    repairs: tuple[Repair, ...] = ()
    """To be handed in at the next check."""


class Memory:
    """The repairs that still count at one moment."""

    def __init__(self, repairs: Iterable[Repair], settings: Settings, now: datetime.datetime) -> None:
        self._settings = settings
        self._now = now
        window = datetime.timedelta(seconds=settings.repair_window_s)
        self._repairs = {(each.ref, each.path): each for each in repairs if now - each.at < window}

    def deleted(self, ref: ObjectRef) -> ObjectDrift:
        """The drift of an object that is not there."""
        count = self._count(ref, "")
        return ObjectDrift(ref, deleted=True, repairs=count, left=count >= self._settings.repair_limit)

    def changed(self, ref: ObjectRef, live: Object, differences: Iterable[Difference]) -> ObjectDrift:
        """The drift of an object whose fields differ."""
        return ObjectDrift(ref, fields=tuple(self._field(ref, live, each) for each in differences))

    def after(self, drifts: Iterable[ObjectDrift], wanted: Iterable[ObjectRef]) -> tuple[Repair, ...]:
        """What is to be remembered: what counts still of wanted objects, and what was repaired now."""
        refs = frozenset(wanted)
        kept = {key: each for key, each in self._repairs.items() if each.ref in refs}
        for drift in drifts:
            if drift.repair and drift.repair.outcome in GOOD:
                kept |= {(drift.ref, path): self._one_more(drift.ref, path) for path in _repaired(drift)}
        return tuple(kept.values())

    def _field(self, ref: ObjectRef, live: Object, difference: Difference) -> FieldDrift:
        count = self._count(ref, difference.path)
        managers = holders(live, parse(difference.path), self._settings.manager)
        return FieldDrift(difference, managers, count, left=count >= self._settings.repair_limit)

    def _count(self, ref: ObjectRef, path: str) -> int:
        known = self._repairs.get((ref, path))
        return known.count if known else 0

    def _one_more(self, ref: ObjectRef, path: str) -> Repair:
        return Repair(ref, path, self._count(ref, path) + 1, self._now)


def _repaired(drift: ObjectDrift) -> list[str]:
    return [""] if drift.deleted else [each.difference.path for each in drift.fields if not each.left]
