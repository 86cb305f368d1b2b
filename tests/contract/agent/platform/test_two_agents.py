"""Two processes for one runtime: the later one wins, and the earlier one stops writing and names it."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from governor.agent.platforms.kubernetes.workloads.observer import DEPLOYMENTS
from governor.agent.state.secret_blobs import SecretBlobs
from governor.agent.verification.findings import Findings
from governor.errors import Kind
from governor.kube.applyset.inventory import CLAIM_TTL_S
from governor.kube.client import Request
from governor.values.trees import Manifest
from tests.contract.agent.apply.bed import COMPONENTS, component, host_of
from tests.contract.agent.platform.bed import Agent, Bed, each_step, install_services, resiliency, texts
from tests.contract.kube.applyset.bed import error_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

STORE = "state.redis"


async def state(bed: Bed, name: str = "agent") -> SecretBlobs:
    return await SecretBlobs.open(bed.client, bed.namespace, name)


def labelled(manifest: Manifest) -> Manifest:
    """Return a resource with a change that no sidecar has to prove, so that there is nothing to store before it."""
    return {**manifest, "metadata": {**manifest["metadata"], "labels": {"team": "shop"}}}


async def verified(bed: Bed, agent: Agent) -> None:
    """Have a component applied and proven."""
    [pod] = await bed.pods("orders")
    await agent.converge(bed.delivery())
    load = partial(bed.kubelet.sidecars[pod].load, "store", STORE)
    found = await agent.converge(bed.delivery(component("store")), each_step(load))
    assert found.verified, texts(found)


async def test_a_deposed_agent_that_has_nothing_to_store_writes_no_object(bed: Bed) -> None:
    await bed.deploy("orders")
    async with bed.agent(await state(bed)) as deposed:
        await verified(bed, deposed)
        successor = await state(bed)
        async with bed.agent(successor) as agent:
            deposed.client.sent.clear()
            error = await error_of(deposed.converge(bed.delivery(labelled(component("store")))))
            assert (error.kind, error.code) == (Kind.PRECONDITION, "claim-lost")
            assert f"is claimed by '{successor.holder}' (epoch 2," in error.message
            assert deposed.applied.deposed == error.message
            assert deposed.client.writes == []
            assert (await agent.converge(bed.delivery(labelled(component("store"))))).verified
            assert agent.applied.deposed == ""


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet"], ids=["annotation", "eviction"])
async def test_a_deposed_agent_restarts_nothing(bed: Bed, kind: str) -> None:
    await bed.deploy("orders", 1, kind)
    pods = await bed.uids("orders")
    take_over: list[asyncio.Task[None]] = []

    async def depose() -> None:
        async with bed.agent(await state(bed)):
            bed.clock.elapse(CLAIM_TTL_S)
            await install_services(bed.client, bed.namespace)

    def progress(_: Findings) -> None:
        if not take_over:
            take_over.append(asyncio.ensure_future(depose()))

    # Without Dapr's control plane the restart waits; on a stopped clock its window does not end.
    bed.clock.is_stopped = True
    async with bed.agent(await state(bed), dapr_namespace=bed.namespace) as deposed:
        error = await error_of(deposed.converge(bed.delivery(resiliency(7, "orders")), progress))
        assert error.code == "claim-lost"
        assert "is claimed by 'agent on" in error.message
        await asyncio.gather(*take_over)
        resource = DEPLOYMENTS.path(bed.namespace, "") if kind == "Deployment" else "/replicasets/"
        assert not [each for each in deposed.client.writes if resource in each or "eviction" in each]
        assert await bed.uids("orders") == pods


async def test_of_two_agents_with_other_names_the_second_wins(bed: Bed) -> None:
    await bed.deploy("orders")
    [pod] = await bed.pods("orders")
    first_state = await state(bed, "first")
    for _ in range(2):
        first_state = await state(bed, "first")
    async with bed.agent(first_state) as first, bed.agent(await state(bed, "second")) as second:
        error = await error_of(first.converge(bed.delivery(component("store"))))
        assert "is claimed by 'second on" in error.message
        assert "'first on" in error.message
        load = partial(bed.kubelet.sidecars[pod].load, "store", STORE)
        await second.converge(bed.delivery())
        found = await second.converge(bed.delivery(component("store", host="new")), each_step(load))
        assert found.verified, texts(found)
        assert host_of(await bed.client.get(COMPONENTS, "store", bed.namespace)) == "new"


async def test_a_new_agent_waits_before_its_first_write_and_only_then(bed: Bed) -> None:
    await bed.deploy("orders")
    async with bed.agent(await state(bed)) as first:
        await verified(bed, first)
        assert bed.clock.monotonic() < CLAIM_TTL_S, "the first agent of a runtime waits for nothing"
    started_s = bed.clock.monotonic()
    written_s: list[float] = []

    async def intercept(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if request.method == "PATCH" and "dryRun" not in request.query:
            written_s.append(bed.clock.monotonic())
        return await send(request)

    async with bed.agent(await state(bed)) as second:
        second.client.intercept = intercept
        found = await second.converge(bed.delivery(component("store")))
        assert found.verified, texts(found)
        assert written_s == []
        assert bed.clock.monotonic() - started_s < CLAIM_TTL_S
        await second.converge(bed.delivery(labelled(component("store"))))
        await second.converge(bed.delivery(component("store")))
    assert len(written_s) == 2
    assert written_s[0] - started_s >= CLAIM_TTL_S
    assert written_s[1] - written_s[0] < CLAIM_TTL_S
