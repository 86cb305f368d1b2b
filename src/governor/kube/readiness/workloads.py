"""Kinds that keep a number of pods: ready when all of them are of the latest template and available, not one."""

import msgspec

from governor.kube.objects import Object
from governor.kube.readiness.conditions import words
from governor.kube.readiness.fields import Metadata, Observed, Status, read, stale
from governor.kube.readiness.verdict import Readiness, failed, progressing, ready


class _RollingUpdate(msgspec.Struct, frozen=True, rename="camel"):
    partition: int = 0


class _Strategy(msgspec.Struct, frozen=True, rename="camel"):
    type: str = "RollingUpdate"
    rolling_update: _RollingUpdate = _RollingUpdate()

    @property
    def on_delete(self) -> bool:
        return self.type == "OnDelete"


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    replicas: int = 1
    paused: bool = False
    update_strategy: _Strategy = _Strategy()


class _Replicas(Observed, frozen=True, rename="camel"):
    replicas: int = 0
    updated_replicas: int = 0
    fully_labeled_replicas: int = 0
    available_replicas: int = 0


class _Replicated(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    spec: _Spec = _Spec()
    status: _Replicas = _Replicas()


class _Daemons(Observed, frozen=True, rename="camel"):
    desired_number_scheduled: int = 0
    current_number_scheduled: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0


class _DaemonSet(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    spec: _Spec = _Spec()
    status: _Daemons = _Daemons()


def deployment(manifest: Object) -> Readiness:
    """All replicas updated and available and the old ones gone; a pause only matters while that is not so."""
    it = read(manifest, _Replicated)
    if behind := stale(it.metadata, it.status.observed_generation):
        return behind
    wanted, status = it.spec.replicas, it.status
    lacking = (
        _fewer("updated", status.updated_replicas, wanted)
        or _surplus(status.replicas - status.updated_replicas, "old")
        or _fewer("available", status.available_replicas, wanted)
    )
    if not lacking:
        return _complete(wanted)
    progress = status.condition("Progressing")
    if progress and progress.reason == "ProgressDeadlineExceeded":
        return failed(progress.reason, f"{lacking}: {progress.message}")
    if it.spec.paused:
        return progressing("Paused", f"{lacking}; does not go on until spec.paused is taken away")
    return _not_yet(lacking, status)


def stateful_set(manifest: Object) -> Readiness:
    """All replicas available, those from the partition on updated; with OnDelete updating is a person's act."""
    it = read(manifest, _Replicated)
    if behind := stale(it.metadata, it.status.observed_generation):
        return behind
    wanted, status, strategy = it.spec.replicas, it.status, it.spec.update_strategy
    to_update = 0 if strategy.on_delete else max(0, wanted - strategy.rolling_update.partition)
    lacking = (
        _fewer("updated", status.updated_replicas, to_update)
        or _surplus(status.replicas - wanted, "surplus")
        or _fewer("available", status.available_replicas, wanted)
    )
    if lacking:
        return _not_yet(lacking, status)
    if outdated := wanted - status.updated_replicas:
        held = "until they are deleted" if strategy.on_delete else "below the partition"
        reason = "OnDelete" if strategy.on_delete else "Partitioned"
        return ready(reason, f"{wanted} available, {outdated} of them of an older template {held}")
    return _complete(wanted)


def daemon_set(manifest: Object) -> Readiness:
    """A pod on each node that should have one, available and, unless OnDelete, updated."""
    it = read(manifest, _DaemonSet)
    if behind := stale(it.metadata, it.status.observed_generation):
        return behind
    status, wanted = it.status, it.status.desired_number_scheduled
    on_delete = it.spec.update_strategy.on_delete
    lacking = (
        _fewer("scheduled", status.current_number_scheduled, wanted)
        or _fewer("updated", status.updated_number_scheduled, 0 if on_delete else wanted)
        or _fewer("available", status.number_available, wanted)
    )
    if lacking:
        return _not_yet(lacking, status)
    if on_delete and (outdated := wanted - status.updated_number_scheduled):
        message = f"{wanted} available, {outdated} of them of an older template until they are deleted"
        return ready("OnDelete", message)
    return _complete(wanted) if wanted else ready("NoNodes", "no node is to have a pod of it")


def replica_set(manifest: Object) -> Readiness:
    """All replicas there, labelled as the template says, and available; also of a ReplicationController."""
    it = read(manifest, _Replicated)
    if behind := stale(it.metadata, it.status.observed_generation):
        return behind
    wanted, status = it.spec.replicas, it.status
    lacking = (
        _fewer("labelled", status.fully_labeled_replicas, wanted)
        or _surplus(status.replicas - wanted, "surplus")
        or _fewer("available", status.available_replicas, wanted)
    )
    return _not_yet(lacking, status) if lacking else _complete(wanted)


def _fewer(what: str, have: int, wanted: int) -> str:
    return f"{have} of {wanted} {what}" if have < wanted else ""


def _surplus(more: int, which: str) -> str:
    return f"{more} {which} still there" if more > 0 else ""


def _not_yet(lacking: str, status: Status) -> Readiness:
    """With what keeps the controller from making pods, such as a quota."""
    refusal = status.condition("ReplicaFailure")
    if refusal and refusal.true:
        reason, message = words(refusal)
        return progressing(reason, f"{lacking}: {message}")
    return progressing("RollingOut", lacking)


def _complete(wanted: int) -> Readiness:
    return ready("Available", f"{wanted} available") if wanted else ready("ScaledToZero", "no replicas are wanted")


class _JobSpec(msgspec.Struct, frozen=True):
    suspend: bool = False


class _JobStatus(Status, frozen=True):
    active: int = 0
    succeeded: int = 0
    failed: int = 0


class _Job(msgspec.Struct, frozen=True):
    spec: _JobSpec = _JobSpec()
    status: _JobStatus = _JobStatus()


def job(manifest: Object) -> Readiness:
    """Complete or failed by its conditions; a suspended one waits for whoever suspended it."""
    it = read(manifest, _Job)
    status = it.status
    if condition := status.holding(("Complete",)):
        return ready(*words(condition))
    if condition := status.holding(("Failed", "FailureTarget")):
        return failed(*words(condition))
    if it.spec.suspend:
        return progressing("Suspended", "does not go on until spec.suspend is false")
    return progressing("Running", f"{status.active} active, {status.succeeded} succeeded, {status.failed} failed")


def cron_job(manifest: Object) -> Readiness:
    """Whether its last job went well is that job's readiness."""
    suspended = read(manifest, _Job).spec.suspend
    return ready("Suspended", "starts no jobs while spec.suspend is true") if suspended else ready("Scheduled")
