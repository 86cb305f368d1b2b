"""Which workloads are restarted, in which order and how many at once; real controllers, replayed sidecars."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from governor.agent.platforms.kubernetes.restarts.decision import AT_ONCE
from governor.agent.platforms.kubernetes.workloads.observer import (
    CRON_JOBS,
    DEPLOYMENTS,
    JOBS,
    PODS,
    REPLICA_SETS,
)
from governor.agent.platforms.kubernetes.workloads.workload import Workload
from governor.agent.state.file_blobs import FileBlobs
from governor.agent.verification.findings import Findings
from governor.domain.reports import Cause, Instances, State
from governor.kube.objects import ApiResource, Object
from testbed.waiting import until
from tests.contract.agent.apply.bed import COMPONENTS, component
from tests.contract.agent.platform.bed import (
    Bed,
    counts,
    each_step,
    resiliency,
    texts,
    texts_of,
    workload,
)
from tests.contract.kube.reflector.bed import until_true

pytestmark = pytest.mark.asyncio(loop_scope="session")

STORE = "state.redis"
DEFINITIONS = ApiResource(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
ROLLOUTS = ApiResource("argoproj.io", "v1alpha1", "Rollout", "rollouts", namespaced=True)


class TestRolling:
    async def test_it_is_refused_where_sidecars_would_take_the_change_at_once(self, bed: Bed, blobs: FileBlobs) -> None:
        await bed.deploy("orders", 2)
        pods = await bed.pods("orders")
        async with bed.agent(blobs) as agent:
            found = await agent.converge(bed.delivery(component("store"), strategy="rolling"))
            assert {each.state for each in found.resources} == {State.FAILED}
            assert f"load the change at once, or could not be probed: {bed.ref('orders')} ({', '.join(pods)})" in texts(
                found
            )
            assert not found.applied
            assert agent.client.writes == []
            assert [each async for each in bed.client.list(COMPONENTS, bed.namespace)] == []

    async def test_it_stops_at_the_first_failure(self, bed: Bed, blobs: FileBlobs) -> None:
        bed.kubelet.features = []
        await bed.deploy("first")
        await bed.deploy("second")
        bed.kubelet.exits["first"] = "cannot load store"
        async with bed.agent(blobs) as agent:
            found = await agent.converge(bed.delivery(component("store"), strategy="rolling"))
            assert {(each.state, each.cause) for each in found.resources} == {(State.FAILED, Cause.CHANGE)}
            assert "exited: Error, exit code 1: cannot load store" in texts(found)
            assert await bed.digest("first") == ""
            assert await bed.restarts("second") == 0

            bed.kubelet.exits.clear()
            found = await agent.converge(bed.delivery(component("store", host="good"), strategy="rolling"))
            assert found.verified, texts(found)
            assert await bed.restarts("second") == 1


async def test_at_most_three_workloads_restart_at_once_and_of_a_namespace_one_with_actors(
    bed: Bed, blobs: FileBlobs
) -> None:
    with_actors = {"a1", "a2"}
    bed.kubelet.actors |= with_actors
    names = [*with_actors, "p1", "p2", "p3"]
    for name in names:
        await bed.create(name)
    for name in names:
        await bed.until_pods(name, 1)
    async with bed.agent(blobs) as agent:
        most = 0

        def is_restarting(each: Workload) -> bool:
            return bool(each.restart_digest) and not (each.rolled_out and len(each.pods) == 1)

        def progress(_: Findings) -> None:
            nonlocal most
            active = {each.ref.name for each in agent.observer.workloads() if is_restarting(each)}
            most = max(most, len(active))
            assert len(active) <= AT_ONCE
            assert len(active & with_actors) <= 1
            bed.kubelet.pending = len(active) < AT_ONCE and most < AT_ONCE

        bed.kubelet.pending = True
        found = await agent.converge(bed.delivery(resiliency(7)), progress)
        assert found.verified, texts(found)
        assert most == AT_ONCE
        assert [await bed.restarts(name) for name in names] == [1] * len(names)


async def test_a_deployment_that_never_becomes_ready_returns_to_its_old_pods(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders", 2)
    old = await bed.uids("orders")
    bed.kubelet.pending = True
    async with bed.agent(blobs) as agent:
        found = await agent.converge(bed.delivery(resiliency(7), verifyWindowSeconds=10))
        assert {(each.state, each.cause) for each in found.resources} == {(State.FAILED, Cause.RUNTIME)}
        assert "did not become ready in time: Pending" in texts(found)
        assert await bed.digest("orders") == ""

        async def has_old_pods_only() -> bool:
            return await bed.uids("orders") == old

        await until(has_old_pods_only)


class TestNeverTouched:
    """Workloads that only their owner can or may restart."""

    REASONS: Mapping[str, str] = {
        "job": "restart needed: the template of a Job cannot change",
        "lonely": "restart needed: no controller replaces it",
        "paused": "restart needed: it is paused",
        "private": "restart needed: its owner has opted out",
        "rollout": "restart needed: the agent cannot restart a Rollout (argoproj.io/v1alpha1)",
        "nightly": "its next run loads the change",
    }

    async def test_they_are_reported_and_keep_their_pods(self, bed: Bed, blobs: FileBlobs) -> None:
        await self.create(bed)
        async with bed.agent(blobs) as agent:
            await until_true(lambda: len(agent.observer.workloads()) == len(self.REASONS))
            before = await versions(bed)
            agent.client.sent.clear()
            found = await agent.converge(bed.delivery(resiliency(7), verifyWindowSeconds=3))
            assert {each.workload.name: each.instances for each in found.workloads} == {
                name: Instances() if name == "nightly" else Instances(1, unproven=1) for name in self.REASONS
            }
            reported = {each.workload.name: texts_of(each) for each in found.workloads}
            assert {name for name, text in self.REASONS.items() if text not in reported[name]} == set(), reported
            assert await versions(bed) == before
            own = ("/resiliencies/", "/configmaps")
            assert [each for each in agent.client.writes if not any(path in each for path in own)] == []

    async def create(self, bed: Bed) -> None:
        """Create a workload of each kind, and wait until their pods run."""
        await bed.create("paused")
        await bed.client.create(DEPLOYMENTS, opted_out(bed.namespace), manager="tests")
        template = workload("Job", "job", bed.namespace)["spec"]["template"]
        await bed.client.create(JOBS, batch(bed, "job", {"template": once(template)}), manager="tests")
        nightly = workload("CronJob", "nightly", bed.namespace)["spec"]["template"]
        schedule = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": once(nightly)}}}
        await bed.client.create(CRON_JOBS, batch(bed, "nightly", schedule, "CronJob"), manager="tests")
        pod = workload("Pod", "lonely", bed.namespace)["spec"]["template"]
        pod["metadata"] |= {"name": "lonely", "namespace": bed.namespace}
        await bed.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", **pod}, manager="tests")
        await create_rollout(bed)
        for name in self.REASONS.keys() - {"nightly"}:
            await bed.until_pods(name, 1)
        # A Deployment that is paused from its beginning gets no pods.
        await bed.client.patch(DEPLOYMENTS, "paused", bed.namespace, {"spec": {"paused": True}}, manager="tests")


async def versions(bed: Bed) -> dict[str, object]:
    """Return the pods, and the generations of the workloads, of the namespace."""
    pods = {each["metadata"]["uid"]: "" async for each in bed.client.list(PODS, bed.namespace)}
    kinds = (DEPLOYMENTS, REPLICA_SETS, JOBS, CRON_JOBS, ROLLOUTS)
    found = [each["metadata"] for kind in kinds async for each in bed.client.list(kind, bed.namespace)]
    return {**pods, **{each["uid"]: each["generation"] for each in found}}


def opted_out(namespace: str) -> Object:
    manifest = workload("Deployment", "private", namespace)
    manifest["metadata"]["annotations"] = {"runtime-governor.dev/no-restart": "true"}
    return manifest


def once(template: Object) -> Object:
    return {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}


def batch(bed: Bed, name: str, spec: Object, kind: str = "Job") -> Object:
    metadata = {"name": name, "namespace": bed.namespace}
    return {"apiVersion": "batch/v1", "kind": kind, "metadata": metadata, "spec": spec}


async def create_rollout(bed: Bed) -> None:
    """Create a Rollout with its ReplicaSet, as Argo's controller does."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}
    names = {"plural": "rollouts", "kind": "Rollout"}
    spec = {"group": "argoproj.io", "scope": "Namespaced", "names": names, "versions": [version]}
    definition = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec}
    name = {"name": "rollouts.argoproj.io"}
    await bed.client.apply(DEFINITIONS, {**definition, "metadata": name}, manager="tests")

    async def is_served() -> bool:
        found = await bed.client.get(DEFINITIONS, name["name"])
        conditions = found.get("status", {}).get("conditions") or ()
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    await until(is_served)
    metadata = {"name": "rollout", "namespace": bed.namespace}
    rollout: dict[str, Any] = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "metadata": metadata}
    created = await bed.client.create(ROLLOUTS, rollout, manager="tests")
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "rollout", "controller": True}
    replica_set = workload("ReplicaSet", "rollout", bed.namespace)
    replica_set["metadata"]["ownerReferences"] = [{**owner, "uid": created["metadata"]["uid"]}]
    await bed.client.create(REPLICA_SETS, replica_set, manager="tests")


async def test_a_change_needs_as_many_requests_for_twenty_replicas_as_for_two(bed: Bed, blobs: FileBlobs) -> None:
    async with bed.agent(blobs) as agent:
        requests = []
        for replicas in (2, 20):
            name = f"of{replicas}"
            await bed.deploy(name, replicas)
            pods = await bed.pods(name)
            await until_true(lambda: counts_of(agent.observer.workloads()).get(name) == replicas)  # noqa: B023
            assert (await agent.converge(bed.delivery())).verified
            sidecars = bed.sidecars(*pods)
            load = partial(load_all, sidecars)
            agent.client.sent.clear()
            found = await agent.converge(bed.delivery(component("store", scopes=[name])), each_step(load))
            assert counts(found)[name] == Instances(replicas, verified=replicas), texts(found)
            requests.append([str(each).replace(name, "") for each in agent.client.sent])
        assert len(requests[0]) == len(requests[1]), requests


def load_all(sidecars: list[Any]) -> None:
    for each in sidecars:
        each.load("store", STORE)


def counts_of(workloads: tuple[Workload, ...]) -> dict[str, int]:
    return {each.ref.name: sum(pod.ready for pod in each.pods) for each in workloads}
