"""The kind RuntimeStatus, and the status of each namespace from the findings of a delivery. Pure.

The CustomResourceDefinition is generated from these structs (``make generate``).
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from governor.agent.verification.findings import Findings
from governor.domain import conditions
from governor.domain.bundles import Delivery
from governor.domain.documents import API_VERSION
from governor.domain.reports import Cause, Instances, Report, ResourceReport, State
from governor.domain.windows import Restraint
from governor.kube.controller.conditions import Condition
from governor.kube.controller.views import Resource, Status
from governor.kube.objects import ApiResource, Object

APPLIED: Final = "Applied"
VERIFIED: Final = "Verified"
MAX_MESSAGE: Final = 1024

_GROUP, _, _VERSION = API_VERSION.partition("/")
RUNTIME_STATUSES: Final = ApiResource(_GROUP, _VERSION, "RuntimeStatus", "runtimestatuses", namespaced=True)
_UNWRITTEN: Final = frozenset({State.RECEIVED, State.PREFLIGHTED})


class NamespaceStatus(Status, frozen=True, gc=False):
    """What one runtime has applied in one namespace, and how much of it the sidecars have proven."""

    delivery: int = 0
    """Sequence of the delivery that the conditions describe."""
    digest: str = ""
    """Digest of its bundle."""
    instances: str = ""
    """Verified instances of all instances with Dapr, such as 19/20."""


class RuntimeStatus(Resource, frozen=True, kw_only=True):
    """The status of one runtime in one namespace; its name is that of the runtime. It has no spec."""

    status: NamespaceStatus = NamespaceStatus()
    """What the runtime has applied in this namespace, and how much of it is proven."""


def manifest_of(runtime: str, namespace: str) -> Object:
    """Return the manifest of the status object of a runtime in a namespace."""
    metadata = {"name": runtime, "namespace": namespace}
    return {"apiVersion": RUNTIME_STATUSES.api_version, "kind": RUNTIME_STATUSES.kind, "metadata": metadata}


def statuses_of(
    delivery: Delivery,
    found: Findings,
    namespaces: Iterable[str],
    now: datetime,
    redact: Callable[[str], str] = str,
) -> dict[str, NamespaceStatus]:
    """Return the status of each namespace, with redacted texts."""
    return {namespace: _status(delivery, found, namespace, now, redact) for namespace in namespaces}


def _status(
    delivery: Delivery, found: Findings, namespace: str, now: datetime, redact: Callable[[str], str]
) -> NamespaceStatus:
    resources = [each for each in found.resources if each.resource.namespace == namespace]
    workloads = [each for each in found.workloads if each.workload.namespace == namespace]
    verified = _verified(delivery, Findings(tuple(resources), tuple(workloads), restraint=found.restraint), now)
    instances = _total(each.instances for each in workloads)
    counts = f"{instances.verified} of {instances.total} instances verified"
    if instances.total:
        is_met = verified.status is conditions.Status.TRUE
        verified = msgspec.structs.replace(verified, message=counts if is_met else f"{counts}; {verified.message}")
    return NamespaceStatus(
        conditions=(
            _condition(_applied(delivery, resources, found.restraint, now), redact),
            _condition(verified, redact),
        ),
        delivery=delivery.sequence,
        digest=delivery.digest,
        instances=f"{instances.verified}/{instances.total}",
    )


def _verified(delivery: Delivery, found: Findings, now: datetime) -> conditions.Condition:
    report = Report(
        runtime=delivery.runtime,
        sequence=delivery.sequence,
        attempt=delivery.attempt,
        digest=delivery.digest,
        session=0,
        n=0,
        time=now,
        agent="",
        resources=found.resources,
        workloads=found.workloads,
        restraint=found.restraint,
    )
    return conditions.verified(conditions.Progress(delivery.sequence, delivery.digest, now), report)


def _applied(
    delivery: Delivery, resources: Sequence[ResourceReport], restraint: Restraint | None, now: datetime
) -> conditions.Condition:
    """Return the condition Applied; a resource that is not applied has the reason that it has in Verified."""
    missing = [each for each in resources if each.state in _UNWRITTEN or _is_rejected(each)]
    if missing:
        found = Findings(tuple(missing), (), restraint=restraint)
        return msgspec.structs.replace(_verified(delivery, found, now), type=APPLIED)
    text = f"delivery {delivery.sequence} is applied" if resources else "the delivery has no resource here"
    reason = "Applied" if resources else "NothingToApply"
    return conditions.Condition(APPLIED, conditions.Status.TRUE, reason, text)


def _is_rejected(report: ResourceReport) -> bool:
    """Whether it failed before any sidecar could load it, or has drifted."""
    return report.state is State.FAILED and (not report.workloads or report.cause is Cause.AGENT)


def _condition(condition: conditions.Condition, redact: Callable[[str], str]) -> Condition:
    text = redact(condition.message)
    message = text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 3]}..."
    return Condition(condition.type, condition.status.value, condition.reason, message)


def _total(counts: Iterable[Instances]) -> Instances:
    every = tuple(counts)
    return Instances(sum(each.total for each in every), sum(each.verified for each in every))
