"""Resources that kubectl applied, adopted as they are: no sidecar is touched, and only what is proven is verified."""

import json

import msgspec
import pytest

from governor.agent.state.file_blobs import FileBlobs
from governor.domain.documents import ResourceRef
from governor.domain.reports import State
from governor.kube.objects import Object
from governor.values.trees import Manifest
from testbed.kube.control_plane import ControlPlane
from tests.contract.agent.apply.bed import COMPONENTS, CONFIGURATIONS, component, resource
from tests.contract.agent.platform.bed import RESILIENCIES, Bed, next_second, resiliency, texts

pytestmark = pytest.mark.asyncio(loop_scope="session")

KUBECTL = ("kubectl-client-side-apply",)
OWNER = "runtime-governor.dev/owner"
KINDS = {"Component": COMPONENTS, "Configuration": CONFIGURATIONS, "Resiliency": RESILIENCIES}
EXISTING = (
    component("store"),
    resource("Configuration", "settings", spec={"tracing": {"samplingRate": "1"}}),
    resiliency(7),
)


async def kubectl_apply(plane: ControlPlane, bed: Bed, *manifests: Manifest) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": manifests}
    await plane.kubectl("--namespace", bed.namespace, "apply", "--filename=-", stdin=json.dumps(listed))


async def live(bed: Bed, *manifests: Manifest) -> list[Object]:
    return [await bed.client.get(KINDS[each["kind"]], each["metadata"]["name"], bed.namespace) for each in manifests]


def generations(objects: list[Object]) -> list[int]:
    return [each["metadata"]["generation"] for each in objects]


async def deploy(bed: Bed) -> None:
    """Create a workload that uses the Configuration, after the second in which the resources were written."""
    await next_second()
    template = {
        "metadata": {
            "labels": {"app": "orders"},
            "annotations": {
                "dapr.io/enabled": "true",
                "dapr.io/app-id": "orders",
                "dapr.io/config": "settings",
            },
        },
        "spec": {"containers": [{"name": "app", "image": "app"}], "terminationGracePeriodSeconds": 0},
    }
    await bed.deploy("orders", 2, template=template)


async def test_resources_that_the_pods_started_with_are_adopted_and_verified_without_a_restart(
    bed: Bed, blobs: FileBlobs, plane: ControlPlane
) -> None:
    await kubectl_apply(plane, bed, *EXISTING)
    await deploy(bed)
    before, pods = await live(bed, *EXISTING), await bed.uids("orders")
    delivery = bed.delivery(*EXISTING)
    async with bed.agent(blobs, adopt=KUBECTL) as agent:
        found = await agent.converge(delivery)
        assert found.verified, texts(found)
        assert await agent.platform.find_drift(delivery) is None
        await agent.platform.release()
    async with bed.agent(blobs, adopt=KUBECTL) as restarted:
        for _ in range(2):
            found = await restarted.converge(delivery)
            assert found.verified, texts(found)
            assert await restarted.platform.find_drift(delivery) is None
        assert restarted.client.writes == []
    after = await live(bed, *EXISTING)
    assert {each["metadata"]["labels"][OWNER] for each in after} == {bed.namespace}
    assert [each["spec"] for each in after] == [each["spec"] for each in before]
    assert generations(after) == generations(before)
    assert (await bed.uids("orders"), await bed.restarts("orders")) == (pods, 0)


async def test_what_the_pods_do_not_prove_stays_unproven_until_an_operator_retries(
    bed: Bed, blobs: FileBlobs, plane: ControlPlane
) -> None:
    await kubectl_apply(plane, bed, EXISTING[1])
    await deploy(bed)
    await kubectl_apply(plane, bed, *EXISTING[::2])
    before, pods = await live(bed, *EXISTING), await bed.uids("orders")
    delivery = bed.delivery(*EXISTING)
    for _ in range(2):
        async with bed.agent(blobs, adopt=KUBECTL) as agent:
            for _ in range(2):
                found = await agent.converge(delivery)
                assert {each.state for each in found.resources} == {State.UNPROVEN}, texts(found)
                assert "adopted as it is, so nothing was restarted to prove it" in texts(found)
                assert await agent.platform.find_drift(delivery) is None
    assert generations(await live(bed, *EXISTING)) == generations(before)
    assert (await bed.uids("orders"), await bed.restarts("orders")) == (pods, 0)

    retried = msgspec.structs.replace(bed.delivery(*EXISTING), attempt=2)
    async with bed.agent(blobs, adopt=KUBECTL) as agent:
        found = await agent.converge(retried)
        assert found.verified, texts(found)
    assert await bed.restarts("orders") == 1


async def test_a_change_of_an_adopted_configuration_adds_the_marker(
    bed: Bed, blobs: FileBlobs, plane: ControlPlane
) -> None:
    await kubectl_apply(plane, bed, *EXISTING)
    changed = resource("Configuration", "settings", spec={"tracing": {"samplingRate": "0.5"}})
    async with bed.agent(blobs, adopt=KUBECTL) as agent:
        assert (await agent.converge(bed.delivery(*EXISTING))).verified
        delivery = bed.delivery(EXISTING[0], changed)
        assert (await agent.converge(delivery)).verified
        [found] = await live(bed, changed)
        assert found["spec"]["features"][0]["name"].startswith("runtime-governor/settings/")
        assert await agent.platform.find_drift(delivery) is None


async def test_a_rollback_keeps_what_was_adopted_and_a_removal_deletes_it(
    bed: Bed, blobs: FileBlobs, plane: ControlPlane
) -> None:
    await kubectl_apply(plane, bed, *EXISTING)
    await deploy(bed)
    before = await live(bed, *EXISTING)
    async with bed.agent(blobs, adopt=KUBECTL) as agent:
        assert (await agent.converge(bed.delivery(*EXISTING))).verified
        assert (await agent.converge(bed.delivery())).verified
        await agent.platform.release()
        assert generations(await live(bed, *EXISTING)) == generations(before)
        removals = (ResourceRef("Resiliency", bed.namespace, "limits"),)
        await agent.converge(bed.delivery(*EXISTING[:2], removals=removals, unproven="report"))
        found = [each["metadata"]["name"] async for each in bed.client.list(RESILIENCIES, bed.namespace)]
        assert found == []
        assert generations(await live(bed, *EXISTING[:2])) == generations(before[:2])
