"""Workloads that are scaled: by a HorizontalPodAutoscaler, or by a ScaledObject if the cluster serves that kind."""

from governor.kube.client import Client
from governor.kube.objects import ApiResource
from tests.contract.kube.applyset.bed import config_map, definition, deployment
from tests.contract.kube.bed import FaultyApi
from tests.contract.reconciler.definition_bed import remove
from tests.contract.reconciler.watch.bed import TargetBed

AUTOSCALERS = ApiResource("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", namespaced=True)
SCALED_OBJECTS = ApiResource("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects", namespaced=True)


def autoscaler(target: TargetBed, workload: str) -> dict[str, object]:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": workload}
    found = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "scaler"},
        "spec": {"scaleTargetRef": reference, "maxReplicas": 3},
    }
    return target.placed(found)


async def test_a_horizontal_pod_autoscaler_scales_its_target(target: TargetBed, client: Client) -> None:
    await target.apply("dapr", deployment("a"), deployment("b"))
    await target.apply("redis", config_map("a"))
    one, other = target.ref(deployment("a")), target.ref(deployment("b"))
    async with target.watching() as watched:
        watch = watched.watch
        assert not watch.is_autoscaled(one)
        watched.changes.clear()
        await client.apply(AUTOSCALERS, autoscaler(target, "a"), manager="tests")
        await watched.until(lambda: watch.is_autoscaled(one))
        assert not watch.is_autoscaled(other)
        assert watched.changes == ["dapr"]
        await client.apply(AUTOSCALERS, autoscaler(target, "b"), manager="tests")
        await watched.until(lambda: watch.is_autoscaled(other))
        assert not watch.is_autoscaled(one)
    async with target.watching() as watched:
        assert watched.watch.is_autoscaled(other)
        await client.delete(AUTOSCALERS, "scaler", target.namespace)
        await watched.until(lambda: not watched.watch.is_autoscaled(other))


async def test_a_scaled_object_scales_its_target(target: TargetBed, client: Client) -> None:
    crd = definition("ScaledObject", "keda.sh")
    crd["spec"]["versions"][0]["name"] = SCALED_OBJECTS.version
    await target.apply("dapr", deployment("a"))
    try:
        async with target.watching() as watched:
            await target.apply("keda", crd)
            scaled = {
                "apiVersion": SCALED_OBJECTS.api_version,
                "kind": SCALED_OBJECTS.kind,
                "metadata": {"name": "scaler"},
                "spec": {"scaleTargetRef": {"name": "a"}},
            }
            await client.create(SCALED_OBJECTS, target.placed(scaled), manager="tests")
            await watched.until(lambda: watched.watch.is_autoscaled(target.ref(deployment("a"))))
            await client.delete(SCALED_OBJECTS, "scaler", target.namespace)
            await watched.until(lambda: not watched.watch.is_autoscaled(target.ref(deployment("a"))))
    finally:
        await remove(client, crd["metadata"]["name"])


async def test_autoscalers_are_watched_only_for_kinds_that_can_be_scaled(target: TargetBed, faults: FaultyApi) -> None:
    def lists() -> int:
        return faults.count(lambda each: each.path == AUTOSCALERS.path() and not each.is_watch)

    await target.apply("dapr", config_map("a"))
    async with target.watching(faults.client) as watched:
        assert lists() == 0
        await target.apply("redis", deployment("a"))
        await watched.until(lambda: watched.watch.state(target.ref(deployment("a"))))
        await watched.synced()
        assert lists() == 1
        await target.remove("redis")
        await watched.until(lambda: watched.watch.inventory("redis") is None)
        assert not watched.watch.is_autoscaled(target.ref(deployment("a")))
