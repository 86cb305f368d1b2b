"""Order of work on objects: stages by kind, applied forward and pruned in reverse, and bounded concurrency within one.

Each stage needs only objects of earlier ones. Custom resources follow workloads: one that a broken webhook rejects must
not keep the webhook's own server from being repaired. Kinds that can block all other writes come last.
"""

import asyncio
import enum
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from governor.kube.objects import ObjectRef

Item = TypeVar("Item")
Result = TypeVar("Result")


class Stage(enum.IntEnum):
    """Kinds that are applied concurrently."""

    CRDS = 0
    NAMESPACES = 1
    CLASSES_AND_LIMITS = 2
    SERVICE_ACCOUNTS = 3
    ROLES = 4
    BINDINGS = 5
    """A binding to a missing role is rejected for users who may not bind every role."""
    CONFIGURATION = 6
    STORAGE = 7
    SERVICES = 8
    WORKLOADS = 9
    OTHERS = 10
    """Custom resources, and kinds that refer to workloads."""
    ADMISSION = 11
    """Kinds that the API server consults before it accepts or serves other objects."""


_KINDS: Final[Mapping[Stage, Mapping[str, tuple[str, ...]]]] = {
    Stage.CRDS: {"apiextensions.k8s.io": ("CustomResourceDefinition",)},
    Stage.NAMESPACES: {"": ("Namespace",)},
    Stage.CLASSES_AND_LIMITS: {
        "": ("LimitRange", "ResourceQuota"),
        "networking.k8s.io": ("IngressClass", "NetworkPolicy"),
        "node.k8s.io": ("RuntimeClass",),
        "scheduling.k8s.io": ("PriorityClass",),
        "storage.k8s.io": ("CSIDriver", "StorageClass", "VolumeAttributesClass"),
        "resource.k8s.io": ("DeviceClass",),
        "flowcontrol.apiserver.k8s.io": ("FlowSchema", "PriorityLevelConfiguration"),
    },
    Stage.SERVICE_ACCOUNTS: {"": ("ServiceAccount",)},
    Stage.ROLES: {"rbac.authorization.k8s.io": ("ClusterRole", "Role")},
    Stage.BINDINGS: {"rbac.authorization.k8s.io": ("ClusterRoleBinding", "RoleBinding")},
    Stage.CONFIGURATION: {"": ("ConfigMap", "Secret")},
    Stage.STORAGE: {"": ("PersistentVolume", "PersistentVolumeClaim")},
    Stage.SERVICES: {"": ("Endpoints", "Service"), "discovery.k8s.io": ("EndpointSlice",)},
    Stage.WORKLOADS: {
        "": ("Pod", "PodTemplate", "ReplicationController"),
        "apps": ("ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"),
        "batch": ("CronJob", "Job"),
    },
    Stage.ADMISSION: {
        "admissionregistration.k8s.io": (
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyBinding",
            "MutatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ValidatingWebhookConfiguration",
        ),
        "apiregistration.k8s.io": ("APIService",),
    },
}
_STAGE: Final = {
    (group, kind): stage for stage, groups in _KINDS.items() for group, kinds in groups.items() for kind in kinds
}


def stage_of(ref: ObjectRef) -> Stage:
    """Return the stage in which an object is applied."""
    return _STAGE.get((ref.group, ref.kind), Stage.OTHERS)


def group_by_stage(
    items: Iterable[Item], ref: Callable[[Item], ObjectRef], first: Sequence[Collection[ObjectRef]] = ()
) -> tuple[tuple[Item, ...], ...]:
    """Return the items grouped by stage in apply order, without empty groups.

    Those of each collection of ``first`` are a group of their own, before the rest of their stage.
    """
    ranks = {each: rank for rank, refs in enumerate(first) for each in refs}
    stages: dict[tuple[Stage, int], list[Item]] = {}
    for item in items:
        stages.setdefault((stage_of(ref(item)), ranks.get(ref(item), len(first))), []).append(item)
    return tuple(tuple(stages[stage]) for stage in sorted(stages))


async def gather_bounded(
    items: Iterable[Item], call: Callable[[Item], Awaitable[Result]], concurrency: int
) -> list[Result]:
    """Return the results of ``call`` in the order of the items; the first error cancels the remaining calls."""
    semaphore = asyncio.Semaphore(concurrency)

    async def bounded(item: Item) -> Result:
        async with semaphore:
            return await call(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(bounded(item)) for item in items]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]
