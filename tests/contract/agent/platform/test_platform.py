"""The platform with real controllers and replayed sidecars: what is proven, what restarts, and what is not touched."""

import random
from functools import partial
from typing import Any

import pytest

from governor.agent.platforms.kubernetes.workloads.observer import DEPLOYMENTS, STATEFUL_SETS
from governor.agent.state.file_blobs import FileBlobs
from governor.domain.documents import ResourceRef
from governor.domain.reports import Instances
from testbed.sidecar_replay import address
from tests.contract.agent.apply.bed import COMPONENTS, SECRETS, component, host_of
from tests.contract.agent.platform.bed import (
    RESILIENCIES,
    Bed,
    container,
    counts,
    each_step,
    next_second,
    pod_status,
    resiliency,
    texts,
    texts_of,
)
from tests.contract.kube.reflector.bed import until_true

pytestmark = pytest.mark.asyncio(loop_scope="session")

STORE = "state.redis"
NAMES = ("alpha", "beta", "gamma", "delta", "epsilon")


async def test_one_stuck_sidecar_of_twenty_is_counted_and_named_and_never_acknowledged(
    bed: Bed, blobs: FileBlobs
) -> None:
    await bed.deploy("orders", 20)
    async with bed.agent(blobs) as agent:
        assert (await agent.converge(bed.delivery())).verified
        *willing, stuck = await bed.pods("orders")
        # It lists the component, of which it may have other content.
        bed.kubelet.sidecars[stuck].metadata["components"] = [{"name": "store", "type": STORE, "version": "v1"}]
        steps = [partial(bed.kubelet.sidecars[name].load, "store", STORE) for name in willing]
        delivery = bed.delivery(component("store"), unproven="report", verifyWindowSeconds=30)
        found = await agent.converge(delivery, each_step(*steps))
        assert counts(found) == {"orders": Instances(20, verified=19, unproven=1)}
        assert f"19 of 20 instances verified; {stuck}: {STORE} was initialised 0 times" in texts(found)
        growing = [counts(each)["orders"].verified for each in agent.progress]
        assert growing == sorted(growing)
        assert set(growing) == set(range(20))
        assert not any(each.verified for each in [found, *agent.progress])
        assert await bed.digest("orders") == ""


async def test_a_sidecar_that_cannot_initialise_a_component_is_a_failure_of_the_change(
    bed: Bed, blobs: FileBlobs
) -> None:
    await bed.deploy("orders", 2)
    first, second = await bed.pods("orders")
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        load = partial(bed.kubelet.sidecars[first].load, "store", STORE)
        fail = partial(bed.kubelet.sidecars[second].failed.update, ["store"])
        found = await agent.converge(bed.delivery(component("store")), each_step(load, fail))
        assert counts(found) == {"orders": Instances(2, verified=1, failed=1)}
        assert f"{second}: {STORE} could not be initialised" in texts(found)


async def test_what_only_a_start_loads_restarts_the_affected_workload_once(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders", 2)
    await bed.deploy("other")
    others = await bed.uids("other")
    async with bed.agent(blobs) as agent:
        delivery = bed.delivery(resiliency(7, "orders"))
        found = await agent.converge(delivery)
        assert found.verified, texts(found)
        assert counts(found) == {"orders": Instances(2, verified=2), "other": Instances(1, verified=1)}
        digest = await bed.digest("orders")
        assert digest
        await bed.until_pods("orders", 2, digest=digest)
        assert (await bed.uids("other"), await bed.digest("other")) == (others, "")

        pods = await bed.uids("orders")
        agent.client.sent.clear()
        assert (await agent.converge(delivery)).verified
        assert agent.client.writes == []
        assert await bed.uids("orders") == pods


async def test_the_secrets_of_the_delivery_before_are_removed_on_release(bed: Bed, blobs: FileBlobs) -> None:
    async def secrets() -> set[str]:
        found = bed.client.list(SECRETS, bed.namespace, labels=f"runtime-governor.dev/owner={bed.namespace}")
        return {each["metadata"]["name"] async for each in found}

    async with bed.agent(blobs) as agent:
        assert (await agent.converge(bed.delivery(component("store", password="first-pw")))).verified
        await agent.platform.release()
        first = await secrets()
        second = bed.delivery(component("store", password="other-pw"))
        assert (await agent.converge(second)).verified
        both = await secrets()
        assert (len(first), len(both), first < both) == (1, 2, True)
        assert await agent.platform.find_drift(second) is None
        await agent.platform.release()
        assert await secrets() == both - first
        agent.client.sent.clear()
        await agent.platform.release()
        assert agent.client.sent == []


async def test_a_release_never_writes_a_delivery_that_was_superseded(bed: Bed, blobs: FileBlobs) -> None:
    async with bed.agent(blobs) as agent:
        for host, password in (("a", "first-pw"), ("b", "other-pw"), ("c", "other-pw")):
            store = component("store", host=host, password=password)
            assert (await agent.converge(bed.delivery(store))).verified
        await agent.platform.release()
        assert host_of(await bed.client.get(COMPONENTS, "store", bed.namespace)) == "c"


@pytest.mark.parametrize("kind", ["StatefulSet", "ReplicaSet"])
async def test_nothing_is_acknowledged_while_the_only_pod_is_replaced(bed: Bed, blobs: FileBlobs, kind: str) -> None:
    await bed.deploy("orders", 1, kind, **({"serviceName": "orders"} if kind == "StatefulSet" else {}))
    before = await bed.uids("orders")
    async with bed.agent(blobs) as agent:
        found = await agent.converge(bed.delivery(resiliency(7)))
        assert found.verified, texts(found)
        assert counts(found) == {"orders": Instances(1, verified=1)}
        assert not any(each.verified for each in agent.progress)
        after = await bed.uids("orders")
        assert len(after) == 1
        assert not after & before


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Deployment", {"strategy": {"type": "Recreate"}}),
        ("StatefulSet", {"serviceName": "orders", "updateStrategy": {"type": "OnDelete"}}),
    ],
    ids=["Recreate", "OnDelete"],
)
async def test_a_restart_that_is_not_gradual_needs_the_owners_permission(
    bed: Bed, blobs: FileBlobs, kind: str, spec: dict[str, Any]
) -> None:
    await bed.deploy("orders", 2, kind, **spec)
    before = await bed.uids("orders")
    async with bed.agent(blobs) as agent:
        delivery = bed.delivery(resiliency(7), verifyWindowSeconds=3)
        found = await agent.converge(delivery)
        assert counts(found) == {"orders": Instances(2, unproven=2)}
        assert "restart needed: its update strategy is" in texts(found)
        assert await bed.uids("orders") == before
        allowed = {"metadata": {"annotations": {"runtime-governor.dev/allow-restart": "true"}}}
        resource = DEPLOYMENTS if kind == "Deployment" else STATEFUL_SETS
        await bed.client.patch(resource, "orders", bed.namespace, allowed, manager="owner")
        await until_true(lambda: all(each.allowed for each in agent.observer.workloads()))
        found = await agent.converge(bed.delivery(resiliency(7)))
        assert found.verified, texts(found)
        assert not before & await bed.uids("orders")


async def test_no_workload_that_is_not_affected_is_touched(bed: Bed, blobs: FileBlobs) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)  # noqa: T201
    rng = random.Random(seed)
    for name in NAMES:
        await bed.deploy(name, rng.randint(1, 2))
    async with bed.agent(blobs) as agent:
        previous: list[str] = []
        for seconds in range(1, 4):
            affected = rng.sample(NAMES, rng.randint(1, 2))
            before = {name: (await bed.uids(name), await bed.digest(name)) for name in NAMES}
            assert (await agent.converge(bed.delivery(resiliency(seconds, *affected)))).verified
            after = {name: (await bed.uids(name), await bed.digest(name)) for name in NAMES}
            changed = {name for name in NAMES if before[name] != after[name]}
            assert changed == {*affected, *previous}, "those that load it, and those that no longer do"
            previous = affected


async def test_later_pods_are_checked_and_revoke_what_was_verified(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders")
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        delivery, old = bed.delivery(component("store")), set(await bed.pods("orders"))
        load = partial(bed.kubelet.sidecars[min(old)].load, "store", STORE)
        assert (await agent.converge(delivery, each_step(load))).verified
        await next_second()
        bed.kubelet.pending = True
        await bed.scale("orders", 2)
        pods = await bed.until_created("orders", 2)
        [new] = pods.keys() - old
        # The container has started, but daprd does not serve yet.
        await bed.report(new, pod_status([container("app"), container("daprd", ready=False)], address(0), ready=False))
        await until_true(lambda: any(pod.ip for pod in agent.pods(new)))
        found = await agent.converge(delivery)
        assert counts(found) == {"orders": Instances(2, verified=1, unproven=1)}
        assert f"{new}: the sidecar does not respond" in texts(found)
        bed.kubelet.pending = False
        await bed.until_pods("orders", 2)
        await until_true(lambda: all(pod.ready for pod in agent.pods(new)))
        found = await agent.converge(delivery)
        assert counts(found) == {"orders": Instances(2, verified=2)}
        assert await bed.digest("orders") == "", "restarted because a new pod was slow"
        assert old < set(await bed.pods("orders"))


async def test_a_pod_that_started_while_no_agent_ran_reloads_the_next_change(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders")
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        load = partial(bed.kubelet.sidecars[min(await bed.pods("orders"))].load, "store", STORE)
        assert (await agent.converge(bed.delivery(component("store")), each_step(load))).verified
    await next_second()
    await bed.scale("orders", 2)
    pods = await bed.until_pods("orders", 2)
    async with bed.agent(blobs) as agent:
        loads = [partial(each.load, "store", STORE) for each in bed.sidecars(*pods)]
        found = await agent.converge(bed.delivery(component("store", host="other:6379")), each_step(*loads))
        assert found.verified, texts(found)
        assert await bed.digest("orders") == "", "restarted although the running sidecars prove it"


async def test_a_change_after_an_unproven_one_restarts_at_once(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders")
    # Nothing else ends a window.
    bed.clock.is_stopped = True
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery(component("store")), superseded=lambda: bool(agent.progress))
        found = await agent.converge(bed.delivery(component("store", host="other:6379")))
        assert found.verified, texts(found)
        assert await bed.digest("orders") != "", "a counter would prove nothing: it may rise for the first change"


async def test_drift_is_found_and_repaired(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders")
    await bed.deploy("other")
    [pod] = await bed.pods("orders")
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        delivery = bed.delivery(component("store", scopes=["orders"]))
        load = partial(bed.kubelet.sidecars[pod].load, "store", STORE)
        assert (await agent.converge(delivery, each_step(load))).verified
        assert await agent.platform.find_drift(delivery) is None
        spec = {"spec": {"metadata": [{"name": "redisHost", "value": "elsewhere"}]}}
        await bed.client.patch(COMPONENTS, "store", bed.namespace, spec, manager="someone")

        drift = await agent.platform.find_drift(delivery)
        assert drift is not None
        assert (list(drift.texts), drift.workloads) == (
            [ResourceRef("Component", bed.namespace, "store")],
            (bed.ref("orders"),),
        )
        repaired = await agent.converge(delivery, each_step(load))
        assert repaired.verified
        assert bed.kubelet.sidecars[pod].initialised[STORE] == 2
        assert host_of(await bed.client.get(COMPONENTS, "store", bed.namespace)) == "redis:6379"


async def test_drift_calls_for_a_check_at_once_and_own_writes_do_not(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders")
    async with bed.agent(blobs) as agent:
        for seconds in (1, 2):
            assert (await agent.converge(bed.delivery(resiliency(seconds)))).verified
            assert len(agent.woken) == 0
        await next_second()
        labels = {"metadata": {"labels": {"team": "shop"}}}
        await bed.client.patch(RESILIENCIES, "limits", bed.namespace, labels, manager="someone")
        other = {"spec": {"policies": {"timeouts": {"short": "9s"}}}}
        await bed.client.patch(RESILIENCIES, "limits", bed.namespace, other, manager="someone")
        await until_true(lambda: len(agent.woken) > 0)
        assert len(agent.woken) == 1, "labels are loaded by no sidecar"
        await bed.client.delete(RESILIENCIES, "limits", bed.namespace)
        await until_true(lambda: len(agent.woken) == 2)
        # Other kinds, in place of the former one.
        await next_second()
        assert (await agent.converge(bed.delivery(component("store", password="hidden")))).applied
        await next_second()
        change = {"spec": {"version": "v2"}}
        await bed.client.patch(COMPONENTS, "store", bed.namespace, change, manager="someone")
        await until_true(lambda: len(agent.woken) == 3)
        [secret] = [each["metadata"]["name"] async for each in bed.client.list(SECRETS, bed.namespace)]
        await bed.client.delete(SECRETS, secret, bed.namespace)
        await until_true(lambda: len(agent.woken) == 4)


async def test_labels_change_nothing_for_a_sidecar(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders")
    async with bed.agent(blobs) as agent:
        assert (await agent.converge(bed.delivery(resiliency(1)))).verified
        labelled = resiliency(1)
        labelled["metadata"]["labels"] = {"team": "shop"}
        found = await agent.converge(bed.delivery(labelled))
        assert found.verified, texts(found)
        live = await bed.client.get(RESILIENCIES, "limits", bed.namespace)
        assert live["metadata"]["labels"]["team"] == "shop"
        assert await bed.restarts("orders") == 1


async def test_where_drift_is_ignored_nothing_restarts_for_it(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders")
    delivery = bed.delivery(resiliency(1), drift="off")
    async with bed.agent(blobs) as agent:
        assert (await agent.converge(delivery)).verified
        await next_second()
        other = {"spec": {"policies": {"timeouts": {"short": "9s"}}}}
        await bed.client.patch(RESILIENCIES, "limits", bed.namespace, other, manager="someone")
        agent.client.sent.clear()
        assert (await agent.converge(delivery)).verified
        assert agent.client.writes == []
        assert await bed.restarts("orders") == 1


async def test_a_resource_that_is_removed_again_is_restarted_for_again(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders")
    extra = resiliency(1)
    extra["metadata"]["name"] = "extra"
    removed = ResourceRef("Resiliency", bed.namespace, "extra")
    async with bed.agent(blobs) as agent:
        assert (await agent.converge(bed.delivery(resiliency(1)))).verified
        for restarts in (2, 3):
            delivery = bed.delivery(resiliency(1), extra, unproven="report", verifyWindowSeconds=3)
            assert not (await agent.converge(delivery)).verified
            found = await agent.converge(bed.delivery(resiliency(1), removals=(removed,)))
            assert found.verified, texts(found)
            assert await bed.restarts("orders") == restarts


async def test_without_metrics_a_component_is_unproven_or_restarts_by_policy(bed: Bed, blobs: FileBlobs) -> None:
    bed.injector.without_metrics.add("silent")
    await bed.deploy("silent")
    [pod] = await bed.pods("silent")
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        load = partial(bed.kubelet.sidecars[pod].load, "store", STORE)
        found = await agent.converge(
            bed.delivery(component("store"), unproven="report", verifyWindowSeconds=5), each_step(load)
        )
        assert counts(found) == {"silent": Instances(1, unproven=1)}
        assert "the sidecar's metrics are off" in texts(found)
        assert await bed.digest("silent") == ""
        found = await agent.converge(bed.delivery(component("store")))
        assert found.verified, texts(found)
        assert await bed.digest("silent")
        assert list(await bed.pods("silent")) != [pod]


async def test_a_removal_that_a_sidecar_has_not_taken_is_not_verified_later_either(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders")
    (pod,) = await bed.pods("orders")
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        load = partial(bed.kubelet.sidecars[pod].load, "store", STORE)
        assert (await agent.converge(bed.delivery(component("store")), each_step(load))).verified
        removed = ResourceRef("Component", bed.namespace, "store")
        delivery = bed.delivery(removals=(removed,), unproven="report", verifyWindowSeconds=5)
        assert not (await agent.converge(delivery)).verified
        assert not (await agent.converge(delivery)).verified
    async with bed.agent(blobs) as restarted:
        found = await restarted.converge(delivery)
        assert not found.verified
        assert "the sidecar still lists it" in texts(found)

        bed.kubelet.sidecars[pod].metadata["components"] = []
        assert (await restarted.converge(delivery)).verified


async def test_a_sensitive_value_that_stays_in_plain_text_is_named(bed: Bed, blobs: FileBlobs) -> None:
    resolution = {"component": "consul", "version": "v1", "configuration": {"token": "hidden-token"}}
    spec = {"nameResolution": resolution}
    resource = {"apiVersion": "dapr.io/v1alpha1", "kind": "Configuration", "metadata": {"name": "names"}, "spec": spec}
    async with bed.agent(blobs) as agent:
        found = await agent.converge(bed.delivery(resource, component("store", password="hidden-pw")))
        assert found.verified, texts(found)
        noted = {each.resource.name for each in found.resources if "in plain text" in texts_of(each)}
        assert noted == {"names"}
        assert "because Dapr reads no Secret there: spec.nameResolution.configuration.token" in texts(found)
        assert "hidden" not in texts(found)
