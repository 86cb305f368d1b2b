"""Sets of objects: written in order by server-side apply, recorded in the cluster, removed with care, kept from drift.

Made for any caller with manifests and an owner: it knows neither what the objects are for nor whether they are ready.
"""

from governor.kube.applyset.applyset import ApplySet
from governor.kube.applyset.diff import Ignored
from governor.kube.applyset.drift import DriftMode, DriftReport, FieldDrift, ObjectDrift, Repair
from governor.kube.applyset.entries import Entries, Entry
from governor.kube.applyset.results import (
    ApplyReport,
    FieldConflict,
    ObjectResult,
    Outcome,
    Plan,
    Removal,
    RemovalReport,
    RemovalResult,
)
from governor.kube.applyset.settings import Owner, Settings

__all__ = [
    "ApplyReport",
    "ApplySet",
    "DriftMode",
    "DriftReport",
    "Entries",
    "Entry",
    "FieldConflict",
    "FieldDrift",
    "Ignored",
    "ObjectDrift",
    "ObjectResult",
    "Outcome",
    "Owner",
    "Plan",
    "Removal",
    "RemovalReport",
    "RemovalResult",
    "Repair",
    "Settings",
]
