"""Readiness of workload controllers."""

from typing import Any

import pytest

from governor.kube.objects import Object
from governor.kube.readiness.kinds import compute_readiness
from governor.kube.readiness.state import State


def _object(kind: str, spec: Object, status: Object, *, api_version: str = "apps/v1") -> Object:
    metadata = {"name": "web", "namespace": "shop", "generation": 3}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec, "status": status}


def _deployment(status: Object, **spec: Any) -> Object:
    return _object("Deployment", {"replicas": 3} | spec, {"observedGeneration": 3} | status)


def _stateful_set(status: Object, **spec: Any) -> Object:
    return _object("StatefulSet", {"replicas": 3} | spec, {"observedGeneration": 3} | status)


def _daemon_set(status: Object, **spec: Any) -> Object:
    return _object("DaemonSet", spec, {"observedGeneration": 3} | status)


COMPLETE = {"replicas": 3, "updatedReplicas": 3, "readyReplicas": 3, "availableReplicas": 3}
DEADLINE = {
    "type": "Progressing",
    "status": "False",
    "reason": "ProgressDeadlineExceeded",
    "message": 'ReplicaSet "web-1" has timed out progressing.',
}
QUOTA = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"}
ON_DELETE = {"updateStrategy": {"type": "OnDelete"}}


@pytest.mark.parametrize(
    ("manifest", "state", "reason", "message"),
    [
        (_deployment(COMPLETE), State.READY, "Available", "3 available"),
        (_deployment(COMPLETE, paused=True), State.READY, "Available", "3 available"),
        (_deployment(COMPLETE | {"availableReplicas": 1}), State.PROGRESSING, "RollingOut", "1 of 3 available"),
        (_deployment(COMPLETE | {"updatedReplicas": 2}), State.PROGRESSING, "RollingOut", "2 of 3 updated"),
        (_deployment(COMPLETE | {"replicas": 4}), State.PROGRESSING, "RollingOut", "1 old still exist"),
        (
            _deployment(COMPLETE | {"updatedReplicas": 1}, paused=True),
            State.PROGRESSING,
            "Paused",
            "1 of 3 updated; paused until spec.paused is removed",
        ),
        (
            _deployment(COMPLETE | {"availableReplicas": 2, "conditions": [DEADLINE]}),
            State.FAILED,
            "ProgressDeadlineExceeded",
            '2 of 3 available: ReplicaSet "web-1" has timed out progressing.',
        ),
        (_deployment(COMPLETE | {"conditions": [DEADLINE]}), State.READY, "Available", "3 available"),
        (
            _deployment({"conditions": [QUOTA]}),
            State.PROGRESSING,
            "FailedCreate",
            "0 of 3 updated: exceeded quota",
        ),
        (_deployment({}, replicas=0), State.READY, "ScaledToZero", "scaled to zero replicas"),
        (_deployment({"replicas": 2}, replicas=0), State.PROGRESSING, "RollingOut", "2 old still exist"),
        (
            _object("Deployment", {}, COMPLETE),
            State.PROGRESSING,
            "StaleStatus",
            "its controller has not observed generation 3 yet",
        ),
        (
            _deployment(COMPLETE | {"observedGeneration": 2}),
            State.PROGRESSING,
            "StaleStatus",
            "its controller has not observed generation 3 yet, only generation 2",
        ),
        (_stateful_set(COMPLETE), State.READY, "Available", "3 available"),
        (_stateful_set(COMPLETE | {"availableReplicas": 2}), State.PROGRESSING, "RollingOut", "2 of 3 available"),
        (_stateful_set(COMPLETE | {"updatedReplicas": 1}), State.PROGRESSING, "RollingOut", "1 of 3 updated"),
        (_stateful_set(COMPLETE | {"replicas": 5}), State.PROGRESSING, "RollingOut", "2 surplus still exist"),
        (
            _stateful_set(COMPLETE | {"updatedReplicas": 1}, updateStrategy={"rollingUpdate": {"partition": 2}}),
            State.READY,
            "Partitioned",
            "3 available, 2 of them of an older template below the partition",
        ),
        (
            _stateful_set(COMPLETE | {"updatedReplicas": 0}, updateStrategy={"rollingUpdate": {"partition": 2}}),
            State.PROGRESSING,
            "RollingOut",
            "0 of 1 updated",
        ),
        (
            _stateful_set(COMPLETE | {"updatedReplicas": 0}, updateStrategy={"rollingUpdate": {"partition": 9}}),
            State.READY,
            "Partitioned",
            "3 available, 3 of them of an older template below the partition",
        ),
        (
            _stateful_set(COMPLETE | {"updatedReplicas": 0}, **ON_DELETE),
            State.READY,
            "OnDelete",
            "3 available, 3 of them of an older template until they are deleted",
        ),
        (
            _stateful_set(COMPLETE | {"updatedReplicas": 0, "availableReplicas": 2}, **ON_DELETE),
            State.PROGRESSING,
            "RollingOut",
            "2 of 3 available",
        ),
        (
            _daemon_set(
                {
                    "desiredNumberScheduled": 2,
                    "currentNumberScheduled": 2,
                    "updatedNumberScheduled": 2,
                    "numberAvailable": 2,
                }
            ),
            State.READY,
            "Available",
            "2 available",
        ),
        (
            _daemon_set({"desiredNumberScheduled": 2, "currentNumberScheduled": 1}),
            State.PROGRESSING,
            "RollingOut",
            "1 of 2 scheduled",
        ),
        (
            _daemon_set(
                {
                    "desiredNumberScheduled": 2,
                    "currentNumberScheduled": 2,
                    "updatedNumberScheduled": 1,
                    "numberAvailable": 2,
                }
            ),
            State.PROGRESSING,
            "RollingOut",
            "1 of 2 updated",
        ),
        (
            _daemon_set(
                {
                    "desiredNumberScheduled": 2,
                    "currentNumberScheduled": 2,
                    "updatedNumberScheduled": 1,
                    "numberAvailable": 2,
                },
                **ON_DELETE,
            ),
            State.READY,
            "OnDelete",
            "2 available, 1 of them of an older template until they are deleted",
        ),
        (
            _daemon_set(
                {
                    "desiredNumberScheduled": 2,
                    "currentNumberScheduled": 2,
                    "updatedNumberScheduled": 2,
                    "numberAvailable": 1,
                }
            ),
            State.PROGRESSING,
            "RollingOut",
            "1 of 2 available",
        ),
        (_daemon_set({"desiredNumberScheduled": 0}), State.READY, "NoNodes", "no node is eligible for its pods"),
        (_object("DaemonSet", {}, {}), State.PROGRESSING, "StaleStatus", None),
    ],
)
def test_a_workload_is_ready_only_with_all_its_pods(
    manifest: Object, state: State, reason: str, message: str | None
) -> None:
    readiness = compute_readiness(manifest)
    assert (readiness.state, readiness.reason) == (state, reason)
    assert message is None or readiness.message == message


@pytest.mark.parametrize(("api_version", "kind"), [("apps/v1", "ReplicaSet"), ("v1", "ReplicationController")])
@pytest.mark.parametrize(
    ("status", "state", "message"),
    [
        ({"replicas": 2, "fullyLabeledReplicas": 2, "availableReplicas": 2}, State.READY, "2 available"),
        ({"replicas": 2, "fullyLabeledReplicas": 1, "availableReplicas": 2}, State.PROGRESSING, "1 of 2 labelled"),
        ({"replicas": 2, "fullyLabeledReplicas": 2, "availableReplicas": 1}, State.PROGRESSING, "1 of 2 available"),
        (
            {"replicas": 3, "fullyLabeledReplicas": 3, "availableReplicas": 3},
            State.PROGRESSING,
            "1 surplus still exist",
        ),
        ({"conditions": [QUOTA]}, State.PROGRESSING, "0 of 2 labelled: exceeded quota"),
    ],
)
def test_a_replica_set_is_ready_only_with_all_its_pods(
    api_version: str, kind: str, status: Object, state: State, message: str
) -> None:
    manifest = _object(kind, {"replicas": 2}, {"observedGeneration": 3} | status, api_version=api_version)
    readiness = compute_readiness(manifest)
    assert (readiness.state, readiness.message) == (state, message)
