"""The agent as its program assembles it, with a server: a cluster that is not ready yet."""

import pytest

from governor.agent.loop import KEY
from governor.domain.reports import Cause, Instances, State, overall
from testbed.kube.control_plane import ControlPlane
from tests.contract.agent.apply.bed import install_dapr
from tests.contract.agent.installation.bed import NewWorld
from tests.contract.agent.platform.bed import resiliency

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_change_is_verified_once_daprs_definitions_are_installed(
    new_world: NewWorld, plane: ControlPlane
) -> None:
    async with new_world() as world:
        await world.cluster.deploy("orders")
        async with world.agent.agent() as agent:
            await plane.kubectl("delete", "crd", "resiliencies.dapr.io")
            try:
                refused = await world.deliver(resiliency(1))
            finally:
                await install_dapr(plane)
            assert overall(refused) is State.FAILED
            assert {each.cause for each in refused.resources} == {Cause.RUNTIME}
            agent.reconciler.add(KEY)
            verified = await world.agent.until_verified()
            assert verified.workloads[0].instances == Instances(1, verified=1)
