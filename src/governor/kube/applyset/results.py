"""What became of each object: the results that callers read and turn into their own words."""

import enum
import re
from collections import Counter
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.errors import ApiError
from governor.kube.objects import ObjectRef
from governor.values.treediff import Difference

_UNFIT: Final = ("failed to create typed patch object", "unable to convert unstructured object")
_MANAGER: Final = re.compile(r'conflict with "((?:[^"\\]|\\.)*)"')


class FieldConflict(msgspec.Struct, frozen=True):
    """A field that another manager has set to something else."""

    path: str
    manager: str


def conflicts_of(error: GovernorError) -> tuple[FieldConflict, ...]:
    """The fields that other managers have; none if that was not the reason."""
    causes = error.causes if isinstance(error, ApiError) else ()
    return tuple(
        FieldConflict(cause.field.removeprefix("."), _manager(cause.message))
        for cause in causes
        if cause.reason == "FieldManagerConflict"
    )


def outdated(error: GovernorError) -> bool:
    """Whether the object is another one than was seen, or there is one where none was seen: look again."""
    if not isinstance(error, ApiError) or conflicts_of(error):
        return False
    return error.kind is Kind.CONFLICT or any(cause.field == "metadata.uid" for cause in error.causes)


def unfit(error: GovernorError) -> bool:
    """Whether the manifest does not fit the schema of its kind, which the server calls an error of its own."""
    if not isinstance(error, ApiError) or error.kind is not Kind.INTERNAL:
        return False
    return any(words in error.message for words in _UNFIT)


def _manager(message: str) -> str:
    named = _MANAGER.search(message)
    return re.sub(r"\\(.)", r"\1", named[1]) if named else ""


class Outcome(enum.StrEnum):
    """What became of one wanted object."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    CONFLICT = "conflict"
    """Another manager has fields of it, or it was replaced meanwhile; nothing was written."""
    REFUSED = "refused"
    """By the server or by us; writing the same again cannot help."""
    FAILED = "failed"
    """Nobody knows, or something has to happen first; write it again later."""
    SKIPPED = "skipped"
    """An earlier stage did not succeed."""


GOOD = frozenset({Outcome.CREATED, Outcome.CHANGED, Outcome.UNCHANGED})


class ObjectResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one wanted object, or in a plan what would."""

    ref: ObjectRef
    outcome: Outcome
    uid: str = ""
    error: str = ""
    conflicts: tuple[FieldConflict, ...] = ()
    differences: tuple[Difference, ...] = ()
    """Of a plan: what the change would be, masked."""
    shared: bool = False
    """Whether it was there before and is somebody else's too: it will never be removed, only our fields of it."""
    asked: bool = True
    """Whether the server was asked: not if the manifest is the one that was applied last."""


class ApplyReport(msgspec.Struct, frozen=True):
    """What became of all wanted objects, in the order of writing."""

    results: tuple[ObjectResult, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is as wanted."""
        return all(result.outcome in GOOD for result in self.results)

    @property
    def unasked(self) -> int:
        """For how many objects no request was made, because their manifests did not change."""
        return sum(not result.asked for result in self.results)

    def counts(self) -> dict[Outcome, int]:
        """How many objects had which outcome."""
        return dict(Counter(result.outcome for result in self.results))


class Removal(enum.StrEnum):
    """What became of one object that is no longer wanted."""

    REMOVED = "removed"
    ABSENT = "absent"
    """It was gone already."""
    RELEASED = "released"
    """It was there before us: our fields were given up, it stays."""
    KEPT = "kept"
    """An annotation on it says so, or it is wanted by another name."""
    FOREIGN = "foreign"
    """It is another object of this name, or nothing on it says that it is ours; it stays."""
    HELD = "held"
    """It holds objects of others, or it is not known what it holds; it stays in the inventory."""
    TERMINATING = "terminating"
    """It is marked for removal and waits for something; it stays in the inventory."""
    REFUSED = "refused"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Something that has to go first did not."""


FORGOTTEN = frozenset({Removal.REMOVED, Removal.ABSENT, Removal.RELEASED, Removal.KEPT, Removal.FOREIGN})
"""What is no longer in the inventory afterwards."""


class RemovalResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one object that is no longer wanted, or in a dry run what would."""

    ref: ObjectRef
    outcome: Removal
    reason: str = ""
    holds: tuple[ObjectRef, ...] = ()
    """Some of the objects that hold it."""


class RemovalReport(msgspec.Struct, frozen=True):
    """What became of all objects that are no longer wanted, in the order of removal."""

    results: tuple[RemovalResult, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether nothing is left to be done."""
        return all(result.outcome in FORGOTTEN for result in self.results)

    def counts(self) -> dict[Removal, int]:
        """How many objects had which outcome."""
        return dict(Counter(result.outcome for result in self.results))


class Plan(msgspec.Struct, frozen=True):
    """What apply and then prune would do."""

    apply: ApplyReport
    removal: RemovalReport


_TRY_AGAIN = frozenset({Kind.EXHAUSTED, Kind.UNAVAILABLE, Kind.DEADLINE, Kind.INTERNAL, Kind.UNAUTHENTICATED})


def failure_of(ref: ObjectRef, error: GovernorError) -> ObjectResult:
    """The result for an object that an error befell."""
    if error.kind is Kind.CONFLICT:
        return ObjectResult(ref, Outcome.CONFLICT, error=error.message, conflicts=conflicts_of(error))
    passing = error.kind in _TRY_AGAIN and not unfit(error)
    return ObjectResult(ref, Outcome.FAILED if passing else Outcome.REFUSED, error=str(error))


def removal_failure_of(ref: ObjectRef, error: GovernorError) -> RemovalResult:
    """The result for an object whose removal an error befell."""
    passing = error.kind in _TRY_AGAIN or error.kind is Kind.CONFLICT
    return RemovalResult(ref, Removal.FAILED if passing else Removal.REFUSED, str(error))
