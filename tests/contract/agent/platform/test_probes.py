"""How the logs of failing sidecars are read."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from governor.agent.platforms.kubernetes.proof.probes import LOGS_AT_ONCE, Probes
from governor.agent.platforms.kubernetes.proof.sidecar_reader import Route, SidecarReader, open_session
from governor.agent.redaction import Redactor
from governor.agent.state.file_blobs import FileBlobs
from governor.kube.client import Request
from governor.process.clock import SystemClock
from tests.contract.agent.platform.bed import Bed, container, crashing, pod_status
from tests.contract.kube.reflector.bed import until_true

pytestmark = pytest.mark.asyncio(loop_scope="session")

REPLICAS = LOGS_AT_ONCE + 4


async def test_the_log_of_each_failure_is_read_once_and_not_all_at_the_same_time(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders", REPLICAS)
    client, active, most = bed.new_client(), [0], [0]

    async def intercept(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        active[0] += 1
        most[0] = max(most[0], active[0])
        try:
            await asyncio.sleep(0)
            return await send(request)
        finally:
            active[0] -= 1

    client.intercept = intercept
    async with bed.agent(blobs) as agent, open_session() as session:
        await until_true(lambda: all(pod.ready for each in agent.observer.workloads() for pod in each.pods))
        probes = Probes(client, SidecarReader(session, client, Route.DIRECT), Redactor(), SystemClock())

        async def ask() -> int:
            """Return how many logs are read in one step."""
            client.sent.clear()
            [workload] = agent.observer.workloads()
            await probes.ask(workload.pods, before, lambda: False)
            return len([each for each in client.sent if each.path.endswith("/log")])

        before = await probes.read(agent.observer.workloads()[0].pods, lambda: False)
        assert await ask() == 0
        for each in bed.sidecars(*(pod.pod.name for pod in before.values())):
            each.failed["store"] = 1
        assert [await ask(), await ask()] == [REPLICAS, 0]
        assert most[0] == LOGS_AT_ONCE

        name = min(pod.pod.name for pod in before.values())
        for restarts in (1, 2):  # one exit, and another one
            status = {**crashing("boom"), "restartCount": restarts}
            await bed.report(name, pod_status([container("app"), status], ready=False))
            await until_true(lambda: any(p.sidecar and p.sidecar.restarts == restarts for p in agent.pods(name)))  # noqa: B023
            # No log has an error here, so that the one of the container before is read, too.
            assert [await ask(), await ask()] == [2, 0]
