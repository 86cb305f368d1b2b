"""Apply sets: ordered server-side apply with an inventory in the cluster, guarded pruning and drift detection.

Works on any manifests of one owner. What the objects are for and whether they are ready is left to the caller.
"""

from governor.kube.applyset.applyset import ApplySet
from governor.kube.applyset.diff import IgnoredFields
from governor.kube.applyset.drift import DriftMode, DriftReport, FieldDrift, ObjectDrift, Repair
from governor.kube.applyset.entries import Entries, Entry
from governor.kube.applyset.reports import ApplyReport, ConvergeReport, Plan, PruneReport, UnrecordedError
from governor.kube.applyset.results import FieldConflict, ObjectResult, Outcome, PruneOutcome, PruneResult
from governor.kube.applyset.settings import TOLERATED_CONTENTS, Claim, Owner, Recreate, Settings, ToleratedContent

__all__ = [
    "TOLERATED_CONTENTS",
    "ApplyReport",
    "ApplySet",
    "Claim",
    "ConvergeReport",
    "DriftMode",
    "DriftReport",
    "Entries",
    "Entry",
    "FieldConflict",
    "FieldDrift",
    "IgnoredFields",
    "ObjectDrift",
    "ObjectResult",
    "Outcome",
    "Owner",
    "Plan",
    "PruneOutcome",
    "PruneReport",
    "PruneResult",
    "Recreate",
    "Repair",
    "Settings",
    "ToleratedContent",
    "UnrecordedError",
]
