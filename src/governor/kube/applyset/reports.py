"""Reports of one run over all objects of a set, and what remains to be done after it."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from governor.errors import GovernorError
from governor.kube.applyset.drift import DriftReport, ObjectDrift
from governor.kube.applyset.entries import Entries
from governor.kube.applyset.manifests import Desired
from governor.kube.applyset.order import group_by_stage
from governor.kube.applyset.results import SETTLED, SUCCEEDED, ObjectResult, Outcome, PruneOutcome, PruneResult
from governor.kube.objects import ObjectRef

_MAX_PROBLEMS: Final = 10
_MAX_FIELDS: Final = 5


class ApplyReport(msgspec.Struct, frozen=True):
    """Results of all desired objects, in apply order."""

    results: tuple[ObjectResult, ...]

    @property
    def ok(self) -> bool:
        """Return whether every object succeeded."""
        return all(result.outcome in SUCCEEDED for result in self.results)

    @property
    def unsent(self) -> int:
        """Return the number of objects without a request because their manifests did not change."""
        return sum(not result.sent for result in self.results)

    def counts(self) -> dict[Outcome, int]:
        """Return the number of objects per outcome."""
        return dict(Counter(result.outcome for result in self.results))


def report_of(
    desired: Iterable[Desired], results: Mapping[ObjectRef, ObjectResult], first: Sequence[Collection[ObjectRef]] = ()
) -> ApplyReport:
    """Return all results in apply order; objects without one are unchanged."""
    ordered = (each.ref for stage in group_by_stage(desired, lambda each: each.ref, first) for each in stage)
    return ApplyReport(tuple(results.get(ref) or ObjectResult(ref, Outcome.UNCHANGED, sent=False) for ref in ordered))


class PruneReport(msgspec.Struct, frozen=True):
    """Results of all objects that are no longer desired, in prune order."""

    results: tuple[PruneResult, ...] = ()

    @property
    def complete(self) -> bool:
        """Return whether nothing is left to prune."""
        return all(result.outcome in SETTLED for result in self.results)

    def counts(self) -> dict[PruneOutcome, int]:
        """Return the number of objects per outcome."""
        return dict(Counter(result.outcome for result in self.results))


class ConvergeReport(msgspec.Struct, frozen=True):
    """Results of one ``converge``."""

    apply: ApplyReport
    """Results of all desired objects; those of repaired objects included."""
    drift: DriftReport
    prune: PruneReport
    entries: Entries = {}
    """The inventory after it."""

    @property
    def ok(self) -> bool:
        """Return whether every object is in the desired state and nothing is left to prune."""
        drifted = any(drift.remains for drift in self.drift.objects)
        return self.apply.ok and not drifted and self.prune.complete

    @property
    def pending(self) -> bool:
        """Return whether only deletions in progress remain: run again when an object of the set is gone."""
        if self.ok or any(drift.remains and not _is_terminating(drift) for drift in self.drift.objects):
            return False
        applied = {result.outcome for result in self.apply.results} - SUCCEEDED
        pruned = {result.outcome for result in self.prune.results} - SETTLED
        terminating = Outcome.TERMINATING in applied or PruneOutcome.TERMINATING in pruned
        return (
            terminating
            and applied <= {Outcome.TERMINATING, Outcome.SKIPPED}
            and pruned <= {PruneOutcome.TERMINATING, PruneOutcome.SKIPPED}
        )

    def problems(self) -> tuple[str, ...]:
        """Return why the set is not in the desired state, for a condition; without objects that wait for others."""
        texts = tuple(self._problems())
        more = len(texts) - _MAX_PROBLEMS
        return (*texts[:_MAX_PROBLEMS], f"and {more} more") if more > 0 else texts

    def _problems(self) -> Iterator[str]:
        for result in self.apply.results:
            if result.outcome not in SUCCEEDED and result.outcome is not Outcome.SKIPPED:
                yield f"{result.ref}: {result.outcome}: {result.error}"
        for drift in self.drift.objects:
            failed = drift.repair is not None and drift.repair.outcome not in SUCCEEDED  # has its own result
            if drift.remains and not failed:
                yield f"{drift.ref}: {_describe(drift)}"
        for pruned in self.prune.results:
            if pruned.outcome not in SETTLED and pruned.outcome is not PruneOutcome.SKIPPED:
                yield f"{pruned.ref}: {pruned.outcome}: {pruned.reason}"


def _is_terminating(drift: ObjectDrift) -> bool:
    return drift.repair is not None and drift.repair.outcome in {Outcome.TERMINATING, Outcome.SKIPPED}


def _describe(drift: ObjectDrift) -> str:
    """Return what differs; values are left out, a condition is read by more users than the object."""
    if drift.error:
        return f"cannot be compared: {drift.error}"
    if drift.deleted:
        return "was deleted" + (", and again after each repair" if drift.exhausted else "")
    fields = [field for field in drift.fields if field.exhausted or drift.repair is None]
    named = ", ".join(field.difference.path for field in fields[:_MAX_FIELDS])
    managers = sorted({manager for field in fields for manager in field.managers})
    others = f" by {', '.join(managers)}" if managers else ""
    again = ", and again after each repair" if any(field.exhausted for field in fields) else ""
    return f"{len(fields)} fields were changed{others}{again}: {named}"


class UnrecordedError(GovernorError):
    """The inventory could not be written after the objects. It lists them all, so a retry continues from ``apply``."""

    def __init__(self, error: GovernorError, apply: ApplyReport) -> None:
        super().__init__(error.kind, error.code, error.message, error.details)
        self.apply = apply


class Plan(msgspec.Struct, frozen=True):
    """What ``converge`` would apply and prune."""

    apply: ApplyReport
    prune: PruneReport
