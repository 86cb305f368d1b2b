"""Why a workload is not ready: its pods know what its own status does not say, such as that no node has room for them.

Pods are read only if a module is not ready for some time, most rollouts end before; and before it is escalated.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from governor.errors import GovernorError
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object, ObjectRef, ref_of
from governor.kube.readiness import Readiness, State, compute_readiness, summarise
from governor.reconciler.kinds.cluster import Cluster
from governor.reconciler.kinds.state import HEALTHY
from governor.reconciler.release.objects import objects_client
from governor.reconciler.steps.step import Work, is_unmet_for

PODS: Final = ApiResource("", "v1", "Pod", "pods", namespaced=True)
DIAGNOSE_AFTER_S: Final = 10.0
_MAX_WORKLOADS: Final = 3
_MAX_PODS: Final = 20
_WORKLOADS: Final = frozenset(
    {("apps", "Deployment"), ("apps", "StatefulSet"), ("apps", "DaemonSet"), ("apps", "ReplicaSet"), ("batch", "Job")}
)


async def diagnosed(work: Work, summary: Readiness) -> Readiness:
    """Return the readiness of a module with what the pods of its workloads report."""
    pending_s = work.cluster.spec.pending_timeout if isinstance(work.cluster, Cluster) else DIAGNOSE_AFTER_S
    if not is_unmet_for(work, HEALTHY, min(DIAGNOSE_AFTER_S, pending_s - 1)):
        return summary
    client = objects_client(work.on.place, work.instance.spec)
    found = {ref: each for workload in _unready_workloads(work) for ref, each in await _pods(client, workload)}
    pods = summarise(found)
    if pods.state is State.READY:
        return summary
    message = f"{summary.message}; pods: {pods.message}"
    return msgspec.structs.replace(summary, reason=pods.reason, message=message)


def _unready_workloads(work: Work) -> list[ObjectRef]:
    states = {ref: work.on.watch.state(ref) for ref in work.entries if (ref.group, ref.kind) in _WORKLOADS}
    unready = (ref for ref, state in sorted(states.items()) if state and state.readiness.state is not State.READY)
    return list(unready)[:_MAX_WORKLOADS]


async def _pods(client: Client, workload: ObjectRef) -> list[tuple[ObjectRef, Readiness]]:
    """Return the readiness of the pods of a workload; empty if they may not be read."""
    try:
        resource = await client.discovery.find(workload.group, workload.kind)
        owner = await client.get(resource, workload.name, workload.namespace)
        labels = ",".join(_selector(owner))
        if not labels:
            return []
        found = [each async for each in client.list(PODS, workload.namespace, labels=labels)]
    except GovernorError:
        return []  # the status of the workload has to do
    pods = [{"apiVersion": "v1", "kind": "Pod", **each} for each in found[:_MAX_PODS]]
    return [(ref_of(each), compute_readiness(each)) for each in pods if not _is_old(each)]


def _selector(owner: Object) -> Iterator[str]:
    """Yield the terms of the label selector of a workload."""
    selector: Mapping[str, Any] = (owner.get("spec") or {}).get("selector") or {}
    yield from (f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items()))


def _is_old(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))
