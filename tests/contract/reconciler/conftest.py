"""Fixtures for tests of the reconciler: the kinds are installed once, and each test has a hub namespace of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from governor.kube.client import Client, Limits, Transport
from governor.process.flowcontrol.limiter import Rate
from governor.reconciler.controllers import cluster_states, clusters, installations
from governor.reconciler.kinds.channel import CHANNEL
from governor.reconciler.render import linked
from governor.reconciler.render.pool import RenderPool
from testbed.kube.control_plane import ControlPlane
from testbed.recipes import provide
from tests.contract.kube.bed import FaultyApi, admin_of
from tests.contract.kube.conftest import NAMESPACES
from tests.contract.reconciler.bed import CountingRenderer, HubBed
from tests.contract.reconciler.definition_bed import installer, remove
from tests.contract.reconciler.kill_bed import KillBed


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    async with Transport() as transport:
        yield transport


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def kinds(_shared_control_plane: ControlPlane) -> None:
    """The kinds of the reconciler on the API server that all contract tests share."""
    async with Transport() as transport:
        await installer(Client(transport, admin_of(_shared_control_plane))).install()


@pytest.fixture
def client(control_plane: ControlPlane, kinds: None, transport: Transport) -> Client:
    """An administrator's client of the shared server, with the kinds of the reconciler."""
    return Client(transport, admin_of(control_plane), Limits(rate=Rate(per_s=10_000.0, burst=10_000)))


@pytest.fixture
async def namespace(client: Client) -> str:
    """The name of a new hub namespace; it is not deleted, because no controller runs that would finish the deletion."""
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "hub-", "name": ""}}
    created = await client.create(NAMESPACES, manifest, manager="tests")
    return str(created["metadata"]["name"])


@pytest.fixture
async def renderer() -> AsyncIterator[CountingRenderer]:
    """The linked renderer, in one process."""
    program = str(provide(["renderer"])["renderer"])
    async with RenderPool(program, size=1, limits=linked.Limits(timeout_s=60.0)) as pool:
        yield CountingRenderer(pool)


@pytest.fixture
def hub(
    control_plane: ControlPlane,
    client: Client,
    transport: Transport,
    namespace: str,
    tmp_path: Path,
    renderer: CountingRenderer,
    monkeypatch: pytest.MonkeyPatch,
) -> HubBed:
    """A hub, used as a user does; its reconciler writes without waiting for more changes."""
    monkeypatch.setattr(clusters, "INTERVAL_S", 0.01)
    monkeypatch.setattr(clusters, "RECHECK_S", 0.2)
    monkeypatch.setattr(cluster_states, "INTERVAL_S", 0.01)
    monkeypatch.setattr(installations, "LASTING_S", 0.01)
    return HubBed(control_plane, client, transport, namespace, tmp_path / "chart-cache", renderer)


@pytest.fixture
async def faults(control_plane: ControlPlane, transport: Transport) -> AsyncIterator[FaultyApi]:
    """Fault-injecting proxy in front of the shared server."""
    async with FaultyApi(control_plane, transport) as faults:
        yield faults


@pytest.fixture
async def bare(client: Client) -> AsyncIterator[Client]:
    """A client of a server without the definition of Channels; it is installed again after the test."""
    await remove(client, CHANNEL.name)
    yield client
    await remove(client, CHANNEL.name)
    await installer(client).install()


@pytest.fixture
async def kill_bed(
    control_plane: ControlPlane,
    client: Client,
    transport: Transport,
    namespace: str,
    tmp_path: Path,
    renderer: CountingRenderer,
    faults: FaultyApi,
) -> AsyncIterator[KillBed]:
    """A reconciler as a process that the test kills."""
    bed = KillBed(control_plane, client, transport, namespace, tmp_path, renderer, faults)
    await bed.prepare()
    async with bed.program:
        yield bed
