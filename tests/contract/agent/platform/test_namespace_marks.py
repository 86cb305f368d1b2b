"""Runtimes whose namespaces overlap: the second agent reports the first by name, and writes nothing."""

import pytest

from governor.agent.platforms.kubernetes.resources.applied import AppliedResources
from governor.agent.platforms.kubernetes.resources.namespace_marks import NAME, Mark, read_mark
from governor.agent.redaction import Redactor
from governor.agent.state.secret_blobs import SecretBlobs
from governor.errors import Kind
from governor.kube.applyset.inventory import CLAIM_TTL_S
from tests.contract.agent.apply.bed import CONFIG_MAPS, component
from tests.contract.agent.platform.bed import Bed, create_namespace, texts
from tests.contract.kube.applyset.bed import error_of

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("runtime", ["r2", "r1"], ids=["other-runtime", "other-state-namespace"])
async def test_the_second_agent_names_the_first_and_writes_nothing(bed: Bed, runtime: str) -> None:
    elsewhere = await create_namespace(bed.client)
    await bed.deploy("orders")
    state = await SecretBlobs.open(bed.client, bed.namespace, "agent")
    other = await SecretBlobs.open(bed.client, elsewhere, "agent")
    async with (
        bed.agent(state, runtime="r1") as first,
        bed.agent(other, runtime=runtime, state_namespace=elsewhere) as second,
    ):
        for _ in range(2):
            error = await error_of(second.converge(bed.delivery(component("store"))))
            assert (error.kind, error.code) == (Kind.PRECONDITION, "namespace-governed")
        owner = f"namespace '{bed.namespace}' is governed by runtime 'r1', whose agent has its state in namespace"
        assert f"{owner} '{bed.namespace}'" in error.message
        assert f"kubectl delete configmap {NAME} --namespace {bed.namespace}" in error.message
        assert (await error_of(second.applied.permit_write())).code == "namespace-governed"
        assert second.applied.deposed == error.message
        assert second.client.writes == []
        assert (await first.converge(bed.delivery())).verified

        # The administrator gives the namespace to the second agent.
        await bed.client.delete(CONFIG_MAPS, NAME, bed.namespace)
        bed.clock.elapse(CLAIM_TTL_S)
        found = await second.converge(bed.delivery())
        assert found.verified, texts(found)
        assert second.applied.deposed == ""
        bed.clock.elapse(CLAIM_TTL_S)
        first.client.sent.clear()
        assert f"runtime {runtime!r}" in (await error_of(first.converge(bed.delivery(component("store"))))).message
        assert first.client.writes == []


async def test_a_namespace_that_is_no_longer_managed_is_given_up(bed: Bed) -> None:
    others = [await create_namespace(bed.client) for _ in range(2)]

    async def claim(*namespaces: str) -> None:
        state = await SecretBlobs.open(bed.client, bed.namespace, "agent")
        applied = AppliedResources(
            bed.client, "r1", bed.namespace, namespaces, Redactor(), clock=bed.clock, claimant=state
        )
        await applied.take_claim()

    await claim(*others, "missing")
    marks = [await read_mark(bed.client, each) for each in others]
    assert marks == [Mark("r1", bed.namespace)] * 2
    await claim(others[0])
    marks = [await read_mark(bed.client, each) for each in others]
    assert marks == [Mark("r1", bed.namespace), None]
