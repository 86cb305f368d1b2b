"""Classification of failures: by what API servers answer, and by what objects report of themselves. Pure.

API servers have no reasons of their own for these causes; their texts are the same in all supported versions.
"""

import re
from collections.abc import Iterable
from typing import Final

from governor.kube.applyset.results import SUCCEEDED, ObjectResult
from governor.reconciler.kinds.failure import FailureType

_TEXTS: Final = (
    (FailureType.QUOTA, re.compile(r"exceeded quota|insufficient quota|failed quota", re.IGNORECASE)),
    (
        FailureType.ADMISSION,
        re.compile(
            r"admission webhook .* denied|denied the request|failed calling webhook|"
            r"ValidatingAdmissionPolicy .* denied|violates PodSecurity|cannot be created by admission",
            re.IGNORECASE | re.DOTALL,
        ),
    ),
    (FailureType.IMMUTABLE_FIELD, re.compile(r"is immutable", re.IGNORECASE)),
    (
        FailureType.NOT_SCHEDULABLE,
        re.compile(r"Unschedulable|FailedScheduling|nodes are available|SchedulingGated"),
    ),
)
"""In the order in which a cause hides the others: a pod that a quota refuses is never scheduled."""


def type_in(*texts: str) -> FailureType | None:
    """Return the cause that texts of an API server or of a controller name, or None."""
    return next((kind for kind, pattern in _TEXTS if any(map(pattern.search, texts))), None)


def type_of_results(results: Iterable[ObjectResult]) -> FailureType | None:
    """Return the cause for which objects could not be applied, or None if it is none of those with a type."""
    return type_in(*(each.error for each in results if each.outcome not in SUCCEEDED))
