"""Resources of other owners that the agent's sidecars load too: what they prove, and what they keep."""

import asyncio
from functools import partial
from typing import Any

import pytest

from governor.agent.state.file_blobs import FileBlobs
from governor.agent.verification.findings import Findings
from governor.domain.reports import Instances
from governor.kube.objects import Object
from governor.values.trees import Manifest
from tests.contract.agent.apply.bed import COMPONENTS, component, secret_store
from tests.contract.agent.platform.bed import RESILIENCIES, Bed, counts, each_step, resiliency, texts

pytestmark = pytest.mark.asyncio(loop_scope="session")

STORE = "state.redis"
SECRETS = "secretstores.local.env"


async def create_foreign(bed: Bed, kind: str = STORE, **more: Any) -> None:
    manifest = component("theirs", **more)
    manifest["metadata"]["namespace"] = bed.namespace
    manifest["spec"]["type"] = kind
    await bed.client.create(COMPONENTS, manifest, manager="someone")


@pytest.mark.parametrize("kind", [STORE, "pubsub.redis"], ids=["same type", "another type"])
async def test_one_that_reloads_meanwhile_makes_the_counter_of_its_type_worthless(
    bed: Bed, blobs: FileBlobs, kind: str
) -> None:
    await bed.deploy("orders")
    [pod] = await bed.pods("orders")
    sidecar = bed.kubelet.sidecars[pod]
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        load = partial(sidecar.load, "store", STORE)
        assert (await agent.converge(bed.delivery(component("store")), each_step(load))).verified
        foreign: list[asyncio.Task[None]] = []

        def reload(_: Findings) -> None:
            if not foreign:
                foreign.append(asyncio.ensure_future(create_foreign(bed, kind)))
            elif foreign[0].done() and sidecar.initialised[STORE] == 1:
                sidecar.load("theirs", STORE)

        delivery = bed.delivery(component("store", host="new"), unproven="report", verifyWindowSeconds=10)
        found = await agent.converge(delivery, reload)
        if kind == STORE:
            assert counts(found) == {"orders": Instances(1, unproven=1)}
            assert "Component theirs of another owner and the same type changed too" in texts(found)
            assert not (await agent.converge(delivery)).verified, "a check later"
        else:
            assert found.verified, texts(found)


async def test_a_resiliency_for_which_the_sidecar_restarts_meanwhile_makes_its_counters_worthless(
    bed: Bed, blobs: FileBlobs
) -> None:
    await bed.deploy("orders")
    [pod] = await bed.pods("orders")
    sidecar = bed.kubelet.sidecars[pod]
    manifest = resiliency(1)
    manifest["metadata"] = {"name": "theirs", "namespace": bed.namespace}
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        load = partial(sidecar.load, "store", STORE)
        assert (await agent.converge(bed.delivery(component("store")), each_step(load))).verified
        foreign: list[asyncio.Task[Object]] = []

        def restart(_: Findings) -> None:
            if not foreign:
                foreign.append(asyncio.ensure_future(bed.client.create(RESILIENCIES, manifest, manager="someone")))
            elif foreign[0].done() and sidecar.initialised[STORE] == 1:
                sidecar.load("store", STORE)  # within the same process, with what it had before

        delivery = bed.delivery(component("store", host="new"), unproven="report", verifyWindowSeconds=10)
        found = await agent.converge(delivery, restart)
        assert counts(found) == {"orders": Instances(1, unproven=1)}
        assert "Resiliency theirs of another owner changed too" in texts(found)
        assert not (await agent.converge(delivery)).verified, "a check later"


async def test_one_that_reads_from_a_changed_secret_store_needs_a_restart(bed: Bed, blobs: FileBlobs) -> None:
    def store(value: str) -> Manifest:
        made = secret_store("vault")
        made["spec"]["metadata"] = [{"name": "prefix", "value": value}]
        return made

    for name in ("orders", "other"):
        await bed.deploy(name)
    await create_foreign(bed, auth={"secretStore": "vault"}, scopes=["orders"])
    sidecars = bed.sidecars(*await bed.pods("orders"), *await bed.pods("other"))
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        steps = [partial(each.load, "vault", SECRETS) for each in sidecars]
        assert (await agent.converge(bed.delivery(store("a")), each_step(*steps))).verified
        found = await agent.converge(bed.delivery(store("b")), each_step(*steps))
        assert found.verified, texts(found)
        assert (await bed.restarts("orders"), await bed.restarts("other")) == (1, 0)
