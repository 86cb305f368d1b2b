"""Readiness of pods, jobs and cron jobs."""

from typing import Any

import pytest

from governor.kube.objects import Object
from governor.kube.readiness.kinds import compute_readiness
from governor.kube.readiness.state import State

SCHEDULED = {"type": "PodScheduled", "status": "True"}
NOT_READY = {
    "type": "Ready",
    "status": "False",
    "reason": "ContainersNotReady",
    "message": "containers with unready status: [web]",
}


def _pod(phase: str, **status: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "generation": 1},
        "status": {"phase": phase} | status,
    }


def _waiting(reason: str, message: str = "", *, restarts: int = 0, exit_code: int | None = None) -> Object:
    container: Object = {
        "name": "web",
        "restartCount": restarts,
        "state": {"waiting": {"reason": reason, "message": message}},
    }
    if exit_code is not None:
        container["lastState"] = {"terminated": {"exitCode": exit_code, "reason": "Error"}}
    return container


@pytest.mark.parametrize(
    ("manifest", "state", "reason", "message"),
    [
        (_pod("Succeeded"), State.READY, "Completed", "all containers have succeeded"),
        (_pod("Running", conditions=[SCHEDULED, {"type": "Ready", "status": "True"}]), State.READY, "Ready", ""),
        (
            _pod("Running", conditions=[SCHEDULED, NOT_READY]),
            State.PROGRESSING,
            "ContainersNotReady",
            "containers with unready status: [web]",
        ),
        (_pod("Pending"), State.PROGRESSING, "NotScheduled", "it is not scheduled to a node yet"),
        (_pod("Pending", conditions=[SCHEDULED]), State.PROGRESSING, "Starting", "its node has not started it yet"),
        (
            _pod(
                "Pending",
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available",
                    }
                ],
            ),
            State.PROGRESSING,
            "Unschedulable",
            "0/3 nodes are available",
        ),
        (
            _pod("Pending", conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]),
            State.PROGRESSING,
            "SchedulingGated",
            "PodScheduled is False",
        ),
        (
            _pod("Pending", conditions=[SCHEDULED, NOT_READY], containerStatuses=[_waiting("ContainerCreating")]),
            State.PROGRESSING,
            "ContainersNotReady",
            "containers with unready status: [web]",
        ),
        (
            _pod(
                "Running",
                conditions=[SCHEDULED, NOT_READY],
                containerStatuses=[_waiting("CrashLoopBackOff", "back-off 5m0s", restarts=7, exit_code=137)],
            ),
            State.FAILED,
            "CrashLoopBackOff",
            "container web: CrashLoopBackOff: back-off 5m0s (7 restarts, last Error with exit code 137)",
        ),
        (
            _pod(
                "Pending",
                conditions=[SCHEDULED],
                containerStatuses=[_waiting("ErrImagePull", "not found") | {"name": "side"}],
                initContainerStatuses=[_waiting("ImagePullBackOff", "cannot pull") | {"name": "first"}],
            ),
            State.FAILED,
            "ImagePullBackOff",
            "container first: ImagePullBackOff: cannot pull; container side: ErrImagePull: not found",
        ),
        (
            _pod("Pending", conditions=[SCHEDULED], containerStatuses=[_waiting("CreateContainerConfigError", "no x")]),
            State.PROGRESSING,
            "CreateContainerConfigError",
            "container web: CreateContainerConfigError: no x",
        ),
        (_pod("Failed", reason="Evicted", message="low on memory"), State.FAILED, "Evicted", "low on memory"),
        (
            _pod(
                "Failed",
                containerStatuses=[
                    {"name": "web", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}},
                    {"name": "side", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
                ],
            ),
            State.FAILED,
            "Failed",
            "container web: Error with exit code 3",
        ),
        (_pod("Unknown"), State.UNKNOWN, "NodeLost", "its node does not report its state"),
        (
            _pod("Running", observedGeneration=0, conditions=[SCHEDULED, {"type": "Ready", "status": "True"}]),
            State.PROGRESSING,
            "StaleStatus",
            "its controller has not observed generation 1 yet, only generation 0",
        ),
        (_pod("Running", conditions="none"), State.UNKNOWN, "Unreadable", None),
    ],
)
def test_a_pod_is_ready_or_reports_what_it_waits_for(
    manifest: Object, state: State, reason: str, message: str | None
) -> None:
    readiness = compute_readiness(manifest)
    assert (readiness.state, readiness.reason) == (state, reason)
    assert message is None or readiness.message == message


def _job(conditions: dict[str, str], *, suspend: bool = False) -> Object:
    converted = [{"type": name, "status": status, "reason": f"Because{name}"} for name, status in conditions.items()]
    status = {"active": 1, "failed": 2, "conditions": converted}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generation": 1},
        "spec": {"suspend": suspend},
        "status": status,
    }


@pytest.mark.parametrize(
    ("manifest", "state", "reason"),
    [
        (_job({}), State.PROGRESSING, "Running"),
        (_job({"SuccessCriteriaMet": "True", "Complete": "True"}), State.READY, "BecauseComplete"),
        (_job({"SuccessCriteriaMet": "True"}), State.PROGRESSING, "Running"),
        (_job({"FailureTarget": "True"}), State.FAILED, "BecauseFailureTarget"),
        (_job({"FailureTarget": "True", "Failed": "True"}), State.FAILED, "BecauseFailed"),
        (_job({"Suspended": "True"}, suspend=True), State.PROGRESSING, "Suspended"),
        (_job({"Complete": "True"}, suspend=True), State.READY, "BecauseComplete"),
        (_job({"Suspended": "False"}), State.PROGRESSING, "Running"),
    ],
)
def test_a_job_is_ready_when_it_is_complete(manifest: Object, state: State, reason: str) -> None:
    readiness = compute_readiness(manifest)
    assert (readiness.state, readiness.reason) == (state, reason)


def test_a_running_job_reports_its_progress() -> None:
    assert compute_readiness(_job({})).message == "1 active, 0 succeeded, 2 failed"


@pytest.mark.parametrize(("suspend", "reason"), [(False, "Scheduled"), (True, "Suspended")])
def test_a_cron_job_is_always_ready(suspend: bool, reason: str) -> None:
    readiness = compute_readiness(
        {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {}, "spec": {"suspend": suspend}}
    )
    assert (readiness.state, readiness.reason) == (State.READY, reason)
