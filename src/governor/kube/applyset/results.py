"""Results per object of apply and prune, and how server errors become results."""

import enum
import re
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.errors import ApiError
from governor.kube.objects import ObjectRef
from governor.values.treediff import Difference

FOREIGN: Final = "object-foreign"
"""Code of a refusal because the object belongs to another owner."""

_SCHEMA_ERRORS: Final = ("failed to create typed patch object", "unable to convert unstructured object")
_MANAGER: Final = re.compile(r'conflict with "((?:[^"\\]|\\.)*)"')
_IMMUTABLE: Final = re.compile(
    r"immutable|cannot change|(may|can) ?not (be )?(change|unset|updated)|updates? to .* forbidden|is forbidden after",
    re.IGNORECASE | re.DOTALL,
)
"""The messages differ by kind; the API has no reason of its own for this."""
_UNPROCESSABLE: Final = 422
_NAMESPACE_TERMINATING: Final = "NamespaceTerminating"
RETRYABLE: Final = frozenset({Kind.EXHAUSTED, Kind.UNAVAILABLE, Kind.DEADLINE, Kind.INTERNAL, Kind.UNAUTHENTICATED})
"""Errors after which the same request may succeed."""


class Outcome(enum.StrEnum):
    """Outcome of applying one object."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    RECREATED = "recreated"
    """Deleted and created again, because a field is immutable."""
    CONFLICT = "conflict"
    """Another manager owns some of the fields, or the object was replaced meanwhile; nothing was written."""
    REFUSED = "refused"
    """Rejected by the server or by the set; retrying the same manifest cannot help."""
    FAILED = "failed"
    """The outcome is unknown or a precondition is missing; retry later."""
    TERMINATING = "terminating"
    """It or its namespace is being deleted; apply it again when that is gone."""
    SKIPPED = "skipped"
    """An earlier stage failed."""


SUCCEEDED: Final = frozenset({Outcome.CREATED, Outcome.CHANGED, Outcome.UNCHANGED, Outcome.RECREATED})


class FieldConflict(msgspec.Struct, frozen=True):
    """A field that another manager owns with a different value."""

    path: str
    manager: str


class Seen(msgspec.Struct, frozen=True, order=True):
    """State of an object as far as it shows whether its content changed."""

    version: str = ""
    """The resourceVersion; empty if unknown."""
    generation: int = 0
    """Number of changes of the content without status; 0 for kinds without status or that do not count them."""
    metadata: str = ""
    """Digest of labels, annotations, owner references and finalizers; empty without generation."""
    ignored: str = ""
    """Digest of the paths that were ignored; empty without any."""


class ObjectResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of applying one object, or of planning to."""

    ref: ObjectRef
    outcome: Outcome
    uid: str = ""
    error: str = ""
    code: str = ""
    """Code of the error, or ``FOREIGN``; empty for a decision of the set."""
    reason: str = ""
    """Why the object was re-created."""
    conflicts: tuple[FieldConflict, ...] = ()
    differences: tuple[Difference, ...] = ()
    """In a plan: the masked changes."""
    shared: bool = False
    """Whether the object existed before and is not owned by the set: pruning only releases the set's fields."""
    seen: Seen = Seen()
    """State after the apply; empty if the object is not wholly as desired."""
    sent: bool = True
    """Whether a request was sent; not if the manifest equals the one applied last."""


class PruneOutcome(enum.StrEnum):
    """Outcome of pruning one object that is no longer desired."""

    REMOVED = "removed"
    ABSENT = "absent"
    """It was already gone."""
    RELEASED = "released"
    """It existed before the set: the set's fields were released, the object stays."""
    KEPT = "kept"
    """It has a keep annotation, or is desired under another API group."""
    FOREIGN = "foreign"
    """It is a different object of this name, or carries no sign of this set; it stays."""
    HELD = "held"
    """It contains objects of others, or its contents cannot be listed; it stays in the inventory."""
    TERMINATING = "terminating"
    """Its deletion is not finished; it stays in the inventory."""
    REFUSED = "refused"
    FAILED = "failed"
    SKIPPED = "skipped"
    """An object that must be deleted first still exists."""


SETTLED: Final = frozenset(
    {
        PruneOutcome.REMOVED,
        PruneOutcome.ABSENT,
        PruneOutcome.RELEASED,
        PruneOutcome.KEPT,
        PruneOutcome.FOREIGN,
    }
)
"""Outcomes after which an object leaves the inventory."""


class PruneResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of pruning one object, or of a dry run."""

    ref: ObjectRef
    outcome: PruneOutcome
    reason: str = ""
    blockers: tuple[ObjectRef, ...] = ()
    """Some of the objects of others that it contains."""
    code: str = ""
    """Code of the error, if a request failed."""


def conflicts_of(error: GovernorError) -> tuple[FieldConflict, ...]:
    """Return the field conflicts that the server reported; empty for any other error."""
    causes = error.causes if isinstance(error, ApiError) else ()
    return tuple(
        FieldConflict(cause.field.removeprefix("."), _manager(cause.message))
        for cause in causes
        if cause.reason == "FieldManagerConflict"
    )


def is_stale(error: GovernorError) -> bool:
    """Return whether the write was based on a stale read: the object was created, replaced or changed since."""
    if not isinstance(error, ApiError) or conflicts_of(error):
        return False
    return error.kind is Kind.CONFLICT or any(cause.field == "metadata.uid" for cause in error.causes)


def immutable_fields(error: GovernorError) -> tuple[str, ...]:
    """Return the fields that the server does not change; empty if it rejected the object for other reasons too.

    A cause without a field comes from an admission policy or webhook, which forbids the change itself.
    """
    if not isinstance(error, ApiError) or error.status != _UNPROCESSABLE or is_stale(error):
        return ()
    causes = error.causes
    if not all(cause.field and _IMMUTABLE.search(cause.message) for cause in causes):
        return ()
    return tuple(dict.fromkeys(cause.field for cause in causes))


def apply_failure(ref: ObjectRef, error: GovernorError) -> ObjectResult:
    """Return the result of an apply that raised an error."""
    if error.kind is Kind.CONFLICT:
        conflicts = conflicts_of(error)
        return ObjectResult(ref, Outcome.CONFLICT, error=error.message, code=error.code, conflicts=conflicts)
    if isinstance(error, ApiError) and any(cause.reason == _NAMESPACE_TERMINATING for cause in error.causes):
        return ObjectResult(ref, Outcome.TERMINATING, error=error.message, code=error.code)
    # An apply creates: if the server does not find something, that is the namespace, the kind or a role.
    retryable = error.kind in RETRYABLE | {Kind.NOT_FOUND} and not _is_schema_error(error)
    outcome = Outcome.FAILED if retryable else Outcome.REFUSED
    return ObjectResult(ref, outcome, error=str(error), code=error.code)


def prune_failure(ref: ObjectRef, error: GovernorError) -> PruneResult:
    """Return the result of a prune that raised an error."""
    retryable = error.kind in RETRYABLE or error.kind is Kind.CONFLICT
    outcome = PruneOutcome.FAILED if retryable else PruneOutcome.REFUSED
    return PruneResult(ref, outcome, str(error), code=error.code)


def _is_schema_error(error: GovernorError) -> bool:
    """Return whether the manifest violates the schema of its kind, which the server reports as status 500."""
    if not isinstance(error, ApiError) or error.kind is not Kind.INTERNAL:
        return False
    return any(text in error.message for text in _SCHEMA_ERRORS)


def _manager(message: str) -> str:
    match = _MANAGER.search(message)
    return re.sub(r"\\(.)", r"\1", match[1]) if match else ""
