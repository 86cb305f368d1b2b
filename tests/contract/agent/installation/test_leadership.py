"""Replicas of an agent: one works, another takes over, and neither a fail-over nor an outage restarts anything twice.

The replicas run with the chart's rules on a real API server and a real governor server; sidecars are replayed.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from governor.agent.main import Agent
from governor.agent.platforms.kubernetes.workloads.observer import REPLICA_SETS
from governor.domain.reports import acknowledged
from governor.values.secret import Secret
from governor.wire.credentials import read_join_token
from testbed.kube.control_plane import ControlPlane
from testbed.sidecar_replay import SidecarReplay
from testbed.waiting import until
from tests.contract.agent.apply.bed import COMPONENTS, component, host_of
from tests.contract.agent.installation.bed import CLAIM_TTL_S, AgentBed, Release, ReplicaProcess
from tests.contract.agent.platform.bed import Bed, Injector, Kubelet, create_namespace, resiliency
from tests.contract.charts.bed import Helm
from tests.contract.kube.applyset.bed import RecordingClient
from tests.contract.kube.reflector.bed import running, until_true
from tests.integration.server.bed import ServerBed
from tests.integration.server.bed import running as running_server
from tests.integration.server.test_client_tls import Authority, serving

pytestmark = pytest.mark.asyncio(loop_scope="session")

STORE = component("store", scopes=["none"])
"""A resource that no sidecar loads, so that none has to prove its repair."""
ELSEWHERE = {"spec": {"metadata": [{"name": "redisHost", "value": "elsewhere:6379"}]}}


class World:
    """A cluster with the Deployment ``orders``, and the agent of its namespace."""

    def __init__(self, agent: AgentBed, cluster: Bed) -> None:
        self.agent = agent
        self.cluster = cluster

    async def has_restarts(self, number: int) -> bool:
        """Return whether the agent has begun this many restarts of the Deployment."""
        return await self.cluster.restarts("orders") == number

    async def replica_sets(self) -> int:
        """Return how many versions of its pods the Deployment has had."""
        return len([each async for each in self.cluster.client.list(REPLICA_SETS, self.cluster.namespace)])

    async def has_its_store(self) -> bool:
        """Return whether the Component in the cluster is the delivered one."""
        found = await self.cluster.client.get(COMPONENTS, "store", self.cluster.namespace)
        return host_of(found) == host_of(STORE)


@pytest.fixture(autouse=True)
def _short_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("governor.kube.applyset.inventory.CLAIM_TTL_S", CLAIM_TTL_S)


@pytest_asyncio.fixture(loop_scope="session")
async def release(plane: ControlPlane, admin: RecordingClient, helm: Helm) -> Release:
    state, managed = [await create_namespace(admin) for _ in range(2)]
    release = Release(plane, helm, state, (managed,))
    await release.install()
    return release


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(
    release: Release,
    admin: RecordingClient,
    replay: SidecarReplay,
    recorded: Mapping[str, bytes],
    injector: Injector,
) -> AsyncIterator[Bed]:
    (namespace,) = release.managed
    kubelet = Kubelet(admin, namespace, replay, recorded)
    async with running(kubelet.run()):
        cluster = Bed(lambda: admin, namespace, kubelet, injector)
        await cluster.deploy("orders")
        yield cluster


async def is_verified(agent: Agent, sequence: int) -> bool:
    """Return whether the agent would report that the delivery of this sequence is verified."""
    report = agent.outbox.newest
    return report is not None and report.sequence == sequence and acknowledged(report)


@asynccontextmanager
async def started(*replicas: ReplicaProcess) -> AsyncIterator[None]:
    """Run the replicas until the block ends."""
    try:
        for each in replicas:
            await (await each.prepare()).start()
        yield
    finally:
        for each in replicas:
            await each.kill()


@pytest_asyncio.fixture(loop_scope="session")
async def tls_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServerBed]:
    """A server with a certificate of a company's CA, which is trusted as the chart's value ``ca`` makes it."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    async with serving(authority, tmp_path / "server") as server:
        yield server


def unpinned(token: Secret | None, server: ServerBed) -> Secret:
    """Return a join token that names no CA."""
    assert token is not None
    return msgspec.structs.replace(read_join_token(token), server=server.url, ca="").encode()


async def test_a_replica_takes_over_during_a_restart_and_the_suspended_leader_writes_nothing(
    release: Release, cluster: Bed, tls_server: ServerBed, tmp_path: Path, server_logs: list[Path]
) -> None:
    bed = AgentBed(tls_server, release, tmp_path)
    world, token = World(bed, cluster), unpinned(await bed.join_token(), tls_server)
    trusted = os.environ["SSL_CERT_FILE"]
    replicas = [ReplicaProcess(name, bed, token, SSL_CERT_FILE=trusted) for name in ("one", "two")]
    server_logs.extend(each.log for each in replicas)
    async with started(*replicas):
        assert acknowledged(await bed.deliver(resiliency(1)))
        leader, standby = replicas if await replicas[0].is_leader() else reversed(replicas)
        assert "joined" not in standby.log.read_text()

        cluster.kubelet.pending = True
        await bed.apply(resiliency(2))
        await until(lambda: world.has_restarts(2))
        await leader.pause()
        await until(standby.is_leader)
        cluster.kubelet.pending = False
        assert acknowledged(await bed.decided()), "although the watch of the suspended process is still open"
        assert await world.has_restarts(2)
        assert await world.replica_sets() == 3

        resumed_at = release.audit_size()
        leader.resume()
        await until(leader.is_ready)
        assert acknowledged(await bed.deliver(resiliency(3)))
        # Events tell what it did before.
        assert set(release.writes(leader.directory, resumed_at)) <= {"update leases", "create events"}
        assert "update secrets" in release.writes(standby.directory, resumed_at)
        assert await world.has_restarts(3)
        joined = [each.log.read_text().count('"joined"') for each in replicas]
        assert sorted(joined) == [0, 1]

        await bed.apply(resiliency(4))
        await until(lambda: world.has_restarts(4))
        await standby.kill()
        assert acknowledged(await bed.decided()), "by the replica that was suspended before"
        assert await world.has_restarts(4)


async def test_without_the_server_a_restarted_agent_finishes_the_change_and_repairs_drift(
    release: Release, cluster: Bed, tmp_path: Path
) -> None:
    async with running_server(tmp_path / "server") as server:
        bed = AgentBed(server, release, tmp_path)
        world = World(bed, cluster)
        async with bed.agent():
            assert acknowledged(await bed.deliver(resiliency(1), STORE, drift="enforce"))
            cluster.kubelet.pending = True
            await bed.apply(resiliency(2), STORE, drift="enforce")
            await until(lambda: world.has_restarts(2))
    cluster.kubelet.pending = False
    async with bed.agent() as agent:
        await until(lambda: is_verified(agent, 2))
        await cluster.client.patch(COMPONENTS, "store", cluster.namespace, ELSEWHERE, manager="somebody")
        await until(world.has_its_store)
        assert await world.has_restarts(2)
        async with running_server(tmp_path / "server", port=server.address.port) as bed.server:
            # The drift is reported first, if its repair was not verified yet when the server came back.
            assert acknowledged(await bed.until_verified())
    assert await world.replica_sets() == 3


async def test_rotated_and_expired_tokens_end_neither_the_agent_nor_restart_a_workload(
    release: Release, cluster: Bed, tmp_path: Path
) -> None:
    async with running_server(tmp_path / "server") as server:
        bed = AgentBed(server, release, tmp_path)
        world = World(bed, cluster)
        async with bed.replica() as replica:
            assert acknowledged(await bed.deliver(resiliency(1)))
            agent = replica.agent
            await release.reject_tokens(bed.directory)
            assert acknowledged(await bed.deliver(resiliency(2)))
            assert replica.agent is agent, "the next token is read before the lease is lost"

            await release.reject_tokens()
            await until_true(lambda: replica.agent is None)
            await release.write_token(bed.directory)
            assert acknowledged(await bed.deliver(resiliency(3)))
    assert await world.has_restarts(3)
