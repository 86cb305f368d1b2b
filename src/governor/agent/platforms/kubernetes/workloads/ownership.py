"""Workloads with Dapr, assembled from the views of pods and of their owners. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from governor.agent.platforms.kubernetes.workloads.pods import first_configuration, pod_of
from governor.agent.platforms.kubernetes.workloads.views import (
    CronJob,
    Job,
    OwnedMetadata,
    Owner,
    PodView,
    Replicated,
    Strategy,
    controller_ref,
    is_enabled,
    is_true,
)
from governor.agent.platforms.kubernetes.workloads.workload import Pod, Update, Workload
from governor.domain.reports import WorkloadRef
from governor.kube.objects import ObjectRef
from governor.kube.readiness import Readiness, State, compute_readiness

_APPS: Final = "apps"
_INTERMEDIATE: Final = frozenset({(_APPS, "ReplicaSet"), ("batch", "Job")})
"""Kinds whose own controller, if they have one, is the workload."""


class _Group(msgspec.Struct):
    """A workload and the views of its pods."""

    ref: ObjectRef
    api_version: str
    uid: str
    views: list[PodView] = []


def assemble(pods: Iterable[PodView], owners: Mapping[ObjectRef, Owner]) -> tuple[Workload, ...]:
    """Return the workloads that have pods with Dapr, or will have: those whose template asks for a sidecar."""
    groups: dict[ObjectRef, _Group] = {}
    for pod in pods:
        group = _workload_of(pod, owners)
        groups.setdefault(group.ref, group).views.append(pod)
    for ref, owner in owners.items():
        if ref not in groups and _will_have_dapr(ref, owner):
            groups[ref] = _Group(ref, _stable_version(ref), owner.metadata.uid)
    workloads = (_assemble_one(group, owners.get(group.ref)) for group in groups.values())
    return tuple(sorted(workloads, key=lambda each: (each.ref, each.api_version)))


def _workload_of(pod: PodView, owners: Mapping[ObjectRef, Owner]) -> _Group:
    """Return the workload of a pod, without pods."""
    metadata = pod.metadata
    direct = _controller_of(metadata)
    if direct is None:
        return _Group(ObjectRef("", "Pod", metadata.namespace, metadata.name), "v1", metadata.uid)
    if (direct.ref.group, direct.ref.kind) not in _INTERMEDIATE:
        return direct
    owner = owners.get(direct.ref)
    if owner is None:
        return _presumed_deployment(pod, direct.ref, owners) or direct
    return _controller_of(owner.metadata) or direct


def _controller_of(metadata: OwnedMetadata) -> _Group | None:
    ref, controller = controller_ref(metadata), metadata.controller
    return _Group(ref, controller.api_version, controller.uid) if ref and controller else None


def _presumed_deployment(pod: PodView, replica_set: ObjectRef, owners: Mapping[ObjectRef, Owner]) -> _Group | None:
    """Return the Deployment after which a ReplicaSet is named: it is gone already, or its event has not come yet."""
    suffix = f"-{pod.metadata.labels.template_hash}"
    ref = ObjectRef(_APPS, "Deployment", replica_set.namespace, replica_set.name.removesuffix(suffix))
    is_named = ref.name != replica_set.name and pod.metadata.labels.template_hash
    return _Group(ref, _stable_version(ref), owners[ref].metadata.uid) if is_named and ref in owners else None


def _will_have_dapr(ref: ObjectRef, owner: Owner) -> bool:
    """Return whether an object is a workload whose pods, once it has some, ask for a sidecar."""
    if (ref.group, ref.kind) in _INTERMEDIATE and owner.metadata.controller:
        return False
    is_over = isinstance(owner, Job) and owner.is_finished
    return is_enabled(owner) and not is_over and not owner.metadata.deletion_timestamp


def _stable_version(ref: ObjectRef) -> str:
    return f"{ref.group}/v1"


def _assemble_one(group: _Group, owner: Owner | None) -> Workload:
    ref = WorkloadRef(group.ref.namespace, group.ref.kind, group.ref.name)
    pods = tuple(sorted((pod_of(view, ref) for view in group.views), key=lambda pod: pod.name))
    workload = _without_owner(group, ref, pods) if owner is None else _with_owner(group, ref, pods, owner)
    match owner:
        case Replicated():
            return _with_replicas(workload, group.ref, owner)
        case Job():
            return msgspec.structs.replace(workload, paused=owner.spec.suspend)
        case CronJob():
            return msgspec.structs.replace(workload, paused=owner.spec.suspend, update=Update.NEXT_RUN)
    return workload


def _without_owner(group: _Group, ref: WorkloadRef, pods: tuple[Pod, ...]) -> Workload:
    """Return a workload known by its pods only; what its template says is what its newest pod says."""
    newest = max(group.views, key=lambda view: view.metadata.creation_timestamp).metadata.annotations
    return Workload(
        ref=ref,
        api_version=group.api_version,
        uid=group.uid,
        update=Update.NONE,
        pods=pods,
        desired=1 if group.ref.kind == "Pod" and not group.ref.group else None,
        opted_out=is_true(newest.no_restart),
        enabled=is_true(newest.enabled),
        app_id=newest.app_id,
        configuration=first_configuration(newest.config),
        sidecar_image=newest.sidecar_image,
        restart_digest=newest.restart,
    )


def _with_owner(group: _Group, ref: WorkloadRef, pods: tuple[Pod, ...], owner: Owner) -> Workload:
    template = owner.template
    return Workload(
        ref=ref,
        api_version=group.api_version,
        uid=group.uid,
        update=Update.NONE,
        pods=pods,
        opted_out=is_true(owner.metadata.annotations.no_restart) or is_true(template.no_restart),
        allowed=is_true(owner.metadata.annotations.allow_restart) or is_true(template.allow_restart),
        enabled=is_enabled(owner),
        app_id=template.app_id,
        configuration=first_configuration(template.config),
        sidecar_image=template.sidecar_image,
        restart_digest=template.restart,
    )


def _with_replicas(workload: Workload, ref: ObjectRef, owner: Replicated) -> Workload:
    readiness = _readiness(ref, owner)
    is_ready = readiness.state is State.READY
    is_daemon_set = ref.kind == "DaemonSet"
    return msgspec.structs.replace(
        workload,
        update=_update(ref.kind, owner),
        desired=_desired_on_nodes(owner) if is_daemon_set else owner.spec.replicas,
        paused=owner.spec.paused,
        labels=owner.spec.template.metadata.labels,
        rolled_out=is_ready,
        message="" if is_ready else readiness.message or readiness.reason,
    )


def _readiness(ref: ObjectRef, owner: Replicated) -> Readiness:
    return compute_readiness({"apiVersion": _stable_version(ref), "kind": ref.kind, **msgspec.to_builtins(owner)})


def _desired_on_nodes(owner: Replicated) -> int | None:
    """Return on how many nodes a DaemonSet should run; only its controller knows."""
    return None if owner.status.observed_generation is None else owner.status.desired_number_scheduled


def _update(kind: str, owner: Replicated) -> Update:
    match kind:
        case "Deployment":
            return Update.RECREATE if owner.spec.strategy.type == "Recreate" else Update.ROLLING
        case "StatefulSet" | "DaemonSet":
            return _update_of_set(owner.spec.update_strategy)
    return Update.NONE


def _update_of_set(strategy: Strategy) -> Update:
    if strategy.type == "OnDelete":
        return Update.ON_DELETE
    return Update.PARTITIONED if strategy.rolling_update.partition > 0 else Update.ROLLING
