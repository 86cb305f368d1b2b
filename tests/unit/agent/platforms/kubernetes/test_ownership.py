"""Which workload a pod belongs to, and what its owner says about it."""

from typing import Any

import pytest

from governor.agent.platforms.kubernetes.workloads.ownership import assemble
from governor.agent.platforms.kubernetes.workloads.views import Job, Replicated, has_pods_or_dapr, is_active_or_has_dapr
from governor.agent.platforms.kubernetes.workloads.workload import Update, Workload
from governor.domain.reports import WorkloadRef
from governor.kube.objects import Object
from tests.unit.agent.platforms.kubernetes.manifests import NAMESPACE, owner, owners, pod, view, workload

DISABLED = "false"


def assembled(pods: list[Object], *manifests: Object) -> dict[str, Workload]:
    """Return the workloads by kind and name."""
    found = assemble(map(view, pods), owners(*manifests))
    assert [each.ref for each in found] == sorted(each.ref for each in found)
    for each in found:
        assert all(pod.owner == each.ref for pod in each.pods)
        assert each.ref.namespace == NAMESPACE
    return {f"{each.ref.kind}/{each.ref.name}": each for each in found}


def only(pods: list[Object], *manifests: Object) -> Workload:
    found = assembled(pods, *manifests)
    assert len(found) == 1, found
    return next(iter(found.values()))


def names(found: Workload) -> list[str]:
    return [each.name for each in found.pods]


def test_pods_of_all_replica_sets_belong_to_their_deployment() -> None:
    found = only(
        [pod("web-2-b", owner("ReplicaSet", "web-2")), pod("web-1-a", owner("ReplicaSet", "web-1"))],
        workload("Deployment", "web", replicas=2),
        workload("ReplicaSet", "web-1", owner("Deployment", "web")),
        workload("ReplicaSet", "web-2", owner("Deployment", "web")),
    )
    assert (found.ref, found.api_version) == (WorkloadRef(NAMESPACE, "Deployment", "web"), "apps/v1")
    assert names(found) == ["web-1-a", "web-2-b"]
    assert (found.update, found.desired, found.app_id) == (Update.ROLLING, 2, "web")


def test_events_can_name_every_workload_by_its_uid() -> None:
    rollout = owner("Rollout", "shop", "argoproj.io/v1alpha1")
    found = assembled(
        [
            pod("web-1-a", owner("ReplicaSet", "web-1")),
            pod("shop-1-a", owner("ReplicaSet", "shop-1")),
            pod("bus-0", owner("Kafka", "bus", "kafka.strimzi.io/v1")),
            pod("alone"),
        ],
        workload("Deployment", "web"),
        workload("Deployment", "idle"),
        workload("ReplicaSet", "web-1", owner("Deployment", "web")),
        workload("ReplicaSet", "shop-1", rollout),
    )
    assert {each.ref.name: each.uid for each in found.values()} == {
        name: f"uid-{name}" for name in ("web", "idle", "shop", "bus", "alone")
    }


def test_pods_of_jobs_belong_to_their_cron_job() -> None:
    found = only(
        [pod("report-1-a", owner("Job", "report-1", "batch/v1"))],
        workload("CronJob", "report", suspend=True),
        workload("Job", "report-1", owner("CronJob", "report", "batch/v1")),
    )
    assert (found.ref.kind, found.api_version, found.update) == ("CronJob", "batch/v1", Update.NEXT_RUN)
    assert (found.desired, found.paused, names(found)) == (None, True, ["report-1-a"])


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet", "ReplicaSet", "Job"])
def test_other_owners_are_the_workload(kind: str) -> None:
    version = "batch/v1" if kind == "Job" else "apps/v1"
    found = only([pod("a", owner(kind, "db", version))], workload(kind, "db"))
    assert (found.ref.kind, found.ref.name, found.api_version) == (kind, "db", version)
    assert found.update is (Update.ROLLING if kind in ("StatefulSet", "DaemonSet") else Update.NONE)


def test_a_stateful_set_of_an_operator_is_the_workload() -> None:
    kafka = owner("Kafka", "bus", "kafka.strimzi.io/v1")
    assert (
        only([pod("bus-0", owner("StatefulSet", "bus"))], workload("StatefulSet", "bus", kafka)).update
        is Update.ROLLING
    )


def test_a_kind_that_is_not_known_is_not_updated() -> None:
    rollout = owner("Rollout", "web", "argoproj.io/v1alpha1")
    found = only(
        [pod("web-1-a", owner("ReplicaSet", "web-1"), annotations={"dapr.io/app-id": "web", "dapr.io/config": "calm"})],
        workload("ReplicaSet", "web-1", rollout),
    )
    assert (found.ref.kind, found.ref.name, found.api_version) == ("Rollout", "web", "argoproj.io/v1alpha1")
    assert (found.update, found.desired, found.enabled) == (Update.NONE, None, True)
    assert (found.app_id, found.configuration) == ("web", "calm")


def test_a_deployment_of_another_group_is_not_the_deployment_of_that_name() -> None:
    found = assemble(
        map(view, [pod("a", owner("Deployment", "web", "example.dev/v1"))]), owners(workload("Deployment", "web"))
    )
    assert [(each.api_version, each.update, len(each.pods)) for each in found] == [
        ("apps/v1", Update.ROLLING, 0),
        ("example.dev/v1", Update.NONE, 1),
    ]


def test_a_pod_without_an_owner_is_its_own_workload() -> None:
    found = only([pod("alone", annotations={"runtime-governor.dev/no-restart": "true"})])
    assert (found.ref, found.api_version) == (WorkloadRef(NAMESPACE, "Pod", "alone"), "v1")
    assert (found.update, found.desired, found.opted_out) == (Update.NONE, 1, True)


def test_an_owner_that_is_no_controller_does_not_count() -> None:
    assert only([pod("a", owner("Deployment", "web") | {"controller": False})]).ref.kind == "Pod"


def test_a_replica_set_that_is_not_known_is_named_after_its_deployment() -> None:
    labels = {"pod-template-hash": "5d89"}
    a_pod = pod("web-5d89-a", owner("ReplicaSet", "web-5d89"), labels=labels)
    assert only([a_pod], workload("Deployment", "web")).ref.kind == "Deployment"
    orphaned = only([a_pod])
    assert (orphaned.ref.kind, orphaned.update, orphaned.desired) == ("ReplicaSet", Update.NONE, None)
    unlabelled = assembled([pod("web-", owner("ReplicaSet", "web-"))], workload("Deployment", "web"))
    assert names(unlabelled["ReplicaSet/web-"]) == ["web-"]


def test_a_deployment_that_is_gone_is_not_updated() -> None:
    gone = workload("ReplicaSet", "web-1", owner("Deployment", "web"))
    found = only([pod("a", owner("ReplicaSet", "web-1"))], gone)
    assert (found.ref.kind, found.update, found.desired) == ("Deployment", Update.NONE, None)


def test_workloads_whose_template_asks_for_a_sidecar_are_included_without_pods() -> None:
    finished = workload("Job", "over") | {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    deleted = workload("Deployment", "deleted")
    deleted["metadata"]["deletionTimestamp"] = "2026-08-01T10:00:00Z"
    found = assembled(
        [],
        workload("Deployment", "zero", replicas=0),
        workload("ReplicaSet", "zero-1", owner("Deployment", "zero")),
        workload("CronJob", "report"),
        workload("Job", "report-1", owner("CronJob", "report", "batch/v1")),
        workload("Job", "once"),
        workload("Deployment", "plain", enabled=DISABLED),
        finished,
        deleted,
    )
    assert found.keys() == {"Deployment/zero", "CronJob/report", "Job/once"}
    assert (found["Deployment/zero"].desired, found["Deployment/zero"].pods) == (0, ())


@pytest.mark.parametrize(
    ("kind", "spec", "update"),
    [
        ("Deployment", {"strategy": {"type": "Recreate"}}, Update.RECREATE),
        ("Deployment", {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}}}, Update.ROLLING),
        ("StatefulSet", {"updateStrategy": {"type": "OnDelete"}}, Update.ON_DELETE),
        (
            "StatefulSet",
            {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}},
            Update.PARTITIONED,
        ),
        ("StatefulSet", {"updateStrategy": {"rollingUpdate": {"partition": 0, "maxUnavailable": 1}}}, Update.ROLLING),
        ("DaemonSet", {"updateStrategy": {"type": "OnDelete"}}, Update.ON_DELETE),
        ("DaemonSet", {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 1}}}, Update.ROLLING),
    ],
)
def test_how_a_workload_replaces_its_pods(kind: str, spec: Any, update: Update) -> None:
    assert only([], workload(kind, "web", **spec)).update is update


def test_what_the_owner_annotates() -> None:
    template = {"dapr.io/config": "calm", "runtime-governor.dev/restart": "abc"}
    manifest = workload("Deployment", "web", paused=True, annotations=template)
    found = only([], manifest)
    assert (found.configuration, found.restart_digest, found.paused, found.opted_out) == ("calm", "abc", True, False)
    manifest["metadata"]["annotations"] = {"runtime-governor.dev/no-restart": "true"}
    assert only([], manifest).opted_out
    manifest["metadata"]["annotations"] = {"runtime-governor.dev/allow-restart": "true"}
    assert only([], manifest).allowed


def test_a_template_that_no_longer_asks_for_a_sidecar() -> None:
    found = only([pod("a", owner("StatefulSet", "db"))], workload("StatefulSet", "db", enabled=DISABLED))
    assert (found.enabled, len(found.pods)) == (False, 1)


ROLLED_OUT = {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}


@pytest.mark.parametrize(
    ("status", "rolled_out", "message"),
    [
        (ROLLED_OUT, True, ""),
        (ROLLED_OUT | {"updatedReplicas": 1}, False, "1 of 2 updated"),
        (ROLLED_OUT | {"observedGeneration": 0}, False, "its controller has not observed generation 1 yet"),
        ({}, False, "its controller has not observed generation 1 yet"),
    ],
)
def test_whether_a_deployment_is_rolled_out(status: Object, rolled_out: bool, message: str) -> None:
    found = only([], workload("Deployment", "web", replicas=2) | {"status": status})
    assert found.rolled_out is rolled_out
    assert message in found.message
    assert bool(found.message) is not rolled_out


def test_only_its_controller_knows_how_many_pods_a_daemon_set_has() -> None:
    manifest = workload("DaemonSet", "log")
    assert only([], manifest).desired is None
    counts = {"currentNumberScheduled": 3, "updatedNumberScheduled": 3, "numberAvailable": 3}
    found = only([], manifest | {"status": {"observedGeneration": 1, "desiredNumberScheduled": 3, **counts}})
    assert (found.desired, found.rolled_out) == (3, True)


def test_old_revisions_and_finished_jobs_without_dapr_are_not_held() -> None:
    def kept(manifest: Object) -> bool:
        (found,) = owners(manifest).values()
        return has_pods_or_dapr(found) if isinstance(found, Replicated) else is_active_or_has_dapr(checked(found))

    def checked(found: object) -> Job:
        assert isinstance(found, Job)
        return found

    over: Object = {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    assert kept(workload("ReplicaSet", "a", enabled=DISABLED))
    assert kept(workload("ReplicaSet", "a", replicas=0))
    assert kept(workload("ReplicaSet", "a", replicas=0, enabled=DISABLED) | {"status": {"replicas": 1}})
    assert not kept(workload("ReplicaSet", "a", replicas=0, enabled=DISABLED))
    assert kept(workload("Job", "a", enabled=DISABLED))
    assert kept(workload("Job", "a") | over)
    assert not kept(workload("Job", "a", enabled=DISABLED) | over)
