"""Readiness of workload controllers: ready when all replicas are updated and available, or the job is complete."""

import msgspec

from governor.kube.objects import Object
from governor.kube.readiness.conditions import reason_and_message
from governor.kube.readiness.fields import Metadata, ObservedStatus, Status, convert, stale_status
from governor.kube.readiness.state import Readiness, failed, progressing, ready


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


class _Replicas(ObservedStatus, frozen=True, rename="camel"):
    replicas: int = 0
    updated_replicas: int = 0
    fully_labeled_replicas: int = 0
    available_replicas: int = 0


class _Replicated(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    spec: _Spec = _Spec()
    status: _Replicas = _Replicas()


class _Daemons(ObservedStatus, frozen=True, rename="camel"):
    desired_number_scheduled: int = 0
    current_number_scheduled: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0


class _DaemonSet(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    spec: _Spec = _Spec()
    status: _Daemons = _Daemons()


def deployment(manifest: Object) -> Readiness:
    """Return READY if all replicas are updated and available and the old ones are gone, even if paused."""
    it = convert(manifest, _Replicated)
    if stale := stale_status(it.metadata, it.status.observed_generation):
        return stale
    desired, status = it.spec.replicas, it.status
    lacking = (
        _too_few("updated", status.updated_replicas, desired)
        or _too_many(status.replicas - status.updated_replicas, "old")
        or _too_few("available", status.available_replicas, desired)
    )
    if not lacking:
        return _complete(desired)
    progress = status.condition("Progressing")
    if progress and progress.reason == "ProgressDeadlineExceeded":
        return failed(progress.reason, f"{lacking}: {progress.message}")
    if it.spec.paused:
        return progressing("Paused", f"{lacking}; paused until spec.paused is removed")
    return _rolling_out(lacking, status)


def stateful_set(manifest: Object) -> Readiness:
    """Return READY if all replicas are available and those from the partition on are updated.

    With OnDelete, pods are updated only when a user deletes them.
    """
    it = convert(manifest, _Replicated)
    if stale := stale_status(it.metadata, it.status.observed_generation):
        return stale
    desired, status, strategy = it.spec.replicas, it.status, it.spec.update_strategy
    to_update = 0 if strategy.on_delete else max(0, desired - strategy.rolling_update.partition)
    lacking = (
        _too_few("updated", status.updated_replicas, to_update)
        or _too_many(status.replicas - desired, "surplus")
        or _too_few("available", status.available_replicas, desired)
    )
    if lacking:
        return _rolling_out(lacking, status)
    if outdated := desired - status.updated_replicas:
        why = "until they are deleted" if strategy.on_delete else "below the partition"
        reason = "OnDelete" if strategy.on_delete else "Partitioned"
        return ready(reason, f"{desired} available, {outdated} of them of an older template {why}")
    return _complete(desired)


def daemon_set(manifest: Object) -> Readiness:
    """Return READY if every eligible node has an available pod that is, unless OnDelete, updated."""
    it = convert(manifest, _DaemonSet)
    if stale := stale_status(it.metadata, it.status.observed_generation):
        return stale
    status, desired = it.status, it.status.desired_number_scheduled
    on_delete = it.spec.update_strategy.on_delete
    lacking = (
        _too_few("scheduled", status.current_number_scheduled, desired)
        or _too_few("updated", status.updated_number_scheduled, 0 if on_delete else desired)
        or _too_few("available", status.number_available, desired)
    )
    if lacking:
        return _rolling_out(lacking, status)
    if on_delete and (outdated := desired - status.updated_number_scheduled):
        message = f"{desired} available, {outdated} of them of an older template until they are deleted"
        return ready("OnDelete", message)
    return _complete(desired) if desired else ready("NoNodes", "no node is eligible for its pods")


def replica_set(manifest: Object) -> Readiness:
    """Return READY if all replicas are labelled and available; also for a ReplicationController."""
    it = convert(manifest, _Replicated)
    if stale := stale_status(it.metadata, it.status.observed_generation):
        return stale
    desired, status = it.spec.replicas, it.status
    lacking = (
        _too_few("labelled", status.fully_labeled_replicas, desired)
        or _too_many(status.replicas - desired, "surplus")
        or _too_few("available", status.available_replicas, desired)
    )
    return _rolling_out(lacking, status) if lacking else _complete(desired)


def _too_few(what: str, actual: int, expected: int) -> str:
    return f"{actual} of {expected} {what}" if actual < expected else ""


def _too_many(count: int, which: str) -> str:
    return f"{count} {which} still exist" if count > 0 else ""


def _rolling_out(lacking: str, status: Status) -> Readiness:
    """Return PROGRESSING with what keeps the controller from creating pods, such as a quota."""
    failure = status.condition("ReplicaFailure")
    if failure and failure.is_true:
        reason, message = reason_and_message(failure)
        return progressing(reason, f"{lacking}: {message}")
    return progressing("RollingOut", lacking)


def _complete(desired: int) -> Readiness:
    return ready("Available", f"{desired} available") if desired else ready("ScaledToZero", "scaled to zero replicas")


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
    """Return the readiness by the conditions Complete and Failed; a suspended job is progressing."""
    it = convert(manifest, _Job)
    status = it.status
    if condition := status.first_true(("Complete",)):
        return ready(*reason_and_message(condition))
    if condition := status.first_true(("Failed", "FailureTarget")):
        return failed(*reason_and_message(condition))
    if it.spec.suspend:
        return progressing("Suspended", "suspended until spec.suspend is false")
    return progressing("Running", f"{status.active} active, {status.succeeded} succeeded, {status.failed} failed")


def cron_job(manifest: Object) -> Readiness:
    """Return READY; the result of the last job is that job's readiness."""
    suspended = convert(manifest, _Job).spec.suspend
    return ready("Suspended", "starts no jobs while spec.suspend is true") if suspended else ready("Scheduled")
