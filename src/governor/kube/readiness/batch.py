"""Jobs, ready when they have done their work, and what makes jobs, ready as soon as it exists."""

import msgspec

from governor.kube.objects import Object
from governor.kube.readiness.conditions import words
from governor.kube.readiness.fields import Status, read
from governor.kube.readiness.verdict import Readiness, failed, progressing, ready


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
