"""The observer on a real API server with plain objects."""

from datetime import datetime

import pytest

from governor.agent.platforms.kubernetes.workloads.observer import DEPLOYMENTS, PODS
from governor.agent.platforms.kubernetes.workloads.workload import Update
from governor.errors import GovernorError
from governor.kube.client import Client, Transport
from governor.kube.objects import ApiResource
from testbed.kube.api_faults import ApiRequest
from testbed.kube.control_plane import ControlPlane
from tests.contract.agent.bed import MANAGER, Watched, create, observing, write_status
from tests.contract.kube.bed import FaultyApi, account_of, admin_of
from tests.contract.kube.reflector.bed import UNLIMITED, gather_bounded, running, until_true
from tests.unit.agent.platforms.kubernetes.manifests import owner, pod, status, workload

ONE_OF = 10
"""One of so many pods has Dapr."""
KINDS = 7
ACCOUNTS = ApiResource("", "v1", "ServiceAccount", "serviceaccounts", namespaced=True)


async def create_web(client: Client, namespace: str) -> None:
    """Create a Deployment with one ReplicaSet and one pod."""
    await create(client, namespace, workload("Deployment", "web"))
    await create(client, namespace, workload("ReplicaSet", "web-1", owner("Deployment", "web")))
    await create(client, namespace, pod("web-1-a", owner("ReplicaSet", "web-1")))


def is_list(request: ApiRequest) -> bool:
    return request.method == "GET" and not request.is_watch


async def test_pods_and_their_owners_are_observed(client: Client, namespace: str) -> None:
    await create_web(client, namespace)
    async with observing(client, namespace) as watched:
        assert watched.pods == {"Deployment/web": ["web-1-a"]}
        await create(client, namespace, workload("CronJob", "report"))
        await create(client, namespace, workload("Job", "report-1", owner("CronJob", "report", "batch/v1")))
        await create(client, namespace, pod("report-1-a", owner("Job", "report-1", "batch/v1")))
        await create(client, namespace, pod("plain", sidecar={}, annotations={"dapr.io/enabled": "false"}))
        await create(client, namespace, pod("alone", sidecar={}))
        await create(client, namespace, workload("StatefulSet", "db"))
        await watched.shows(
            {
                "CronJob/report": ["report-1-a"],
                "Deployment/web": ["web-1-a"],
                "Pod/alone": ["alone"],
                "StatefulSet/db": [],
            }
        )
        updates = {name: each.update for name, each in watched.workloads.items()}
        assert list(updates.values()) == [Update.NEXT_RUN, Update.ROLLING, Update.NONE, Update.ROLLING]
        assert watched.workloads["Pod/alone"].pods[0].sidecar is None
        assert watched.observer.failures() == ()


async def test_the_status_of_a_sidecar_is_followed(client: Client, namespace: str) -> None:
    await create_web(client, namespace)
    async with observing(client, namespace) as watched:
        (before,) = watched.workloads["Deployment/web"].pods
        assert (before.instance, before.phase, before.sidecar and before.sidecar.public_port) == ("", "Pending", 3501)
        running_since = {"running": {"startedAt": "2026-08-01T10:00:05Z"}}
        reported = status(containerID="containerd://1", state=running_since)
        await write_status(client, namespace, "Pod", "web-1-a", reported)
        await until_true(lambda: bool(watched.workloads["Deployment/web"].pods[0].instance))
        (after,) = watched.workloads["Deployment/web"].pods
        assert after.sidecar
        assert (after.ip, after.ready, after.instance) == ("10.1.2.3", True, f"{after.uid}/containerd://1")
        assert after.sidecar.started == datetime.fromisoformat("2026-08-01T10:00:05+00:00")


async def test_a_pod_that_is_created_again_is_another_one(client: Client, namespace: str) -> None:
    await create(client, namespace, workload("StatefulSet", "db"))
    await create(client, namespace, pod("db-0", owner("StatefulSet", "db")))
    async with observing(client, namespace) as watched:
        first = watched.workloads["StatefulSet/db"].pods[0].uid
        await client.delete(PODS, "db-0", namespace)
        await watched.shows({"StatefulSet/db": []})
        await create(client, namespace, pod("db-0", owner("StatefulSet", "db")))
        await watched.shows({"StatefulSet/db": ["db-0"]})
        assert watched.workloads["StatefulSet/db"].pods[0].uid != first


async def test_a_template_change_and_its_roll_out_are_observed(client: Client, namespace: str) -> None:
    await create(client, namespace, workload("Deployment", "web"))
    async with observing(client, namespace) as watched:
        assert not watched.workloads["Deployment/web"].rolled_out
        annotations = {"runtime-governor.dev/restart": "abc"}
        patch = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
        await client.patch(DEPLOYMENTS, "web", namespace, patch, manager=MANAGER)
        await until_true(lambda: watched.workloads["Deployment/web"].restart_digest == "abc")
        counts = {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1}
        await write_status(client, namespace, "Deployment", "web", {"observedGeneration": 2, **counts})
        await until_true(lambda: watched.workloads["Deployment/web"].rolled_out)
        assert watched.workloads["Deployment/web"].message == ""


async def test_only_relevant_changes_are_reported(client: Client, namespace: str) -> None:
    await create(client, namespace, workload("Deployment", "plain", enabled="false"))
    await create(client, namespace, workload("Deployment", "injected", enabled="false"))
    await create(
        client, namespace, workload("ReplicaSet", "injected-1", owner("Deployment", "injected"), enabled="false")
    )
    await create(client, namespace, pod("injected-1-a", owner("ReplicaSet", "injected-1")))
    async with observing(client, namespace) as watched:
        assert watched.pods == {"Deployment/injected": ["injected-1-a"]}
        before = watched.changes
        for name in ("plain", "injected"):
            await client.patch(DEPLOYMENTS, name, namespace, {"spec": {"replicas": 3}}, manager=MANAGER)
        await until_true(lambda: watched.workloads["Deployment/injected"].desired == 3)
        assert watched.changes == before + 1


async def test_a_cut_watch_loses_nothing(
    client: Client, transport: Transport, faults: FaultyApi, namespace: str
) -> None:
    await create_web(client, namespace)
    async with observing(Client(transport, faults.access, UNLIMITED), namespace) as watched:
        faults.unavailable = True
        faults.cut()
        await create(client, namespace, pod("web-1-b", owner("ReplicaSet", "web-1")))
        await client.delete(PODS, "web-1-a", namespace)
        await until_true(lambda: len(watched.observer.failures()) == KINDS)
        assert watched.pods == {"Deployment/web": ["web-1-a"]}
        faults.unavailable = False
        await watched.shows({"Deployment/web": ["web-1-b"]})
        await until_true(lambda: not any("cannot observe pods" in each for each in watched.observer.failures()))


async def test_without_permission_the_error_names_what_is_missing(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "agent", "namespace": namespace}}
    await client.create(ACCOUNTS, account, manager=MANAGER)
    token = await api.request_token(namespace, "agent")
    watched = Watched(Client(transport, account_of(api, token), UNLIMITED), namespace)
    async with running(watched.observer.run()):
        await until_true(lambda: len(watched.observer.failures()) == KINDS)
        with pytest.raises(GovernorError) as caught:
            await watched.observer.synced(within_s=0)
        assert caught.value.code == "workloads-not-observed"
        for text in (f"cannot observe pods in namespace {namespace}", "cronjobs", "grant the agent list and watch"):
            assert text in str(caught.value)


async def test_two_namespaces_are_kept_apart(client: Client, namespace: str, api: ControlPlane) -> None:
    other = f"{namespace}-other"
    await api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": other}})
    for each in (namespace, other):
        await create_web(client, each)
    async with observing(client, namespace, other, namespace) as watched:
        found = watched.observer.workloads()
        assert [(each.ref.namespace, len(each.pods)) for each in found] == [(namespace, 1), (other, 1)]


@pytest.mark.parametrize("with_dapr", [200, pytest.param(2_000, marks=pytest.mark.soak)])
async def test_pods_without_dapr_are_not_held(
    api: ControlPlane, transport: Transport, faults: FaultyApi, namespace: str, with_dapr: int
) -> None:
    fast = Client(transport, admin_of(api), UNLIMITED)
    await create(fast, namespace, workload("StatefulSet", "db"))

    async def create_one(number: int) -> None:
        has_dapr = number % ONE_OF == 0
        sidecar = None if has_dapr else {"name": "other", "image": "other"}
        manifest = pod(f"pod-{number}", owner("StatefulSet", "db"), sidecar=sidecar)
        if not has_dapr:
            manifest["metadata"]["labels"], manifest["metadata"]["annotations"] = {}, {}
        await create(fast, namespace, manifest)

    await gather_bounded(map(create_one, range(with_dapr * ONE_OF)), concurrency=16)
    async with observing(faults.client, namespace) as watched:
        assert len(watched.workloads["StatefulSet/db"].pods) == with_dapr
        (held,) = watched.observer._namespaces
        assert len(held._pods.store) == with_dapr
        assert watched.changes == with_dapr + 1
        pages = faults.count(lambda request: is_list(request) and "/pods" in request.path)
        assert faults.count(is_list) == KINDS - 1 + pages
        await create(fast, namespace, pod("late", owner("StatefulSet", "db")))
        await until_true(lambda: len(held._pods.store) == with_dapr + 1)
        assert faults.count(is_list) == KINDS - 1 + pages
