"""What others stand on (namespaces, nodes, quotas), and what steers them (autoscalers, budgets, policies, requests)."""

from collections.abc import Mapping

import msgspec

from governor.kube.objects import Object
from governor.kube.readiness.conditions import words
from governor.kube.readiness.fields import Metadata, Observed, Status, read, removal, stale
from governor.kube.readiness.verdict import Readiness, failed, progressing, ready, terminating, unknown


class _PhaseStatus(Status, frozen=True):
    phase: str = ""


class _Namespace(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    status: _PhaseStatus = _PhaseStatus()


def namespace(manifest: Object) -> Readiness:
    """Active; of a terminating one, what keeps it: objects, their finalizers, an API group that does not answer."""
    it = read(manifest, _Namespace)
    if it.status.phase != "Terminating" and not it.metadata.deletion_timestamp:
        return ready("Active")
    hindrances = [each for each in it.status.conditions if each.true]
    if hindrances:
        return terminating(hindrances[0].reason or hindrances[0].type, "; ".join(words(each)[1] for each in hindrances))
    return removal(it.metadata) or terminating("Terminating")


class _NodeSpec(msgspec.Struct, frozen=True):
    unschedulable: bool = False


class _Node(msgspec.Struct, frozen=True):
    spec: _NodeSpec = _NodeSpec()
    status: Status = Status()


def node(manifest: Object) -> Readiness:
    """Its kubelet says that it is ready, and its network is there; pressure and cordons leave it ready."""
    it = read(manifest, _Node)
    being_ready = it.status.condition("Ready")
    if being_ready is None:
        return progressing("NoStatus", "its kubelet has not reported yet")
    if not being_ready.true:
        return (progressing if being_ready.false else unknown)(*words(being_ready))
    if unavailable := it.status.holding(("NetworkUnavailable",)):
        return progressing(*words(unavailable))
    return ready("Cordoned", "takes no new pods") if it.spec.unschedulable else ready("Ready")


class _Amounts(msgspec.Struct, frozen=True):
    hard: Mapping[str, str] = {}
    used: Mapping[str, str] = {}


class _Quota(msgspec.Struct, frozen=True):
    spec: _Amounts = _Amounts()
    status: _Amounts = _Amounts()


def resource_quota(manifest: Object) -> Readiness:
    """Computed for all it limits: until then the API server refuses what it would count."""
    it = read(manifest, _Quota)
    missing = [
        name for name, most in it.spec.hard.items() if it.status.hard.get(name) != most or name not in it.status.used
    ]
    if missing:
        return progressing("NotComputed", f"use is not counted yet of: {', '.join(missing)}")
    return ready("Computed")


class _Watched(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    status: Observed = Observed()


def pod_disruption_budget(manifest: Object) -> Readiness:
    """In force as soon as it is computed, however many disruptions that allows."""
    it = read(manifest, _Watched)
    if behind := stale(it.metadata, it.status.observed_generation):
        return behind
    allowed = it.status.condition("DisruptionAllowed")
    if allowed and allowed.reason == "SyncFailed":
        return failed(*words(allowed))
    return ready(*words(allowed)) if allowed else ready("Computed")


def horizontal_pod_autoscaler(manifest: Object) -> Readiness:
    """Able to scale and having metrics; one that is switched off by zero replicas counts as ready."""
    status = read(manifest, _Watched).status
    if status.observed_generation is None and not status.conditions:
        return progressing("NoStatus", "its controller has not looked at it yet")
    for name in ("AbleToScale", "ScalingActive"):
        condition = status.condition(name)
        if condition and not condition.true and condition.reason not in ("ScalingDisabled", "ScaledToZero"):
            return progressing(*words(condition))
    # Only version v2 carries conditions.
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
    """In force as soon as it exists; what the type check found is only said."""
    warnings = read(manifest, _Policy).status.type_checking.expression_warnings
    if warnings:
        return ready("TypeWarnings", "; ".join(f"{each.field_ref}: {each.warning}" for each in warnings))
    return ready("InForce")


class _RequestStatus(Status, frozen=True):
    certificate: str = ""


class _SigningRequest(msgspec.Struct, frozen=True):
    status: _RequestStatus = _RequestStatus()


def certificate_signing_request(manifest: Object) -> Readiness:
    """Signed; approval alone is not enough."""
    status = read(manifest, _SigningRequest).status
    if refusal := status.holding(("Denied", "Failed")):
        return failed(*words(refusal))
    if status.certificate:
        return ready("Issued")
    if status.holding(("Approved",)):
        return progressing("Approved", "the signer has not issued the certificate yet")
    return progressing("AwaitingApproval", "somebody must approve or deny it")
