"""The agent as its program assembles it, with a server: a cluster that is not ready yet, and a large delivery."""

import secrets

import pytest

from governor.agent.loop import KEY
from governor.domain.reports import Cause, Instances, acknowledged
from testbed.kube.control_plane import ControlPlane
from tests.contract.agent.apply.bed import component, install_dapr
from tests.contract.agent.installation.bed import NewWorld
from tests.contract.agent.platform.bed import resiliency

_COMPONENTS, _VALUE_BYTES = 8, 125_000

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_change_is_verified_once_daprs_definitions_are_installed(
    new_world: NewWorld, plane: ControlPlane
) -> None:
    async with new_world() as world:
        await world.cluster.deploy("orders")
        async with world.agent.agent() as agent:
            await plane.kubectl("delete", "crd", "resiliencies.dapr.io")
            try:
                await world.deliver(resiliency(1))
                # The agent knows the kind from before: a request that fails makes it ask again what the server has.
                agent.reconciler.add(KEY)
                await world.agent.until_failed(Cause.RUNTIME)
            finally:
                await install_dapr(plane)
            agent.reconciler.add(KEY)
            verified = await world.agent.until_verified()
            assert verified.workloads[0].instances == Instances(1, verified=1)


async def test_a_delivery_of_a_megabyte_is_verified(new_world: NewWorld) -> None:
    values = [secrets.token_hex(_VALUE_BYTES // 2) for _ in range(_COMPONENTS)]
    large = [component(f"store-{number}", host=value) for number, value in enumerate(values)]
    async with new_world() as world:
        await world.cluster.deploy("orders")
        async with world.agent.agent():
            # A resource that only a start loads: the new sidecar proves the others too.
            report = await world.deliver(resiliency(1), *large)
            assert acknowledged(report), report
            assert len(report.resources) == _COMPONENTS + 1
