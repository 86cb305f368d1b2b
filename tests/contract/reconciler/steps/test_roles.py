"""Watching and working in separate processes; workers at zero while nothing is to be done."""

import pytest

from governor.kube.lease import LEASES
from governor.kube.objects import Object
from governor.process.telemetry.instruments import Registry
from governor.reconciler.controllers import demand
from governor.reconciler.main import NAME
from tests.contract.kube.applyset.bed import DEPLOYMENTS, config_map, deployment
from tests.contract.kube.bed import FaultyApi
from tests.contract.reconciler.bed import runs
from tests.contract.reconciler.steps.bed import WORKER, ModuleBed, create_workers, has_workers, listed

IDLE_S = 0.3


@pytest.fixture
async def split(idle: ModuleBed, monkeypatch: pytest.MonkeyPatch) -> ModuleBed:
    """A hub with a Deployment of workers; tests run them in its place."""
    monkeypatch.setattr(demand, "RETRY_S", 0.1)
    await create_workers(idle)
    return idle


async def test_workers_are_started_for_work_and_stopped_when_all_is_compliant(split: ModuleBed) -> None:
    bed = split
    await bed.add("orders", values=listed(config_map("a", n="1")))
    async with bed.reconciling(role="watch", worker_idle=IDLE_S) as registry:
        await bed.install("orders", "orders")
        await has_workers(bed, 1)
        async with bed.reconciling(role="work"):
            await bed.becomes("orders", "Ready")
            await has_workers(bed, 0)
        assert registry.value("governor_reconciler_workers") == 0
        before = await bed.get("ModuleInstance", "orders.local")

        await bed.edit("a", n="drifted")
        await has_workers(bed, 1)
        assert await bed.data("a") == {"n": "drifted"}, "who watches repairs nothing"
        async with bed.reconciling(role="work"):
            await bed.has_data("a", {"n": "1"})
            await has_workers(bed, 0)
        after = await bed.get("ModuleInstance", "orders.local")
        assert after["status"]["lastApplied"] == before["status"]["lastApplied"]

        await bed.install("orders", "orders", values={"changed": True})
        await has_workers(bed, 1)
        async with bed.reconciling(role="work"):
            await bed.becomes("orders", "Ready", values={"changed": True})
            await has_workers(bed, 0)

        await bed.delete("Installation", "orders")
        await has_workers(bed, 1)
        async with bed.reconciling(role="work"):
            await bed.gone("ModuleInstance", "orders.local")
            await has_workers(bed, 0)
        assert await bed.data("a") is None


async def test_the_workers_of_a_hub_that_manages_itself_stay_at_zero(
    idle: ModuleBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each scaling changes an object of the module that contains the workers, which is no reason for a worker."""
    bed = idle
    bed.space = bed.namespace
    monkeypatch.setattr(demand, "RETRY_S", 0.1)
    workers = deployment(WORKER)
    del workers["spec"]["replicas"]
    await bed.add("own", values=listed(workers, config_map("a", n="1")))
    async with bed.reconciling():
        await bed.install("own", "own")
        await bed.ready_deployment(WORKER, 1)
        await bed.becomes("own", "Ready")
    reasons = recorded_reasons(monkeypatch)
    async with bed.reconciling(role="watch", worker_idle=0.0) as registry:
        await has_workers(bed, 0)
        for observed in (1, 2, 1, 2):  # each is reported after the scaling
            before = runs(registry, "module-observation")
            await bed.write_status(DEPLOYMENTS, WORKER, {"observedGeneration": observed})
            await until_runs(bed, registry, "module-observation", more_than=before)
        settled = reasons[reasons.index("") :]
        assert set(settled) == {""}, "scaling is no reason to scale"
        await bed.edit("a", n="drifted")
        await has_workers(bed, 1)


def recorded_reasons(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each reason for workers is added; an empty one says that none is needed."""
    reasons = list[str]()
    original = demand.Demand.set

    def record(self: demand.Demand, key: str, reason: str) -> None:
        reasons.append(reason)
        original(self, key, reason)

    monkeypatch.setattr(demand.Demand, "set", record)
    return reasons


async def test_who_watches_writes_no_status_of_modules_and_nothing_at_rest(split: ModuleBed, faults: FaultyApi) -> None:
    bed = split
    await bed.add("orders", values=listed(config_map("a")))
    async with bed.reconciling():
        await bed.deploy("orders")
        await bed.shows("Cluster", "local", lambda each: each["status"].get("ready") == "1/1")
    async with bed.reconciling(faults.access, role="watch", worker_idle=IDLE_S) as registry:
        await until_runs(bed, registry, "module-observation")
        await bed.edit("a", n="drifted")
        await has_workers(bed, 1)
    written = {each.path for each in faults.requests if each.method != "GET" and "/leases" not in each.path}
    assert written == {f"/apis/apps/v1/namespaces/{bed.namespace}/deployments/{WORKER}/scale"}


async def until_runs(bed: ModuleBed, registry: Registry, controller: str, more_than: float = 0) -> None:
    async def has_run() -> bool:
        return runs(registry, controller) > more_than

    await bed.until(has_run)


async def test_a_second_replica_takes_over_without_a_write(idle: ModuleBed, faults: FaultyApi) -> None:
    bed = idle
    for name in ("orders", "stock"):
        await bed.add(name, values=listed(config_map(name, n="1")))

    async def holder() -> str:
        found: Object = await bed.find(LEASES, NAME, bed.namespace) or {}
        return str(found.get("spec", {}).get("holderIdentity") or "")

    async with bed.reconciling():
        for name in ("orders", "stock"):
            await bed.deploy(name)
        await bed.shows("Cluster", "local", lambda each: each["status"].get("ready") == "2/2")
        await bed.until(holder)
        first = await holder()
        standby = bed.reconciling(faults.access)
        registry = await standby.__aenter__()
        assert runs(registry, "module-instances") == 0, "one works, the other waits"
    try:

        async def is_taken_over() -> bool:
            return await holder() not in ("", first) and runs(registry, "module-instances") >= 2

        await bed.until(is_taken_over)
        await bed.edit("orders", n="drifted")
        written = [each.path for each in faults.requests if each.method != "GET" and "/leases" not in each.path]
        assert written == [], "nothing to do, nothing written"
        await bed.has_data("orders", {"n": "1"})
    finally:
        await standby.__aexit__(None, None, None)
