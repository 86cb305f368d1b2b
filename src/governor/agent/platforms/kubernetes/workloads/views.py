"""Views of pods and of their owners: the fields that tell which workloads have Dapr, and in which state.

Facts about daprd come from the arguments of its container, not from the pod's annotations: a user can edit annotations
of a running pod, which changes nothing for the sidecar in it. Excluded: combining objects (``ownership``).
"""

import re
from datetime import datetime
from typing import Final, TypeAlias, TypeVar

import msgspec

from governor.kube.controller.views import OwnerReference
from governor.kube.objects import ObjectRef, group_of
from governor.kube.readiness.fields import Condition
from governor.kube.reflector import Metadata, View

RESTART: Final = "runtime-governor.dev/restart"
"""Annotation of a template: the digest for which the agent has restarted the workload."""
NO_RESTART: Final = "runtime-governor.dev/no-restart"
"""Annotation of a workload that the agent must not restart."""
ALLOW_RESTART: Final = "runtime-governor.dev/allow-restart"
"""Annotation of a workload that the agent may restart although that stops all of its pods, or deletes them."""
PREFLIGHT: Final = "runtime-governor.dev/preflight"
"""Label of all that a preflight creates: the id of the runtime. Its pods are no workloads."""
DAPRD: Final = "daprd"
"""The container that Dapr's injector adds."""

_IN_CLUSTER: Final = re.compile(r"(^|\s)--?mode[ =]kubernetes(\s|$)")
_TRUTHY: Final = frozenset({"y", "yes", "true", "t", "on", "1"})
"""What Dapr's injector accepts as true, in any case."""


def is_true(annotation: str) -> bool:
    """Return whether Dapr's injector reads an annotation as true."""
    return annotation.strip().lower() in _TRUTHY


class Annotations(msgspec.Struct, frozen=True, gc=False):
    """The annotations that the agent reads, on a pod, a template or a workload."""

    enabled: str = msgspec.field(name="dapr.io/enabled", default="")
    app_id: str = msgspec.field(name="dapr.io/app-id", default="")
    config: str = msgspec.field(name="dapr.io/config", default="")
    sidecar_image: str = msgspec.field(name="dapr.io/sidecar-image", default="")
    env: str = msgspec.field(name="dapr.io/env", default="")
    env_from_secret: str = msgspec.field(name="dapr.io/env-from-secret", default="")
    volume_mounts: str = msgspec.field(name="dapr.io/volume-mounts", default="")
    volume_mounts_rw: str = msgspec.field(name="dapr.io/volume-mounts-rw", default="")
    restart: str = msgspec.field(name=RESTART, default="")
    no_restart: str = msgspec.field(name=NO_RESTART, default="")
    allow_restart: str = msgspec.field(name=ALLOW_RESTART, default="")


class Labels(msgspec.Struct, frozen=True, gc=False):
    """The labels of a pod or of a workload that the agent reads."""

    injected: str = msgspec.field(name="dapr.io/sidecar-injected", default="")
    app_id: str = msgspec.field(name="dapr.io/app-id", default="")
    template_hash: str = msgspec.field(name="pod-template-hash", default="")
    preflight: str = msgspec.field(name=PREFLIGHT, default="")


class ControllerReference(OwnerReference, frozen=True, gc=False):
    """Reference to an owner, with the uid by which Events name it."""

    uid: str = ""


class OwnedMetadata(Metadata, frozen=True, kw_only=True):
    """Metadata of a pod or of a workload."""

    generation: int = 0
    deletion_timestamp: str = ""
    annotations: Annotations = Annotations()
    labels: Labels = Labels()
    owner_references: tuple[ControllerReference, ...] = ()

    @property
    def controller(self) -> ControllerReference | None:
        """The owner that creates and deletes the object."""
        return next((each for each in self.owner_references if each.controller), None)


def controller_ref(metadata: OwnedMetadata) -> ObjectRef | None:
    """Return the reference to the controller of an object, which is in the same namespace."""
    owner = metadata.controller
    return ObjectRef(group_of(owner.api_version), owner.kind, metadata.namespace, owner.name) if owner else None


class PodMetadata(OwnedMetadata, frozen=True, kw_only=True):
    """Metadata of a pod."""

    creation_timestamp: datetime


class ContainerSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A container as the pod's spec describes it."""

    name: str
    image: str = ""
    args: tuple[str, ...] = ()
    restart_policy: str = ""


AnyContainer = TypeVar("AnyContainer", ContainerSpec, "ContainerStatus")


def _daprd_only(containers: tuple[AnyContainer, ...]) -> tuple[AnyContainer, ...]:
    return tuple(each for each in containers if each.name == DAPRD)


class PodSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The container of daprd; the application's own, whose arguments may contain secrets, are not held."""

    service_account_name: str = ""
    containers: tuple[ContainerSpec, ...] = ()
    init_containers: tuple[ContainerSpec, ...] = ()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "containers", _daprd_only(self.containers))
        msgspec.structs.force_setattr(self, "init_containers", _daprd_only(self.init_containers))


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A container that is not running yet, or not again."""

    reason: str = ""
    message: str = ""


class Running(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A container that runs."""

    started_at: datetime | None = None


class Terminated(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A container that has ended."""

    reason: str = ""
    exit_code: int = 0
    signal: int = 0
    message: str = ""


class ContainerState(msgspec.Struct, frozen=True, gc=False):
    """One of the three states of a container, or none."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The state of a container as its kubelet reports it."""

    name: str
    container_id: str = msgspec.field(name="containerID", default="")
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodCondition(msgspec.Struct, frozen=True, gc=False):
    """A condition without its times."""

    type: str
    status: str
    message: str = ""

    @property
    def is_unscheduled(self) -> bool:
        """Whether it says that no node was found for the pod yet."""
        return self.type == "PodScheduled" and self.status == "False"


class PodStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The state of a pod and of daprd in it."""

    phase: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()

    def __post_init__(self) -> None:
        kept = tuple(each for each in self.conditions if each.type == "Ready" or each.is_unscheduled)
        msgspec.structs.force_setattr(self, "conditions", kept)
        msgspec.structs.force_setattr(self, "container_statuses", _daprd_only(self.container_statuses))
        msgspec.structs.force_setattr(self, "init_container_statuses", _daprd_only(self.init_container_statuses))


class PodView(View, frozen=True):
    """A pod."""

    metadata: PodMetadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


def has_dapr(pod: PodView) -> bool:
    """Return whether a pod has a sidecar, or asks for one.

    A sidecar that loads its resources from the cluster counts even if a user has removed its label.
    """
    if pod.metadata.labels.injected == "true" or is_true(pod.metadata.annotations.enabled):
        return True
    return any(_IN_CLUSTER.search(" ".join(each.args)) for each in (*pod.spec.containers, *pod.spec.init_containers))


class _TemplateMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: Annotations = Annotations()
    labels: dict[str, str] = {}


class Template(msgspec.Struct, frozen=True, gc=False):
    """The template of a workload's pods."""

    metadata: _TemplateMetadata = _TemplateMetadata()


class _RollingUpdate(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    partition: int = 0


class Strategy(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """How a controller replaces pods."""

    type: str = "RollingUpdate"
    rolling_update: _RollingUpdate = _RollingUpdate()


class ReplicatedSpec(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The fields of the four kinds that keep a number of pods running; each kind has some of them."""

    replicas: int = 1
    paused: bool = False
    strategy: Strategy = Strategy()
    update_strategy: Strategy = Strategy()
    template: Template = Template()


class ReplicatedStatus(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The fields from which the readiness of these kinds is computed."""

    observed_generation: int | None = None
    replicas: int = 0
    updated_replicas: int = 0
    fully_labeled_replicas: int = 0
    available_replicas: int = 0
    desired_number_scheduled: int = 0
    current_number_scheduled: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0
    conditions: tuple[Condition, ...] = ()


class Replicated(View, frozen=True, omit_defaults=True):
    """A Deployment, StatefulSet, DaemonSet or ReplicaSet."""

    metadata: OwnedMetadata
    spec: ReplicatedSpec = ReplicatedSpec()
    status: ReplicatedStatus = ReplicatedStatus()

    @property
    def template(self) -> Annotations:
        """The annotations of its pods' template."""
        return self.spec.template.metadata.annotations


class JobSpec(msgspec.Struct, frozen=True, gc=False):
    """The fields of a Job that the agent reads."""

    suspend: bool = False
    template: Template = Template()


class JobStatus(msgspec.Struct, frozen=True, gc=False):
    """The conditions of a Job."""

    conditions: tuple[PodCondition, ...] = ()


class Job(View, frozen=True):
    """A Job."""

    metadata: OwnedMetadata
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def template(self) -> Annotations:
        """The annotations of its pods' template."""
        return self.spec.template.metadata.annotations

    @property
    def is_finished(self) -> bool:
        """Whether it starts no more pods."""
        return any(each.type in ("Complete", "Failed") and each.status == "True" for each in self.status.conditions)


class _JobTemplate(msgspec.Struct, frozen=True, gc=False):
    spec: JobSpec = JobSpec()


class CronJobSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The fields of a CronJob that the agent reads."""

    suspend: bool = False
    job_template: _JobTemplate = _JobTemplate()


class CronJob(View, frozen=True):
    """A CronJob."""

    metadata: OwnedMetadata
    spec: CronJobSpec = CronJobSpec()

    @property
    def template(self) -> Annotations:
        """The annotations of its Jobs' pods' template."""
        return self.spec.job_template.spec.template.metadata.annotations


Owner: TypeAlias = Replicated | Job | CronJob
"""A kind of workload that the agent knows."""


def is_enabled(owner: Owner) -> bool:
    """Return whether the pods of a workload ask for a sidecar."""
    return is_true(owner.template.enabled)


def has_pods_or_dapr(replica_set: Replicated) -> bool:
    """Return whether a ReplicaSet may own a pod with Dapr: the old revisions of other workloads are many."""
    return bool(replica_set.spec.replicas or replica_set.status.replicas or is_enabled(replica_set))


def is_active_or_has_dapr(job: Job) -> bool:
    """Return whether a Job may own a pod with Dapr that is not a throw-away one."""
    return not job.metadata.labels.preflight and (is_enabled(job) or not job.is_finished)
