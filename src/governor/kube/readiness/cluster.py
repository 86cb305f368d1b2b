"""Readiness of namespaces, nodes, quotas, disruption budgets, autoscalers, admission policies and signing requests."""

from collections.abc import Mapping

import msgspec

from governor.kube.objects import Object
from governor.kube.readiness.conditions import reason_and_message
from governor.kube.readiness.fields import Metadata, ObservedStatus, Status, convert, stale_status, termination
from governor.kube.readiness.state import Readiness, failed, progressing, ready, terminating, unknown


class _PhaseStatus(Status, frozen=True):
    phase: str = ""


class _Namespace(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    status: _PhaseStatus = _PhaseStatus()


def namespace(manifest: Object) -> Readiness:
    """Return READY if active, otherwise what blocks the termination: objects, finalizers, an unavailable API group."""
    it = convert(manifest, _Namespace)
    if it.status.phase != "Terminating" and not it.metadata.deletion_timestamp:
        return ready("Active")
    blocking = [each for each in it.status.conditions if each.is_true]
    if blocking:
        message = "; ".join(reason_and_message(each)[1] for each in blocking)
        return terminating(blocking[0].reason or blocking[0].type, message)
    return termination(it.metadata) or terminating("Terminating")


class _NodeSpec(msgspec.Struct, frozen=True):
    unschedulable: bool = False


class _Node(msgspec.Struct, frozen=True):
    spec: _NodeSpec = _NodeSpec()
    status: Status = Status()


def node(manifest: Object) -> Readiness:
    """Return READY if the kubelet reports Ready and the network is available; pressure and cordons do not count."""
    it = convert(manifest, _Node)
    readiness = it.status.condition("Ready")
    if readiness is None:
        return progressing("NoStatus", "its kubelet has not reported yet")
    if not readiness.is_true:
        return (progressing if readiness.is_false else unknown)(*reason_and_message(readiness))
    if unavailable := it.status.first_true(("NetworkUnavailable",)):
        return progressing(*reason_and_message(unavailable))
    return ready("Cordoned", "accepts no new pods") if it.spec.unschedulable else ready("Ready")


class _Amounts(msgspec.Struct, frozen=True):
    hard: Mapping[str, str] = {}
    used: Mapping[str, str] = {}


class _Quota(msgspec.Struct, frozen=True):
    spec: _Amounts = _Amounts()
    status: _Amounts = _Amounts()


def resource_quota(manifest: Object) -> Readiness:
    """Return READY if usage is computed for every limit: until then the API server rejects limited objects."""
    it = convert(manifest, _Quota)
    missing = [
        name for name, limit in it.spec.hard.items() if it.status.hard.get(name) != limit or name not in it.status.used
    ]
    if missing:
        return progressing("NotComputed", f"usage is not computed yet for: {', '.join(missing)}")
    return ready("Computed")


class _Observed(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    status: ObservedStatus = ObservedStatus()


def pod_disruption_budget(manifest: Object) -> Readiness:
    """Return READY if the budget is computed, however many disruptions it allows."""
    it = convert(manifest, _Observed)
    if stale := stale_status(it.metadata, it.status.observed_generation):
        return stale
    allowed = it.status.condition("DisruptionAllowed")
    if allowed and allowed.reason == "SyncFailed":
        return failed(*reason_and_message(allowed))
    return ready(*reason_and_message(allowed)) if allowed else ready("Computed")


def horizontal_pod_autoscaler(manifest: Object) -> Readiness:
    """Return READY if the autoscaler can scale and has metrics, or is disabled by zero replicas."""
    status = convert(manifest, _Observed).status
    if status.observed_generation is None and not status.conditions:
        return progressing("NoStatus", "its controller has not reported a status yet")
    for name in ("AbleToScale", "ScalingActive"):
        condition = status.condition(name)
        if condition and not condition.is_true and condition.reason not in ("ScalingDisabled", "ScaledToZero"):
            return progressing(*reason_and_message(condition))
    # Only version v2 has conditions.
    return ready("Scaling") if status.conditions else ready("NoConditions", "read in a version without conditions")


class _Warning(msgspec.Struct, frozen=True, rename="camel"):
    field_ref: str = ""
    warning: str = ""


class _TypeChecking(msgspec.Struct, frozen=True, rename="camel"):
    expression_warnings: tuple[_Warning, ...] = ()


class _PolicyStatus(msgspec.Struct, frozen=True, rename="camel"):
    type_checking: _TypeChecking = _TypeChecking()


class _Policy(msgspec.Struct, frozen=True):
    status: _PolicyStatus = _PolicyStatus()


def validating_admission_policy(manifest: Object) -> Readiness:
    """Return READY, with the warnings of the type check: a policy is in force as soon as it exists."""
    warnings = convert(manifest, _Policy).status.type_checking.expression_warnings
    if warnings:
        return ready("TypeWarnings", "; ".join(f"{each.field_ref}: {each.warning}" for each in warnings))
    return ready("InForce")


class _RequestStatus(Status, frozen=True):
    certificate: str = ""


class _SigningRequest(msgspec.Struct, frozen=True):
    status: _RequestStatus = _RequestStatus()


def certificate_signing_request(manifest: Object) -> Readiness:
    """Return READY if the certificate is issued; approval alone is not enough."""
    status = convert(manifest, _SigningRequest).status
    if rejected := status.first_true(("Denied", "Failed")):
        return failed(*reason_and_message(rejected))
    if status.certificate:
        return ready("Issued")
    if status.first_true(("Approved",)):
        return progressing("Approved", "the signer has not issued the certificate yet")
    return progressing("AwaitingApproval", "it must be approved or denied")
