"""The platform contract in the real cluster: real Dapr, and pods whose sidecars its injector added.

All tests share the Deployments, and begin with a delivery of their own.
"""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from governor.agent.verification.findings import Findings
from governor.cli.commands.inventory_import import import_inventory
from governor.domain.documents import Unproven
from governor.domain.reports import State
from testbed.builds.dapr import VERSION, VERSION_1_16
from testbed.cluster.cluster import Cluster
from testbed.cluster.dapr import Dapr, sidecar
from testbed.cluster.fixtures import new_namespace, show_pods_of
from testbed.cluster.shared import SharedCluster
from testbed.cluster.workloads import IdleApp, Manifest, metadata_of
from tests.contract.agent.platform.bed import next_second
from tests.contract.agent.platforms.bed import RUNTIME, Deliveries, resource, running_agent, store, texts
from tests.contract.agent.platforms.cases import PlatformCases
from tests.e2e.cluster.platform_bed import OWNED, ClusterBed
from toolchain.oci import LOCAL


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
