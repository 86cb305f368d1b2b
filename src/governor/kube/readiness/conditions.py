"""Verdicts from conditions alone: one declaration per kind, and the one for kinds that nobody declared."""

import msgspec

from governor.kube.objects import Object
from governor.kube.readiness.fields import Condition, Metadata, Plain, Status, read, stale
from governor.kube.readiness.verdict import Readiness, failed, progressing, ready


class Conditions(msgspec.Struct, frozen=True):
    """Which conditions say what; looked at in the order of the fields, the first that speaks decides."""

    failed: tuple[str, ...] = ()
    """Failed while one of them is true."""
    required: tuple[str, ...] = ()
    """Failed while one of them is false."""
    busy: tuple[str, ...] = ()
    """Progressing while one of them is true."""
    ready: tuple[str, ...] = ()
    """Ready if it is true, otherwise progressing; of several the first that the object has."""
    silence: Readiness = progressing("NoStatus", "its controller has not said anything of it yet")
    """When none of them speaks."""

    def __call__(self, manifest: Object) -> Readiness:
        """The verdict on one object."""
        plain = read(manifest, Plain)
        return self._behind(plain.metadata, plain.status) or self._judge(plain.status)

    def _behind(self, metadata: Metadata, status: Status) -> Readiness | None:
        """A verdict if one of the conditions speaks of another generation."""
        relevant = {*self.failed, *self.required, *self.busy, *self.ready}
        observed = (each.observed_generation for each in status.conditions if each.type in relevant)
        verdicts = (stale(metadata, generation) for generation in observed if generation is not None)
        return next((verdict for verdict in verdicts if verdict), None)

    def _judge(self, status: Status) -> Readiness:
        if condition := status.holding(self.failed):
            return failed(*words(condition))
        required = (status.condition(name) for name in self.required)
        if refused := next((each for each in required if each and each.false), None):
            return failed(*words(refused))
        if condition := status.holding(self.busy):
            return progressing(*words(condition))
        decisive = (status.condition(name) for name in self.ready)
        if condition := next((each for each in decisive if each), None):
            return ready(*words(condition)) if condition.true else progressing(*words(condition))
        return self.silence


def words(condition: Condition) -> tuple[str, str]:
    """The reason and the message of a condition, or what stands in for them."""
    return condition.reason or condition.type, condition.message or f"{condition.type} is {condition.status}"


ANY_KIND = Conditions(
    failed=("Stalled",),
    busy=("Reconciling",),
    ready=("Ready", "Available"),
    silence=ready("NoConditions", "it exists, and says nothing of its state"),
)
"""The conventions of kstatus, for kinds outside the table: silence counts as readiness, and the reason says so."""
