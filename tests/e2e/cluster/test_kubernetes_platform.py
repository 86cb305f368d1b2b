"""The platform contract in the real cluster: real Dapr, and pods whose sidecars its injector added.

All tests share the Deployments, and begin with a delivery of their own.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from governor.agent.verification.findings import Findings
from governor.cli.commands.inventory_import import import_inventory
from governor.domain.dapr.kinds import kinds
from governor.domain.documents import Preflight, Unproven
from governor.domain.reports import State
from testbed.builds.dapr import VERSION, VERSION_1_16
from testbed.cluster.cluster import Cluster
from testbed.cluster.dapr import Dapr, sidecar
from testbed.cluster.fixtures import SharedCluster, new_namespace, show_pods_of
from testbed.cluster.workloads import IdleApp, Manifest, metadata_of
from testbed.waiting import until
from tests.contract.agent.platform.bed import next_second
from tests.contract.agent.platforms.bed import (
    RUNTIME,
    Deliveries,
    component,
    resiliency,
    resource,
    running_agent,
    store,
    texts,
)
from tests.contract.agent.platforms.cases import PlatformCases
from tests.e2e.cluster.dapr_specs import bus, configuration, scoped_resources
from tests.e2e.cluster.platform_bed import OWNED, ClusterBed
from toolchain.oci import LOCAL


@pytest.fixture(autouse=True)
def _short_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten how long an agent waits for the writes of the one before it, which has ended in each of these tests."""
    monkeypatch.setattr("governor.kube.applyset.inventory.CLAIM_TTL_S", 0.5)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_bed(shared_cluster: SharedCluster) -> AsyncIterator[ClusterBed]:
    """The Deployments of all cases."""
    cluster = await shared_cluster.running()
    await Dapr(cluster).bring_to(VERSION)
    async with new_namespace(cluster) as namespace:
        bed = ClusterBed(cluster, namespace)
        await bed.start()
        yield bed


@pytest.fixture
def bed(request: pytest.FixtureRequest, shared_bed: ClusterBed, cluster: Cluster) -> ClusterBed:
    """The shared Deployments, in a cluster that runs."""
    show_pods_of(request, shared_bed.namespace)
    return shared_bed


class TestKubernetesPlatform(PlatformCases):
    """All cases."""


async def the_pod(app: IdleApp) -> Manifest:
    (pod,) = await app.pods()
    return pod


async def identity(app: IdleApp) -> tuple[str, int]:
    """Return the uid of an app's pod, and how often its containers were restarted."""
    pod = await the_pod(app)
    containers = [*pod["status"]["containerStatuses"], *pod["status"].get("initContainerStatuses", ())]
    return pod["metadata"]["uid"], sum(each["restartCount"] for each in containers)


async def components(app: IdleApp) -> set[str]:
    """Return the components that an app's sidecar has loaded, beside the secret store that each has."""
    return {each["name"] for each in (await metadata_of(await the_pod(app)))["components"]} - {"kubernetes"}


def evidence(found: Findings, resource: str) -> dict[str, str]:
    """Return the last evidence on a resource by workload."""
    (report,) = [each for each in found.resources if each.resource.name == resource]
    return {each.workload.name: each.evidence[-1].text for each in report.workloads}


async def test_an_old_sidecar_restarts_beside_a_native_one_that_reloads_and_metrics_may_be_off(
    bed: ClusterBed, cluster: Cluster
) -> None:
    await cluster.import_image(sidecar(VERSION_1_16))
    old = bed.app("old", {"dapr.io/sidecar-image": f"{LOCAL}/daprd:{VERSION_1_16}"})
    native, silent = bed.app(bed.beta), bed.app("silent", {"dapr.io/enable-metrics": "false"})
    await asyncio.gather(old.start(), silent.start())
    assert [each["name"] for each in (await the_pod(native))["spec"]["initContainers"]] == ["daprd"]
    assert (await metadata_of(await the_pod(old)))["runtimeVersion"] == VERSION_1_16
    before, deliveries = [await identity(app) for app in (old, native, silent)], Deliveries()
    async with running_agent(bed) as agent:
        loud = store("loud", "1", bed.namespace, "old", bed.beta)
        found = await agent.converge(deliveries.next(loud))
        assert found.verified, texts(found)
        assert "state.in-memory initialised" in evidence(found, "loud")[bed.beta]
        assert "started after the write" in evidence(found, "loud")["old"]
        after = [await identity(app) for app in (old, native, silent)]
        assert [each in before for each in after] == [False, True, True]

        quiet = store("quiet", "1", bed.namespace, "silent")
        policy = {"unproven": Unproven.REPORT, "verify_window_seconds": 2}
        found = await agent.converge(deliveries.next(loud, quiet, **policy))
        assert [each.state for each in found.resources] == [State.VERIFIED, State.UNPROVEN]
        assert "the sidecar's metrics are off" in evidence(found, "quiet")["silent"]
        assert [await identity(app) for app in (old, native, silent)] == after

        found = await agent.converge(deliveries.next(loud, quiet))
        assert found.verified, texts(found)
        now = [await identity(app) for app in (old, native, silent)]
        assert [each in after for each in now] == [True, True, False]
        assert [await components(app) for app in (old, native, silent)] == [{"loud"}, {"loud"}, {"quiet"}]


async def sidecar_starts(cluster: Cluster, pod: Manifest) -> int:
    """Return how often the sidecar of a pod has started, also within its process."""
    named = f"--namespace={pod['metadata']['namespace']}", pod["metadata"]["name"], "--container=daprd"
    return (await cluster.kubectl("logs", *named)).count("dapr initialized. Status: Running")


async def test_what_kubectl_applied_is_imported_and_adopted_without_touching_a_sidecar(
    cluster: Cluster, dapr: Dapr, cluster_namespace: str
) -> None:
    settings = resource("Configuration", "settings", cluster_namespace, {"features": []})
    existing = (store("theirs", "s3cret-free", cluster_namespace), settings)
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": existing})
    await cluster.kubectl("apply", "--filename=-", stdin=listed)
    await next_second()
    bed = ClusterBed(cluster, cluster_namespace, ("kubectl-client-side-apply",))
    app = await bed.app("app", {"dapr.io/config": "settings"}).start()
    before, pod = await identity(app), await the_pod(app)
    starts, deliveries = await sidecar_starts(cluster, pod), Deliveries()
    async with running_agent(bed) as agent:
        assert agent.home.inventory is not None
        imported = import_inventory(RUNTIME, await agent.home.inventory.read()).document["spec"]["resources"]
        found = await agent.converge(deliveries.next(*imported))
        assert found.verified, texts(found)
        live = json.loads(
            await cluster.kubectl(
                "get", "components,configurations", f"--namespace={cluster_namespace}", OWNED, "-ojson"
            )
        )["items"]
    assert [each["metadata"]["generation"] for each in live] == [1, 1]
    assert [await sidecar_starts(cluster, pod), await identity(app)] == [starts, before]
    assert starts == 1


def states(found: Findings) -> dict[str, State]:
    """Return the states by name of the resource."""
    return {each.resource.name: each.state for each in found.resources}


async def test_a_change_is_proven_through_the_pod_proxy(bed: ClusterBed, cluster: Cluster) -> None:
    deliveries, app = Deliveries(), bed.app(bed.beta)
    one, two = (store("one", value, bed.namespace, bed.beta) for value in ("1", "2"))
    async with running_agent(bed.with_access("proxy")) as agent:
        assert (await agent.converge(deliveries.next(one))).verified
        before = await identity(app), await proxied_requests(cluster)
        found = await agent.converge(deliveries.next(two))
        assert found.verified, texts(found)
        assert "state.in-memory initialised" in evidence(found, "one")[bed.beta]
        assert await identity(app) == before[0]
        assert await proxied_requests(cluster) > before[1]


async def proxied_requests(cluster: Cluster) -> float:
    """Return how many requests to pods the API server has forwarded."""
    metrics = await cluster.kubectl("get", "--raw=/metrics")
    found = re.findall(
        r'^apiserver_request_total{.*resource="pods".*subresource="proxy".*} (\S+)$', metrics, re.MULTILINE
    )
    return sum(map(float, found))


async def test_every_kind_is_proven_after_one_restart_and_an_old_sidecar_may_opt_in_to_hot_reload(
    bed: ClusterBed, cluster: Cluster
) -> None:
    await cluster.import_image(sidecar(VERSION_1_16))
    image = f"{LOCAL}/daprd:{VERSION_1_16}"
    full = bed.app("full", {"dapr.io/config": "tuned"})
    old = bed.app("opted-in", {"dapr.io/config": "hot", "dapr.io/sidecar-image": image})
    deliveries, hot = Deliveries(), configuration("hot", bed.namespace, "HotReload")
    one, two = (store("one", value, bed.namespace, old.name) for value in ("1", "2"))
    async with running_agent(bed) as agent:
        # A sidecar does not start without its Configuration.
        first = deliveries.next(configuration("tuned", bed.namespace, "first"), hot, one)
        await agent.converge(first)
        async with started(full, old):
            assert (await agent.converge(first)).verified
            before, revision = [await identity(app) for app in (full, old)], await revision_of(cluster, full)

            every = [*scoped_resources(bed.namespace, (full.name,)), {**bus(bed.namespace), "scopes": [full.name]}]
            every.append(configuration("tuned", bed.namespace, "second"))
            assert {each["kind"] for each in every} == set(kinds())
            found = await agent.converge(deliveries.next(*every, hot, two))

            assert found.verified, texts(found)
            shown = {each["kind"]: evidence(found, each["metadata"]["name"])[full.name] for each in every}
            assert {kind for kind, text in shown.items() if "started after the write" in text} == set(kinds()), shown
            assert "the marker of its content" in shown["Configuration"]
            assert await identity(full) != before[0]
            assert await revision_of(cluster, full) == revision + 1
            assert "state.in-memory initialised" in evidence(found, "one")[old.name]
            assert await identity(old) == before[1]
            assert (await metadata_of(await the_pod(old)))["runtimeVersion"] == VERSION_1_16


@asynccontextmanager
async def started(*apps: IdleApp) -> AsyncIterator[None]:
    """Start Deployments, and delete them afterwards: their sidecars would fail without their Configurations."""
    await asyncio.gather(*(app.start() for app in apps))
    try:
        yield
    finally:
        for app in apps:
            where = (f"deployment/{app.name}", f"--namespace={app.namespace}")
            await app.cluster.kubectl("delete", "--cascade=foreground", *where)


async def revision_of(cluster: Cluster, app: IdleApp) -> int:
    """Return how many templates a Deployment has had."""
    where = (f"deployment/{app.name}", f"--namespace={app.namespace}")
    path = r"jsonpath={.metadata.annotations.deployment\.kubernetes\.io/revision}"
    return int(await cluster.kubectl("get", *where, f"--output={path}"))


async def test_after_a_restart_within_the_process_only_another_instance_proves_a_change(
    bed: ClusterBed, cluster: Cluster
) -> None:
    deliveries, app = Deliveries(), bed.app(bed.beta)
    one, two = (store("one", value, bed.namespace, bed.beta) for value in ("1", "2"))
    policy = {"unproven": Unproven.REPORT, "verify_window_seconds": 1}
    async with running_agent(bed) as agent:
        assert (await agent.converge(deliveries.next(one))).verified
        before = await identity(app)

        # The sidecar restarts within its process, and its counters become those of the runtime before or after.
        limits = resiliency(5, bed.namespace, bed.beta)
        found = await agent.converge(deliveries.next(one, limits, **policy))
        assert states(found) == {"one": State.VERIFIED, "limits": State.UNPROVEN}, texts(found)
        await until(lambda: has_resiliency(app))
        assert await identity(app) == before

        delivery = deliveries.next(two, limits, **policy)
        found = await agent.converge(delivery)
        assert states(found) == {"one": State.UNPROVEN, "limits": State.UNPROVEN}, texts(found)
        assert "counters are not evidence" in evidence(found, "one")[bed.beta]
        assert await identity(app) == before

        await cluster.kubectl("delete", "pod", (await the_pod(app))["metadata"]["name"], f"--namespace={bed.namespace}")
        await app.wait_ready()
        found = await agent.converge(delivery)
        assert states(found) == {"one": State.VERIFIED, "limits": State.VERIFIED}, texts(found)
        assert "started after the write" in evidence(found, "one")[bed.beta]


async def has_resiliency(app: IdleApp) -> bool:
    return bool((await metadata_of(await the_pod(app))).get("resiliencies"))


async def test_a_broken_store_without_scopes_does_not_prevent_its_own_repair(
    dapr: Dapr, cluster_namespace: str
) -> None:
    bed, deliveries = ClusterBed(dapr.cluster, cluster_namespace), Deliveries()
    await bed.app("solo").start()
    broken = component("shared", "state.redis", cluster_namespace, (), redisHost="127.0.0.1:1")
    async with running_agent(bed) as agent:
        await agent.converge(deliveries.next(broken, verify_window_seconds=1, unproven=Unproven.REPORT))
        repaired = store("shared", "1", cluster_namespace)
        policy = {"preflight": Preflight.SIDECAR, "verify_window_seconds": 1, "unproven": Unproven.REPORT}
        found = await agent.converge(deliveries.next(repaired, **policy))
        (report,) = found.resources
        assert [each.text for each in report.evidence][1].startswith("initialised"), texts(found)
        assert await bed.live_spec("shared") == repaired["spec"]
