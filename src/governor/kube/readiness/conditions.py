"""Readiness from conditions alone: one declaration per kind, and the kstatus conventions for all other kinds."""

import msgspec

from governor.kube.objects import Object
from governor.kube.readiness.fields import AnyObject, Condition, Metadata, Status, convert, stale_status
from governor.kube.readiness.state import Readiness, failed, progressing, ready


class ConditionRule(msgspec.Struct, frozen=True):
    """Meaning of a kind's condition types, evaluated in the order of the fields; the first match decides."""

    failed: tuple[str, ...] = ()
    """Failed while one of them is true."""
    required: tuple[str, ...] = ()
    """Failed while one of them is false."""
    in_progress: tuple[str, ...] = ()
    """Progressing while one of them is true."""
    ready: tuple[str, ...] = ()
    """The first of them that the object has decides: ready if it is true, otherwise progressing."""
    default: Readiness = progressing("NoStatus", "its controller has not reported a status yet")
    """Readiness if no condition matches."""

    def __call__(self, manifest: Object) -> Readiness:
        """Return the readiness of one object."""
        converted = convert(manifest, AnyObject)
        return self._stale(converted.metadata, converted.status) or self._evaluate(converted.status)

    def _stale(self, metadata: Metadata, status: Status) -> Readiness | None:
        """Return PROGRESSING if one of the conditions observed another generation."""
        relevant = {*self.failed, *self.required, *self.in_progress, *self.ready}
        observed = (each.observed_generation for each in status.conditions if each.type in relevant)
        stale = (stale_status(metadata, generation) for generation in observed if generation is not None)
        return next((each for each in stale if each), None)

    def _evaluate(self, status: Status) -> Readiness:
        if condition := status.first_true(self.failed):
            return failed(*reason_and_message(condition))
        required = (status.condition(name) for name in self.required)
        if condition := next((each for each in required if each and each.is_false), None):
            return failed(*reason_and_message(condition))
        if condition := status.first_true(self.in_progress):
            return progressing(*reason_and_message(condition))
        candidates = (status.condition(name) for name in self.ready)
        if condition := next((each for each in candidates if each), None):
            return (ready if condition.is_true else progressing)(*reason_and_message(condition))
        return self.default


def reason_and_message(condition: Condition) -> tuple[str, str]:
    """Return the reason and message of a condition; empty ones are replaced by its type and status."""
    return condition.reason or condition.type, condition.message or f"{condition.type} is {condition.status}"


GENERIC = ConditionRule(
    failed=("Stalled",),
    in_progress=("Reconciling",),
    ready=("Ready", "Available"),
    default=ready("NoConditions", "it exists and reports no conditions"),
)
"""The kstatus conventions: an object without conditions counts as ready, with the reason NoConditions."""
