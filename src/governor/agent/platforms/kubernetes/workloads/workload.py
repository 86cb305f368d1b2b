"""Workloads with Dapr as the agent sees them: their pods, and the sidecar of each pod.

A workload is what owns pods: a Deployment, not its ReplicaSet; a CronJob, not its Jobs; a pod without an owner is its
own.
"""

import enum
from collections.abc import Mapping
from datetime import datetime

import msgspec

from governor.agent.verification.verdicts import MAX_EXTERNAL_EXITS
from governor.domain.reports import WorkloadRef


class Container(msgspec.Struct, frozen=True):
    """daprd in a pod, from the pod's spec and status.

    ``id`` changes with each start of the container and is empty before the first. ``started`` is None while it does not
    run. ``native`` if it is an init container that keeps running. A port of 0 is not served.
    """

    image: str
    id: str = ""
    started: datetime | None = None
    restarts: int = 0
    ready: bool = False
    waiting: str = ""
    """Why it is not running, such as CrashLoopBackOff."""
    waiting_message: str = ""
    last_exit: str = ""
    """How it ended the last time: reason, exit code and message."""
    killed: bool = False
    """Whether that was by a signal: of a user, the kubelet, or the kernel because memory ran out."""
    public_port: int = 3501
    metrics_port: int = 9090
    native: bool = False

    @property
    def exits(self) -> int:
        """How often it has ended in this pod."""
        return self.restarts + bool(self.last_exit and self.started is None)

    @property
    def is_excused(self) -> bool:
        """Whether its exits in this pod are not held against what it loaded."""
        return self.killed and self.exits <= MAX_EXTERNAL_EXITS


class Pod(msgspec.Struct, frozen=True):
    """A pod that has a sidecar, or should have one.

    ``sidecar`` is None if Dapr's injector did not add it. ``configuration`` is the name of its Dapr Configuration, or
    empty. ``created`` is by the clock of the API server.
    """

    namespace: str
    name: str
    uid: str
    created: datetime
    app_id: str
    owner: WorkloadRef
    configuration: str = ""
    ip: str = ""
    phase: str = ""
    ready: bool = False
    deleting: bool = False
    restart_digest: str = ""
    """The value of the annotation of the agent's last restart, which the pod's template had."""
    sidecar: Container | None = None
    service_account: str = ""
    environment: tuple[str, ...] = ()
    """The annotations from which Dapr's injector takes environment and volumes of the sidecar."""
    unscheduled: str = ""
    """Why no node was found for it."""

    @property
    def finished(self) -> bool:
        """Whether all its containers have ended for good."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def instance(self) -> str:
        """What identifies the running sidecar: another pod, or another start of its container, is another instance."""
        return f"{self.uid}/{self.sidecar.id}" if self.sidecar and self.sidecar.id else ""


class Update(enum.StrEnum):
    """How a workload replaces its pods when its template changes."""

    ROLLING = "rolling"
    RECREATE = "recreate"
    ON_DELETE = "on-delete"
    """When they are deleted."""
    PARTITIONED = "partitioned"
    """Not all of them: a StatefulSet with a partition."""
    NEXT_RUN = "next-run"
    """A CronJob: its next Job has the new template."""
    NONE = "none"
    """It does not: a bare ReplicaSet, a Job, a pod without an owner, an owner that is gone or of an unknown kind."""


class Workload(msgspec.Struct, frozen=True):
    """A workload with Dapr, and its pods. ``desired`` is how many pods it should have; None if that is not known.

    ``app_id`` is empty if each pod has its own, which is its name.
    """

    ref: WorkloadRef
    api_version: str
    update: Update
    pods: tuple[Pod, ...] = ()
    desired: int | None = None
    paused: bool = False
    opted_out: bool = False
    """Whether its owner has annotated it so that the agent does not restart it."""
    allowed: bool = False
    """Whether its owner has annotated it so that the agent restarts it although that is not gradual."""
    enabled: bool = True
    """Whether its template asks for a sidecar."""
    app_id: str = ""
    configuration: str = ""
    sidecar_image: str = ""
    """The image of daprd that its template asks for; empty if it leaves that to Dapr's injector."""
    labels: Mapping[str, str] = {}
    """The labels of its template, by which disruption budgets select its pods."""
    restart_digest: str = ""
    """The agent's annotation in its template now."""
    rolled_out: bool = True
    """Whether its controller has finished the last change of its template."""
    message: str = ""
    """Why it has not, if it has not."""
    uid: str = ""
