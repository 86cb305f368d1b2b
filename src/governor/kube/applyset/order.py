"""In which order kinds are written, and in reverse removed: each stage needs only what earlier ones made.

Custom resources come after workloads: one that a broken webhook refuses must not keep the webhook's own server from
being repaired. What can block the writing of everything else comes last.
"""

import asyncio
import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

from governor.kube.objects import ObjectRef

Placed = TypeVar("Placed")


class Stage(enum.IntEnum):
    """Kinds that may be written side by side."""

    DEFINITIONS = 0
    NAMESPACES = 1
    CLASSES_AND_LIMITS = 2
    ACCOUNTS = 3
    PERMISSIONS = 4
    CONFIGURATION = 5
    STORAGE = 6
    SERVICES = 7
    WORKLOADS = 8
    OTHERS = 9
    """Custom resources, and what refers to workloads."""
    GATES = 10
    """What the API server asks before it accepts or serves other objects."""


_KINDS: Final[Mapping[Stage, Mapping[str, tuple[str, ...]]]] = {
    Stage.DEFINITIONS: {"apiextensions.k8s.io": ("CustomResourceDefinition",)},
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
    Stage.ACCOUNTS: {"": ("ServiceAccount",)},
    Stage.PERMISSIONS: {"rbac.authorization.k8s.io": ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")},
    Stage.CONFIGURATION: {"": ("ConfigMap", "Secret")},
    Stage.STORAGE: {"": ("PersistentVolume", "PersistentVolumeClaim")},
    Stage.SERVICES: {"": ("Endpoints", "Service"), "discovery.k8s.io": ("EndpointSlice",)},
    Stage.WORKLOADS: {
        "": ("Pod", "PodTemplate", "ReplicationController"),
        "apps": ("ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"),
        "batch": ("CronJob", "Job"),
    },
    Stage.GATES: {
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
    """When an object is written."""
    return _STAGE.get((ref.group, ref.kind), Stage.OTHERS)


def in_stages(items: Iterable[Placed], ref: Callable[[Placed], ObjectRef]) -> tuple[tuple[Placed, ...], ...]:
    """The items stage by stage, in the order of writing; empty stages are left out."""
    placed: dict[Stage, list[Placed]] = {}
    for item in items:
        placed.setdefault(stage_of(ref(item)), []).append(item)
    return tuple(tuple(placed[stage]) for stage in sorted(placed))


Thing = TypeVar("Thing")
Made = TypeVar("Made")


async def side_by_side(things: Iterable[Thing], act: Callable[[Thing], Awaitable[Made]], at_once: int) -> list[Made]:
    """What ``act`` returns for each thing, in their order; at most so many run at a time. The first error ends all."""
    gate = asyncio.Semaphore(at_once)

    async def one(thing: Thing) -> Made:
        async with gate:
            return await act(thing)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(thing)) for thing in things]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures  # it ended the others
    return [task.result() for task in tasks]
